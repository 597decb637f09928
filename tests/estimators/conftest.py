"""Fitted models that many tests ask."""

import jaxtyping
import pytest
from small_models import fit_untrained, rich, standard_promotion, wave


@pytest.fixture(autouse=True, scope="module")
def promotion():
    with standard_promotion():
        yield


@pytest.fixture
def without_type_checks():
    """Constructors take wrong types, as they do outside of tests, so that `fit` can refuse them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def local_model():
    return fit_untrained(wave())


@pytest.fixture(scope="session")
def global_model():
    return fit_untrained(wave(), weights="global")


@pytest.fixture(scope="session")
def rich_model():
    """Of two series of unequal length with controls, missing values and irregular time."""
    return fit_untrained([rich(0, 14), rich(1, 10)], residual=True, measurement_noise=(0.04, 0.01))
