"""Every public name is in the API reference and has an example in its docstring; tests/test_doctests.py runs them."""

import ast
import doctest
import inspect
import pkgutil
import re

import pytest
from pages import DOCS

import prodssm as ps
from prodssm.estimators.residuals import Residuals
from prodssm.estimators.results import Panel, Prediction, StreamStep
from prodssm.evaluation import Backtest
from prodssm.models.filtering import Beliefs, Outputs

MODELS = (ps.ProDSSM, ps.DeepStochasticRegressor)
RESULTS = (Prediction, Panel, Beliefs, Outputs, StreamStep, Residuals, Backtest)
CLASSES = (*MODELS, *RESULTS, ps.Series, ps.Recipe)


def names_of(module, prefix=""):
    """Functions and classes that a module defines or passes on by hand (`from x import y as y`), also those of its modules."""
    tree = ast.parse(inspect.getsource(module))
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    passed_on = [alias.name for alias in imports if alias.asname == alias.name]
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    for name in dict.fromkeys([*passed_on, *defined]):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from names_of(value, f"{prefix}{name}.")
        elif callable(value):
            yield f"{prefix}{name}", value


def reference():
    """Names of the API reference with their objects; a module stands for itself and for the functions that it defines."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md")))
    for name in re.findall(r"^::: (\S+)$", pages, flags=re.M):
        value = pkgutil.resolve_name(name)
        yield name, value
        if inspect.ismodule(value):
            yield from names_of(value, f"{name}.")


def methods_of(cls):
    """Public methods that are ours, inherited ones included."""
    for name, method in inspect.getmembers(cls, inspect.isroutine):
        if not name.startswith("_") and str(getattr(method, "__module__", "")).startswith("prodssm"):
            yield f"{cls.__name__}.{name}", method


def example_in(value):
    """The code of the example in a docstring, without what is skipped."""
    _, _, text = (inspect.getdoc(value) or "").partition("Example:")
    found = doctest.DocTestParser().get_examples(text)
    return "".join(each.source for each in found if not each.options.get(doctest.SKIP))


NAMES = dict(names_of(ps))
REFERENCE = dict(reference())
METHODS = {name: (cls, method) for cls in CLASSES for name, method in methods_of(cls)}


def test_the_names_are_those_that_users_rely_on():
    assert {"ProDSSM", "load", "filter_states", "Moments"} <= NAMES.keys()
    assert {"metrics.crps", "frames.series_of", "frames.to_frame"} <= NAMES.keys()
    assert {"plots.plot_forecast", "datasets.kink.simulate", "datasets.uci.load", "datasets.find"} <= NAMES.keys()
    assert {"ProDSSM.fit", "ProDSSM.step", "DeepStochasticRegressor.predict", "Prediction.interval"} <= METHODS.keys()
    assert {"Series.window", "Recipe.filled", "ProDSSM.set_params"} <= METHODS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    assert example_in(NAMES[name]), f"{name} has no `Example:` with a line that runs"


@pytest.mark.parametrize("name", [name for name, value in REFERENCE.items() if callable(value)])
def test_a_name_of_the_reference_has_an_example(name):
    assert example_in(REFERENCE[name]), f"{name} has no `Example:` with a line that runs"


def test_the_reference_has_every_public_name():
    shown = [id(value) for value in REFERENCE.values()]
    assert not [name for name, value in NAMES.items() if id(value) not in shown]
    assert id(ps.ACTIVATIONS) in shown


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_has_an_example_of_its_own_or_is_called_in_that_of_its_class(name):
    cls, method = METHODS[name]
    assert example_in(method) or f".{method.__name__}(" in example_in(cls), f"{name} is in no `Example:`"
