"""Plots of dated data carry dates, also of the future."""

from itertools import pairwise

import numpy as np
import pytest
from small_models import linear_prodssm, without_training

import prodssm as ps

pandas = pytest.importorskip("pandas")
matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
dates = pytest.importorskip("matplotlib.dates")
plt = pytest.importorskip("matplotlib.pyplot")
HOURS = 60


@pytest.fixture(scope="module")
def frame():
    index = pandas.date_range("2024-03-29", periods=HOURS, freq="h", tz="Europe/Berlin", name="when")
    values = np.sin(0.3 * np.arange(HOURS)) + 0.1 * np.random.default_rng(0).standard_normal(HOURS)
    return pandas.DataFrame({"load": values}, index=index)


@pytest.fixture(scope="module")
def model(frame):
    with without_training():
        return linear_prodssm(latent_dim=2, emission="linear").fit(frame)


@pytest.fixture(autouse=True)
def no_figure_stays():
    yield
    plt.close("all")


def days(line):
    """The times of a line, as matplotlib's days."""
    return dates.date2num(np.asarray(line.get_xdata()))


def test_a_forecast_follows_its_history_by_the_clock_on_the_wall(model, frame):
    ahead = model.forecast(frame, 5)
    ax = ps.plots.plot_forecast(ahead, frame, last=10)
    assert ax.get_xlabel() == "time"
    seen, future = (line for line in ax.get_lines() if "load" in str(line.get_label()))
    wall = pandas.date_range(frame.index[-10], periods=15, freq="h").tz_localize(None)
    assert np.allclose(days(seen), dates.date2num(wall[:10]))
    assert np.allclose(days(future), dates.date2num(wall[10:]))


def test_states_and_residuals_are_drawn_over_dates(model, frame):
    wall = dates.date2num(frame.index.tz_localize(None))
    assert np.allclose(days(ps.plots.plot_states(model.filter(frame)).get_lines()[0]), wall)
    over_time, histogram, correlation = model.residuals(frame).plot()
    assert np.allclose(days(over_time.get_lines()[0]), wall)
    assert [each.get_ylabel() for each in (over_time, histogram, correlation)] == [
        "residual of load",
        "density",
        "autocorrelation",
    ]
    assert np.isclose(sum(bar.get_height() * bar.get_width() for bar in histogram.patches), 1.0)
    heights = [bar.get_height() for bar in correlation.patches[:20]]
    assert np.allclose(heights, model.residuals(frame).autocorrelation(20)[:, 0])


def test_labels_of_dates_do_not_run_into_each_other(model, frame):
    ax = ps.plots.plot_forecast(model.forecast(frame, 5), history=frame)
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
    assert len(boxes) > 2
    assert all(one.x1 < two.x0 for one, two in pairwise(boxes))
