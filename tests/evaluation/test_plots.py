"""Plots show the numbers they are given, on the axes they are given, and say what is missing."""

import builtins
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import array, close
from scipy import stats

from prodssm.data.layout import Layout
from prodssm.data.series import Series
from prodssm.evaluation import plots
from prodssm.evaluation.drawing import TAIL, cell_probabilities, likeliest
from prodssm.models.components import Components
from prodssm.scoring import metrics
from prodssm.scoring.diagnostics import compare_with_samples

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def no_figure_stays():
    yield
    plt.close("all")


@pytest.fixture
def ax():
    return plt.subplots()[1]


class Prediction:
    """What plots need of a forecast of two outputs."""

    names = ("left", "right")
    layout = Layout(names)

    def __init__(self, steps=4):
        self.mean = np.arange(2.0 * steps).reshape(steps, 2)
        self.std = np.broadcast_to([1.0, 2.0], (steps, 2))

    def quantile(self, probability):
        return stats.norm.ppf(probability, self.mean, self.std)

    def interval(self, probability):
        return stats.norm.interval(probability, self.mean, self.std)


def beliefs(mean):
    return SimpleNamespace(mean=np.asarray(mean, float), std=np.full(np.shape(mean), 0.5))


def one_state(std):
    """A model with one state and the transition 2 x."""
    return SimpleNamespace(transition=lambda x: SimpleNamespace(mean=2 * x, std=np.full_like(x, std)))


def history(iterations, objective, validation=(), stop_reason="all iterations done"):
    return SimpleNamespace(iterations=iterations, objective=objective, validation=validation, stop_reason=stop_reason)


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, label):
    found = [each for each in ax.get_lines() if each.get_label() == label]
    assert len(found) == 1, f"{label} is not one of {[each.get_label() for each in ax.get_lines()]}"
    return np.asarray(found[0].get_xdata()), np.asarray(found[0].get_ydata())


def band(ax):
    """Lowest and highest value of the only band."""
    (shape,) = ax.collections
    (path,) = shape.get_paths()
    return path.vertices[:, 1].min(), path.vertices[:, 1].max()


def test_every_plot_is_drawn_on_the_axes_that_are_given(ax):
    check = compare_with_samples(np.zeros((3, 1)), np.ones((3, 1)), np.random.default_rng(0).normal(size=(50, 3, 1)))
    assert plots.plot_forecast(Prediction(), ax=ax) is ax
    assert plots.plot_states(beliefs(np.zeros((3, 1))), ax=ax) is ax
    assert plots.plot_transition(one_state(1.0), np.linspace(0, 1, 5), ax=ax) is ax
    assert plots.plot_history(history([25, 50], [0.0, 1.0]), ax=ax) is ax
    assert plots.plot_check(check, ax=ax) is ax
    assert plots.plot_pit(np.linspace(0, 1, 40), ax=ax) is ax
    assert plots.plot_history(history([25, 50], [0.0, 1.0])) is not ax
    ax.figure.canvas.draw()


def test_a_forecast_continues_the_time_steps_of_the_history():
    seen = np.arange(12.0).reshape(6, 2)
    ax = plots.plot_forecast(Prediction(), history=Series(seen), output="right", last=3)
    assert labels(ax) == ["right, observed", "right, forecast, 95 %"]
    x, y = line(ax, "right, observed")
    assert x.tolist() == [3, 4, 5]
    assert y.tolist() == [7, 9, 11]
    x, y = line(ax, "right, forecast, 95 %")
    assert x.tolist() == [6, 7, 8, 9]
    assert y.tolist() == [1, 3, 5, 7]
    low, high = Prediction().interval(0.95)
    assert close(array(band(ax)), array([low[0, 1], high[-1, 1]]))


class TwoPlaces(Prediction):
    """A forecast that is near -3 or near its mean + 3, with equal probabilities."""

    def __init__(self, steps=4):
        super().__init__(steps)
        means = np.stack([np.full((steps, 2), -3.0), self.mean + 3.0])
        cov = np.broadcast_to(0.25 * np.eye(2), (2, steps, 2, 2))
        self.components = Components(np.full((2, steps), 0.5), means, cov)

    def quantile(self, probability):
        return self.components.quantile(probability)

    def interval(self, probability):
        return self.quantile((1 - probability) / 2), self.quantile((1 + probability) / 2)


