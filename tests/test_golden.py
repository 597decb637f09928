"""Fixed models answer as they always did: golden.npz was written before the package was rebuilt (golden/cases.py).

Fits with a linear emission were written again when a linear part came to stand beside the network.
"""

import jax
import numpy as np
import pytest
from golden.cases import FILE, answers, cases, difference, fits

pytestmark = pytest.mark.float64
FAST = ("moments-local-0", "moments-global-1", "linearised-point-0")
TOLERANCE = 1e-9  # relative to the largest entry of an answer
CASES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in cases()]


@pytest.fixture(scope="module")
def golden():
    with np.load(FILE) as stored:
        return dict(stored)


@pytest.fixture(autouse=True)
def standard_promotion():
    """The cases were written without strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def assert_unchanged(found, golden, prefix):
    """All answers of a case are there, and none has moved."""
    wanted = {name.removeprefix(prefix): value for name, value in golden.items() if name.startswith(prefix)}
    assert found.keys() == wanted.keys()
    moved = {name: difference(found[name], wanted[name]) for name in wanted}
    assert max(moved.values()) <= TOLERANCE, {name: off for name, off in moved.items() if off > TOLERANCE}


@pytest.mark.parametrize("name", CASES)
def test_filter_smoother_forecast_and_gradients_are_unchanged(name, golden):
    assert_unchanged(answers(cases()[name]), golden, f"{name}/")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The Gaussian forecast agrees")  # one of the short fits is of an unstable system
def test_fits_of_both_estimators_are_unchanged(golden):
    assert_unchanged(fits(), golden, "fit/")


def test_every_golden_answer_belongs_to_a_case(golden):
    assert {name.split("/")[0] for name in golden} == {*cases(), "fit"}
