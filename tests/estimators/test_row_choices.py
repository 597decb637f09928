"""What the regressor chooses from the number of rows."""

import json

import pytest

from prodssm.estimators.row_choices import FEW_ROWS, RowChoices, choose_layers

AUTO = {"hidden": "auto", "steps": "auto", "activation": "auto"}
MANY = ((40,), 5, "relu", False)


def chosen(rows, **given):
    found = choose_layers(rows, AUTO | given)
    return found.hidden, found.steps, found.activation, found.fourier


def test_few_rows_start_from_fourier_features_and_many_do_not():
    assert chosen(FEW_ROWS - 1) == ((100,), 1, "sin", True)
    assert chosen(FEW_ROWS) == MANY
    # The smallest training set of the UCI experiments has 455 rows, whose results the choice for few rows must not move.
    assert FEW_ROWS <= 455
    assert str(choose_layers(50, AUTO)).startswith("chosen from the data: hidden=(100,) (few rows, 50)")


def test_what_is_given_is_kept():
    assert chosen(50, hidden=[7]) == ((7,), 1, "sin", True)
    assert chosen(50, hidden=(7, 7)) == ((7, 7), *MANY[1:])
    assert chosen(50, hidden=()) == ((), *MANY[1:])
    assert chosen(50, steps=2) == ((40,), 2, "relu", False)
    assert chosen(50, activation="tanh") == ((40,), 5, "tanh", False)
    every = choose_layers(50, {"hidden": (7,), "steps": 1, "activation": "sin"})
    assert not every.fourier
    assert str(every) == "nothing was left to choose"


@pytest.mark.parametrize("given", [{}, {"activation": "erf"}])
@pytest.mark.parametrize("rows", [50, 500])
def test_choices_are_restored_from_a_file(rows, given):
    params = AUTO | given
    found = choose_layers(rows, params)
    assert RowChoices.restored(json.loads(json.dumps(found.words())), params) == found
    assert found.agrees_with(params)
    assert not found.agrees_with(params | {"steps": 3})


def test_a_file_without_choices_was_given_all():
    given = {"hidden": [3], "steps": 2, "activation": "relu"}
    assert RowChoices.restored(None, given) == RowChoices((3,), 2, "relu")