def test_a_mixture_is_shaded_in_the_places_where_it_may_be(ax):
    found = TwoPlaces()
    plots.plot_forecast(found, output="right", ax=ax)
    (mesh,) = ax.collections
    corners = mesh.get_coordinates()
    assert corners[0, :, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    centres, shades = (corners[1:, 0, 1] + corners[:-1, 0, 1]) / 2, np.asarray(mesh.get_array())
    for step in range(4):
        places = np.array([-3.0, found.mean[step, 1] + 3.0])
        dark = centres[shades[:, step] > 0.9]
        assert (np.abs(dark[:, None] - places).min(axis=1) < 0.35).all()
        assert (np.abs(dark[:, None] - places).min(axis=0) < 0.35).all()
        assert shades[np.argmin(np.abs(centres - places.mean())), step] < 1e-3
    ends = [np.asarray(each.get_ydata()) for each in ax.get_lines() if each.get_linestyle() == ":"]
    assert close(array(ends), array([bound[:, 1] for bound in (found.quantile(0.025), found.quantile(0.975))]))
    ax.figure.canvas.draw()


def test_the_probabilities_of_cells_are_those_of_the_distribution():
    edges, cells = cell_probabilities(TwoPlaces(1).components, 0)
    assert cells.shape == (len(edges) - 1, 1)
    assert cells.sum() == pytest.approx(1 - 2 * TAIL, abs=1e-6)
    assert cells[edges[:-1] < -1].sum() == pytest.approx(0.5 - TAIL, abs=1e-3)


def test_a_mixture_in_one_place_has_a_band(ax):
    found = TwoPlaces()
    for apart, shaded in ((0.4, False), (0.9, True)):
        shift = apart * np.ones((4, 2))
        found.components = Components(found.components.weights, np.stack([-shift, shift]), found.components.cov)
        plots.plot_forecast(found, output=0, ax=ax)
        assert hasattr(ax.collections[-1], "get_coordinates") == shaded


def test_the_likeliest_half_is_in_every_mode():
    edges, cells = cell_probabilities(TwoPlaces().components, 0)
    found = likeliest(edges, cells, 0.5)
    assert [step for step, _, _ in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    half = 0.5 * stats.norm.ppf(0.75)  # of each mode, one half
    for n, (step, low, high) in enumerate(found):
        place = 2.0 * step + 3.0 if n % 2 else -3.0
        assert np.allclose([low, high], [place - half, place + half], atol=2 * (edges[1] - edges[0]))


def test_one_step_of_a_mixture_has_a_column_of_its_own(ax):
    plots.plot_forecast(TwoPlaces(1), output=0, ax=ax)
    assert ax.collections[0].get_coordinates()[0, :, 0].tolist() == [0.5, 1.5]


def test_a_colour_may_be_chosen(ax):
    plots.plot_forecast(Prediction(), np.zeros((3, 2)), ax=ax, colour="red")
    assert [each.get_color() for each in ax.get_lines()[:4]] == ["red", "red", "C1", "C1"]


def test_a_forecast_alone_counts_steps_and_shows_all_outputs():
    ax = plots.plot_forecast(Prediction())
    assert labels(ax) == ["left, forecast, 95 %", "right, forecast, 95 %"]
    assert ax.get_xlabel() == "steps ahead"
    assert line(ax, "left, forecast, 95 %")[0].tolist() == [1, 2, 3, 4]


def test_history_may_be_a_frame_with_its_columns_in_any_order():
    pyarrow = pytest.importorskip("pyarrow")
    ax = plots.plot_forecast(Prediction(), pyarrow.table({"right": [5.0, 6.0], "left": [1.0, 2.0]}), output=0)
    assert line(ax, "left, observed")[1].tolist() == [1, 2]


def test_states_come_with_their_truth_and_only_the_last_of_them():
    mean = np.arange(10.0).reshape(5, 2)
    ax = plots.plot_states(beliefs(mean), truth=mean + 1, state=1, label="smoothed", last=2)
    assert labels(ax) == ["smoothed 1, 95 %", "true smoothed 1"]
    assert line(ax, "smoothed 1, 95 %")[0].tolist() == [3, 4]
    assert line(ax, "true smoothed 1")[1].tolist() == [8, 10]
    assert np.allclose(band(ax), [7 - 0.98, 9 + 0.98], atol=1e-4)


def test_a_transition_is_drawn_with_the_truth_on_the_same_grid():
    grid = np.linspace(-1, 1, 5)
    for truth in (np.sin, np.sin(grid)):
        ax = plots.plot_transition(one_state(0.5), grid, truth=truth)
        assert np.allclose(line(ax, "truth")[1], np.sin(grid))
        assert np.allclose(line(ax, "learned, 95 % of f(x, w)")[1], 2 * grid)
        assert np.allclose(band(ax), [-2 - 0.98, 2 + 0.98], atol=1e-4)


def test_a_history_shows_validation_data_where_there_are_any():
    ax = plots.plot_history(history([25, 50], [-1.0, 1.0], [-2.0, 0.5], stop_reason="no progress"))
    assert line(ax, "validation data")[1].tolist() == [-2, 0.5]
    assert ax.get_title() == "no progress"
    assert labels(plots.plot_history(history([25], [0.0]))) == ["objective"]


def test_skill_is_drawn_by_ranges_of_horizons_for_every_forecast(ax):
    scores = {name: {"rmse": [0.1, 0.2], "coverage": [0.9, 1.0]} for name in ("model", "linear", "last value")}
    skill = SimpleNamespace(ranges=((1, 1), (2, 10)), scores=scores, in_sample=False)
    assert plots.plot_skill(skill, ax=ax) is ax
    assert labels(ax) == ["model", "linear", "last value"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "2 to 10"]
    assert ax.lines[0].get_ydata().tolist() == [0.1, 0.2]
    assert "held-out" in ax.get_title()
    assert plots.plot_skill(skill, "coverage").get_ylabel() == "coverage"
    with pytest.raises(ValueError, match="metric must be one of rmse, coverage"):
        plots.plot_skill(skill, "mse")


def test_a_check_shows_how_many_steps_are_trusted():
    futures = np.random.default_rng(0).normal(size=(500, 4, 2))
    check = compare_with_samples(np.zeros((4, 2)), np.array([[1.0, 1.0], [1.0, 1.0], [3.0, 1.0], [1.0, 1.0]]), futures)
    ax = plots.plot_check(check)
    assert check.trusted == 2
    assert ax.get_title() == "2 of 4 steps agree with samples"
    assert close(array(line(ax, "std of the forecast / std of the samples")[1]), array(check.std_ratio[:, 0]))


def test_bars_of_calibrated_forecasts_end_in_the_band():
    y = np.random.default_rng(0).normal(size=(2000, 1))
    y[:10] = np.nan
    ax = plots.plot_pit(metrics.pit(y, np.zeros_like(y), np.ones_like(y)), bins=8)
    heights = [patch.get_height() for patch in ax.patches[:8]]
    assert sum(heights) == 1990
    span = ax.patches[8].get_extents().transformed(ax.transData.inverted())
    inside = sum(span.y0 <= height <= span.y1 for height in heights)
    assert span.y0 < 1990 / 8 < span.y1
    assert inside >= 6


@pytest.mark.parametrize(("count", "bins"), [(10, 1), (57, 5), (1000, 10)])
def test_bars_of_a_calibrated_forecast_lie_in_the_band_with_the_probability_that_it_says(count, bins):
    ax = plots.plot_pit(np.linspace(0, 1, count), bins=bins, ax=plt.figure().add_subplot())
    (band,) = [patch for patch in ax.patches if patch.get_label() == "95 % if calibrated"]
    box = band.get_path().get_extents(band.get_patch_transform())
    assert np.allclose((box.y0, box.y1), stats.binom.interval(0.95, count, 1 / bins))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.plot_forecast(Prediction(), output="middle"), "output must be one of left, right; got 'middle'"),
        (lambda: plots.plot_forecast(Prediction(), output=2), "output must be less than 2, got 2"),
        (lambda: plots.plot_forecast(Prediction(), np.zeros((5, 3))), r"history must have shape \(time, 2\), got \(5, 3\)"),
        (lambda: plots.plot_forecast(Prediction(), np.zeros((5, 2)), last=0), "last must be at least 1, got 0"),
        (lambda: plots.plot_states(beliefs(np.zeros((3, 1))), np.zeros(4)), r"truth must have shape \(3, 1\), got \(4, 1\)"),
        (lambda: plots.plot_transition(None, np.zeros((3, 2))), "grid must have 1 axis"),
        (lambda: plots.plot_pit([0.5, 1.5]), "pit must hold values between 0 and 1"),
        (lambda: plots.plot_pit([np.nan]), "pit must hold values between 0 and 1"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def fail(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ImportError, match=r"pip install 'prodssm\[plot\]'"):
        plots.plot_history(history([25], [0.0]))
