"""A report is one page that asks for nothing, says the model's own numbers, and shows user's text as text."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from browser import CHROMIUM, Browser
from small_models import linear_prodssm, without_training

import prodssm as ps
from prodssm.data.series import Series, part_of
from prodssm.evaluation import report, report_findings
from prodssm.evaluation.report_html import name_of, say, tag, unit_of
from prodssm.evaluation.report_measures import are_training_data, gaps, horizon_groups, origins
from prodssm.evaluation.report_pictures import MOST_SERIES, Pictures, TimeAxis, compact, decimate, points_per_line
from prodssm.evaluation.report_sections import choices_section

HOSTILE = "</script><script>alert(1)</script>"
OUTPUTS, CONTROL = ("level (m)", HOSTILE), "pump & <b>valve</b> (V)"
VOID = {"meta", "link", "br", "input"}
RANGES = {"count": 0.0, "number": 0.06, "percent": 0.06}  # largest relative rounding of the text of a number


# ---------------------------------------------------------------- models


@pytest.fixture(autouse=True, scope="module")
def promotion():
    """optax mixes its integer step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def small(**settings):
    settings = {"hidden": (), "progress": False, "recipe": ps.Recipe(iterations=2, validation=0.0)} | settings
    return ps.ProDSSM(**settings)


def tank_frames():
    """Two series with two outputs, a gap and a control, as one frame whose columns have hostile names."""
    pyarrow = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    length = (48, 36)
    level = np.concatenate([np.sin(0.3 * np.arange(n)) + 0.1 * rng.normal(size=n) for n in length])
    level[20:26] = np.nan
    columns = {OUTPUTS[0]: level, HOSTILE: 3.0 + 0.5 * rng.normal(size=84), CONTROL: rng.normal(size=84)}
    columns |= {"time (s)": np.concatenate([0.5 * np.arange(n) for n in length]), "run": np.repeat([1, 2], length)}
    return ps.frames.series_of(pyarrow.table(columns), controls=CONTROL, time="time (s)", group="run")


def wave(length=40):
    return np.sin(0.4 * np.arange(length)) + 0.1 * np.random.default_rng(0).normal(size=length)


@pytest.fixture(scope="module")
def ensemble():
    """Two models with latent states, of two series with a control."""
    data = tank_frames()
    return small(latent_dim=2, emission="linear", residual=True, n_estimators=2).fit(data), data


@pytest.fixture(scope="module")
def single():
    """One model whose only state is observed as it is, with local weights."""
    return small(emission="identity").fit(wave()), wave()


def written(model, data, folder):
    path = folder / "report.html"
    assert model.report(data, path) is None
    assert [each.name for each in folder.iterdir()] == ["report.html"]
    return parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(ensemble, tmp_path_factory):
    return written(*ensemble, tmp_path_factory.mktemp("ensemble"))


@pytest.fixture(scope="module")
def plain_page(single, tmp_path_factory):
    return written(*single, tmp_path_factory.mktemp("single"))


# ---------------------------------------------------------------- reading pages


class Node:
    def __init__(self, name, attributes, parent=None):
        self.name, self.attributes, self.parent, self.children = name, dict(attributes), parent, []

    def __getitem__(self, attribute):
        return self.attributes[attribute]

    def __contains__(self, attribute):
        return attribute in self.attributes

    @property
    def text(self):
        return "".join(each if isinstance(each, str) else each.text for each in self.children)

    def all(self, *names, attribute=None):
        """All elements below, of some names or with an attribute."""
        for each in self.children:
            if isinstance(each, Node):
                if (not names or each.name in names) and (attribute is None or attribute in each):
                    yield each
                yield from each.all(*names, attribute=attribute)

    def one(self, name, **attributes):
        (found,) = [
            each for each in self.all(name) if all(each.attributes.get(key) == value for key, value in attributes.items())
        ]
        return found


class Reader(HTMLParser):
    """A tree of elements; raises where an element is not closed."""

    def __init__(self):
        super().__init__()
        self.root = self.here = Node("root", {})

    def handle_starttag(self, tag, attrs):
        node = Node(tag, attrs, self.here)
        self.here.children.append(node)
        self.here = self.here if tag in VOID else node

    def handle_endtag(self, tag):
        assert self.here.name == tag, f"<{self.here.name}> is closed by </{tag}>"
        self.here = self.here.parent

    def handle_data(self, data):
        self.here.children.append(data)


def parse(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.here is reader.root
    reader.root.source = text
    return reader.root


def read_number(text):
    return float(text.split()[0].replace(",", "").replace("\N{MINUS SIGN}", "-"))


def keyed(page):
    """Exact values of the numbers that were measured, by their keys."""
    return {each["data-key"]: float(each["data-value"]) for each in page.all(attribute="data-key")}


def pictures_of(page):
    return json.loads(page.one("script", id="pictures").text)


def section(page, anchor):
    return next(each for each in page.all("section") if each["aria-labelledby"] == anchor)


# ---------------------------------------------------------------- the page


def test_the_page_asks_for_nothing_and_forbids_all_else(page):
    addresses = [each[name] for each in page.all() for name in ("src", "href", "srcset", "action") if name in each]
    assert all(each.startswith("#") or each == "data:," for each in addresses)
    assert not re.search(
        r"url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(", page.one("style").text + page.source.split("<script>")[1]
    )
    policy = page.one("meta", **{"http-equiv": "Content-Security-Policy"})["content"]
    script = [each for each in page.all("script") if "type" not in each]
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].text.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_page_can_be_read_by_everyone(page):
    assert page.one("html")["lang"] == "en"
    assert len(list(page.all("h1"))) == 1
    anchors = {each["id"] for each in page.all("h2")}
    assert {each["href"].removeprefix("#") for each in page.one("nav").all("a")} | {"verdict"} == anchors
    for table in page.all("table"):
        assert len(list(table.all("caption"))) == 1
        assert all(each["scope"] in ("col", "row") for each in table.all("th"))
    for figure in page.all("figure"):
        assert figure.one("figcaption").text
        assert next(figure.all("div", attribute="data-figure"))["data-label"]
    for picker in page.all("select"):
        assert picker.parent.name == "label"
        assert picker.parent.text.strip()
    assert "pictures are left out" in page.one("noscript").text


def test_every_picture_of_the_page_has_data_and_every_view_its_lines(page, plain_page):
    for each in (page, plain_page):
        pictures = pictures_of(each)
        places = {place["data-figure"] for place in each.all("div", attribute="data-figure")}
        assert places == pictures["figures"].keys()
        for figure in pictures["figures"].values():
            for panels in figure["views"].values():
                lines = [pictures["lines"][layer["d"]] for panel in panels for layer in panel["layers"]]
                assert lines
                for line in lines:
                    columns = [part for name, part in line.items() if name in ("x", "y", "s", "lo", "hi", "lo2", "hi2")]
                    assert len({len(part) for part in columns}) == 1
                    assert "i" not in line or len(line["i"]) == len(line["y"]) - 1


@pytest.mark.parametrize("which", ["ensemble", "single"])
def test_every_number_is_that_of_the_model(which, request, page, plain_page):
    model, data = request.getfixturevalue(which)
    found = list((page if which == "ensemble" else plain_page).all(attribute="data-value"))
    sourced = [each for each in found if "data-source" in each]
    assert len(sourced) > 15
    for each in sourced:
        value = eval(each["data-source"], {"model": model, "data": data})
        assert float(each["data-value"]) == pytest.approx(float(value), rel=1e-12, nan_ok=True), each["data-source"]
    for each in found:
        value = float(each["data-value"])
        if math.isfinite(value):
            shown = read_number(each.text) / (100 if each["data-kind"] == "percent" else 1)
            assert shown == pytest.approx(value, rel=RANGES[each["data-kind"]], abs=0.006 * (each["data-kind"] == "percent"))
        else:
            assert each.text == "\N{EN DASH}"


@pytest.mark.parametrize("which", ["ensemble", "single"])
def test_words_of_the_model_are_its_own(which, request, page, plain_page):
    model, _ = request.getfixturevalue(which)
    found = list((page if which == "ensemble" else plain_page).all(attribute="data-words"))
    assert len(found) > 15
    for each in found:
        assert each.text == str(eval(each["data-words"], {"model": model}))


def test_no_number_stands_in_the_text_without_its_exact_value(page, plain_page):
    def unmarked(node):
        marked = {"data-value", "data-words"} & node.attributes.keys() or node.attributes.get("class") in ("name", "words")
        if marked or node.name in ("script", "style", "code", "time", "option", "title"):
            return ""
        return "".join(each if isinstance(each, str) else unmarked(each) for each in node.children)

    for each in (page, plain_page):
        assert not re.findall(r".*\d.*", unmarked(each.one("body")))


def test_what_users_call_their_columns_is_text(page):
    assert len(list(page.all("script"))) == 2
    assert not list(page.all("b"))
    assert HOSTILE not in page.source
    assert any(each.text == HOSTILE for each in page.all("span"))
    titles = [panel["t"] for panel in pictures_of(page)["figures"]["data"]["views"]["0"]]
    assert titles == [*OUTPUTS, CONTROL]
    assert "<" not in page.one("script", id="pictures").text
    assert "level in m" in section(page, "calibration").text


# ---------------------------------------------------------------- what is measured


def test_calibration_is_that_of_forecasts_from_the_origins(ensemble, page):
    model, data = ensemble
    parts = {name: [] for name in ("truth", "mean", "std", "last", "low", "high")}
    for series, places in zip(data, origins(data), strict=True):
        past, horizon = len(series) // 2, len(series) // 4
        assert places[0] == past
        assert places[-1] == len(series) - horizon
        for n in places:
            ahead = model.forecast(part_of(series, n - past, n), horizon, u=series.u[n : n + horizon])
            low, high = ahead.interval(0.8)
            last = [column[np.isfinite(column)][-1] for column in np.asarray(series.y)[n - past : n].T]
            made = np.asarray(series.y)[n : n + horizon], ahead.mean, ahead.std, np.tile(last, (horizon, 1)), low, high
            for name, part in zip(parts, made, strict=True):
                parts[name].append(part[3:7])
    truth, mean, std, last, low, high = (np.concatenate(each) for each in parts.values())
    seen, said = np.isfinite(truth), keyed(page)
    standardised = ((truth - mean) / std)[seen]
    assert said["coverage/4/0.8"] == pytest.approx(((low <= truth) & (truth <= high))[seen].mean())
    assert said["bias/4"] == pytest.approx(standardised.mean())
    assert said["spread/4"] == pytest.approx(standardised.std())
    for k in range(2):
        assert said[f"rmse/4/{k}"] == pytest.approx(ps.metrics.rmse(truth[:, k], mean[:, k]))
        assert said[f"last_value/4/{k}"] == pytest.approx(ps.metrics.rmse(truth[:, k], last[:, k]))


def test_the_verdict_comes_first_and_says_skill_coverage_and_whether_data_were_trained_on(ensemble, page, tmp_path):
    model, data = ensemble
    assert next(page.one("main").all("section")) is section(page, "verdict")
    text = section(page, "verdict").one("p").text
    best = min(scores["rmse"] for name, scores in model.skill_.overall.items() if name != "model")
    gain = keyed(page)["gain"]
    assert gain == pytest.approx(abs(1 - model.skill_.overall["model"]["rmse"] / best))
    assert ("closer to" if model.skill_.overall["model"]["rmse"] < best else "further from") in text
    assert "These are the data that the model was fitted to" in text
    other = written(model, data[0], tmp_path)
    assert "These are not exactly the data that the model was fitted to" in section(other, "verdict").text
    assert all(each["data-choice"] != "series" for each in other.all("select"))


def test_training_data_are_recognised_by_their_scaling(ensemble, single):
    model, data = ensemble
    assert are_training_data(model, data)
    assert are_training_data(model, data[::-1])
    assert not are_training_data(model, data[:1])
    assert are_training_data(single[0], [Series(single[1])])
    assert not are_training_data(single[0], [Series(single[1][:-1])])


def test_the_parts_of_the_variance_are_those_of_the_model(ensemble, page):
    model, data = ensemble
    series, n = data[0], len(data[0])
    ahead = [model.forecast(part_of(series, k - n // 2, k), n // 4, u=series.u[k : k + n // 4]) for k in origins(data)[0]]
    parts = [each.decompose() for each in ahead]
    means = {name: np.mean([getattr(each, name)[4, 1] for each in parts]) for name in ("epistemic", "aleatoric", "measurement")}
    said = keyed(page)
    for name, value in means.items():
        assert said[f"share/{name}/5/1"] == pytest.approx(value / sum(means.values()))
    assert said["std/5/1"] == pytest.approx(np.sqrt(np.mean([each.cov[4, 1, 1] for each in ahead])))
    assert "disagree" in section(page, "variance").text


def test_what_was_chosen_is_told_apart_from_what_was_given(single, plain_page):
    def rows(node):
        return {next(each.all("code")).text: [cell.text for cell in each.all("td")] for each in node.one("tbody").all("tr")}

    found = rows(section(plain_page, "choices"))
    assert found["emission"] == ["identity", "given"]
    assert found["latent_dim"] == ["1", "the default"]
    assert found["residual"] == ["False", single[0].choices_.reasons["residual"]]
    choices = replace(single[0].choices_, window=200, reasons={"window": "9000 time steps"})
    model = SimpleNamespace(choices_=choices, **single[0].get_params(deep=False))
    assert rows(parse(choices_section(model)))["window"] == ["200", "9000 time steps"]


def test_why_local_weights_are_not_decomposed_is_told_in_the_words_of_the_library(single, plain_page):
    model, data = single
    with pytest.raises(ValueError, match="weights='local'") as error:
        model.forecast(data, 3).decompose()
    assert section(plain_page, "variance").one("blockquote").text == str(error.value)


def test_the_transition_is_the_model_s(single, plain_page, ensemble, page):
    figures = pictures_of(plain_page)
    (panel,) = figures["figures"]["transition"]["views"][""]
    line = figures["lines"][panel["layers"][1]["d"]]
    learned = single[0].transition(np.array(line["x"])[:, None])
    assert np.allclose(learned.mean[:, 0], line["y"], rtol=1e-3, atol=1e-3)
    assert np.allclose(learned.std[:, 0], line["s"], rtol=1e-3, atol=1e-3)
    linear, data = ensemble
    assert pictures_of(page)["choices"]["along"] == ["x0", "x1"]
    states = np.concatenate([linear.smooth(each).mean for each in data])
    control = np.concatenate([each.u for each in data]).mean(axis=0)
    around = states.mean(axis=0) + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    at, *moved = linear.transition(around, np.tile(control, (3, 1))).mean
    for k, each in enumerate(moved):
        for n in range(2):
            assert keyed(page)[f"slope/{n}/{k}"] == pytest.approx((each - at)[n], rel=1e-3, abs=1e-6)


def test_a_model_without_controls_also_forecasts_beyond_the_end(single, plain_page, page):
    model, data = single
    pictures = pictures_of(plain_page)
    labels = pictures["choices"]["origin"]["0"]
    assert labels[-1] == "the end of the data"
    (panel,) = pictures["figures"]["forecast"]["views"][f"0/{len(labels) - 1}"]
    line = next(pictures["lines"][each["d"]] for each in panel["layers"] if each["n"] == "forecast")
    low, high = model.forecast(data, 10).interval(0.95)
    assert line["x0"] == 40
    assert np.allclose(line["lo"], low[:, 0], rtol=1e-4)
    assert np.allclose(line["hi"], high[:, 0], rtol=1e-4)
    assert "the end of the data" not in pictures_of(page)["choices"]["origin"]["0"]


# ---------------------------------------------------------------- writing


def test_nothing_is_left_behind_if_the_report_fails(single, tmp_path, monkeypatch):
    model, data = single
    path = tmp_path / "report.html"
    path.write_text("before")
    monkeypatch.setattr(report, "find", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.report(data, path)
    monkeypatch.setattr(report, "find", lambda *_: None)
    monkeypatch.setattr(report, "page", lambda *_: "page")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        model.report(data, path)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "before"


def test_wrong_paths_and_data_are_errors_before_any_work(single, tmp_path, monkeypatch):
    model, data = single
    monkeypatch.setattr(report, "find", lambda *_: pytest.fail("worked"))
    with pytest.raises(FileNotFoundError, match="create it first"):
        model.report(data, tmp_path / "nowhere" / "report.html")
    with pytest.raises(IsADirectoryError):
        model.report(data, tmp_path)
    with pytest.raises(ValueError, match="data must have 1 outputs like those of fit, got 2"):
        model.report(np.zeros((10, 2)) + np.arange(10.0)[:, None], tmp_path / "report.html")
    with pytest.raises(Exception, match="not fitted"):
        small().report(data, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_progress_is_shown_if_the_model_shows_any(single, tmp_path, capsys):
    model, data = single
    model.report(data, tmp_path / "report.html")
    assert not capsys.readouterr().err
    model.progress = True
    try:
        model.report(data, tmp_path / "report.html")
    finally:
        model.progress = False
    assert "report: 100%" in capsys.readouterr().err


def test_what_is_too_short_or_was_not_measured_is_said(single, tmp_path):
    model, _ = single
    skill, model.skill_ = model.skill_, None
    try:
        page = written(model, wave()[:2], tmp_path)
    finally:
        model.skill_ = skill
    text = page.one("main").text
    assert "was not measured when the model was fitted" in text
    assert "too short to be forecast" in text
    assert set(pictures_of(page)["figures"]) == {"data", "outputs", "forecast", "transition"}


@pytest.mark.parametrize("data", [wave()[:1], np.full(40, np.nan)], ids=["one row", "never observed"])
def test_a_past_that_cannot_be_scored_has_a_report_all_the_same(single, data, tmp_path):
    page = written(single[0], data, tmp_path)
    assert "too short to be forecast" in page.one("main").text or np.isnan(data).all()
    assert set(pictures_of(page)["figures"]) >= {"data", "outputs"}


def test_a_forecast_that_overflows_is_told(single, monkeypatch, tmp_path):
    model, data = single
    forecast, calls = type(model)._forecast_at, iter(range(100))

    def sometimes(self, *given, **more):
        if next(calls) % 3 == 0:
            raise FloatingPointError("the forecast overflows at step 7")
        return forecast(self, *given, **more)

    monkeypatch.setattr(type(model), "_forecast_at", sometimes)
    text = written(model, data, tmp_path).one("main").text
    assert "forecasts overflowed" in text
    assert "the forecast overflows at step 7" in text


# ---------------------------------------------------------------- pictures


def test_decimation_keeps_peaks_gaps_and_the_number_of_points():
    rng = np.random.default_rng(0)
    y = rng.normal(size=10_000)
    y[1234], y[4321], y[6000:6500] = 50.0, -50.0, np.nan
    kept = decimate(y, y, 400)
    assert len(kept) <= 400
    assert {0, 1234, 4321, 9999} <= set(kept.tolist())
    assert np.isnan(y[kept]).sum() >= 9  # one for each stretch of the gap
    assert (np.diff(kept) > 0).all()
    assert decimate(y[:300], y[:300], 400).tolist() == list(range(300))


def test_lines_of_many_series_have_fewer_points():
    one = [Series(np.arange(4.0))]
    assert points_per_line(one, 5) == 2000
    assert 200 < points_per_line(one * 10, 50) < 500
    assert points_per_line(one * MOST_SERIES, 500) == 60


def test_regular_time_is_told_by_differences_and_irregular_time_by_itself():
    regular = TimeAxis.of(Series(np.arange(4.0), time=[0.0, 0.5, 1.0, 1.5]))
    assert regular.line(np.array([1, 2, 3])) == {"x0": 0.5, "dx": 0.5}
    assert regular.line(np.array([0, 1, 3])) == {"x0": 0, "dx": 0.5, "i": [1, 2]}
    irregular = TimeAxis.of(Series(np.arange(4.0), time=[0.0, 0.5, 2.0, 2.5]))
    assert irregular.line(np.array([0, 2])) == {"x": [0, 2]}
    assert irregular.at(5) == 3.5


@pytest.mark.parametrize(
    ("freq", "zone", "shown", "name"),
    [
        # The clocks of Berlin change on 31 March 2024: hours that pass go on at the first offset, days are the wall's.
        ("h", "Europe/Berlin", ["2024-03-30 22:00", "2024-03-31", "2024-03-31 02:00", "2024-03-31 04:00"], "when (UTC+01:00)"),
        ("D", "Europe/Berlin", ["2024-03-30 22:00", "2024-04-01 22:00", "2024-04-03 22:00", "2024-04-05 22:00"], "when"),
        ("30s", None, ["2024-03-30 22:00", "2024-03-30 22:01", "2024-03-30 22:02", "2024-03-30 22:03"], "when"),
        ("MS", None, ["2024-04-01", "2024-06-01", "2024-08-01", "2024-10-01"], "when"),
    ],
)
def test_dates_are_told_as_dates_also_after_the_end(freq, zone, shown, name):
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range(shown[0], periods=5, freq=freq, tz=zone, name="when")
    axis = TimeAxis.of(ps.frames.series_of(pandas.DataFrame({"load": np.arange(5.0)}, index=index)))
    assert [axis.text(n) for n in (0, 2, 4, 6)] == shown
    drawn = axis.panel("load", "when", [])
    assert drawn["x"] == name
    assert drawn["date"] == np.datetime64(shown[0], "ms").astype(int)


def test_json_is_compact_and_harmless():
    assert compact({"a": np.array([1 / 3, 2.0, np.nan]), "b": [1, 2.5, "x"]}) == '{"a":[0.33333,2,null],"b":[1,2.5,"x"]}'
    pictures = Pictures(choices={"series": ["</script>&"]})
    assert not set("<>&") & set(pictures.to_json())
    assert json.loads(pictures.to_json())["choices"]["series"] == ["</script>&"]


def test_text_is_escaped_wherever_it_enters():
    assert say("{a} < b", a="<i>") == "&lt;i&gt; &lt; b"
    assert tag("p", "<i>", tag("b", "&"), title='"') == '<p title="&quot;">&lt;i&gt;<b>&amp;</b></p>'
    assert (name_of("flow in l/s"), unit_of("flow in l/s")) == ("flow", "l/s")


def test_horizons_gaps_and_origins_of_many_series():
    assert horizon_groups(1) == [(1, 1)]
    assert horizon_groups(50)[-1] == (32, 50)
    y = np.ones((6, 2))
    y[2:5, 1], y[0, 0] = np.nan, np.nan
    assert [tuple(each) for each in gaps([Series(y)])] == [(0, 1, 2, 5), (0, 0, 0, 1)]
    many = origins([Series(np.arange(40.0))] * 500)
    assert sum(map(len, many)) == 250
    assert origins([Series([1.0, 2.0])]) == [[]]


def test_findings_name_what_has_no_name(single):
    model, data = single
    names = report_findings._names(model, [Series(data)])
    assert names == report_findings.Names(("series 0",), ("y0",), (), ("y0",), "time step")


def test_texts_have_enough_contrast_in_light_and_dark():
    def luminance(colour):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(*colours):
        low, high = sorted(map(luminance, colours))
        return (high + 0.05) / (low + 0.05)

    css = report.asset("report.css").replace("prefers-color-scheme", "")
    palettes = [dict(re.findall(r"--(\w+): (#\w{6})", each)) for each in css.split("color-scheme: ")[1:]]
    assert len(palettes) == 4  # light, dark by choice, dark by preference, print
    assert palettes[1] == palettes[2]
    assert palettes[0] == palettes[3]
    for colours in palettes:
        for text in ("ink", "soft", "accent"):
            for ground in ("paper", "wash"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for line in ("blue", "orange", "green", "purple", "red", "teal", "pink", "grey"):
            assert contrast(colours[line], colours["paper"]) >= 4.5, line


# ---------------------------------------------------------------- large data


@pytest.mark.slow
def test_ten_series_of_ten_thousand_points_make_a_page_of_at_most_three_megabytes(ensemble, tmp_path):
    model, _ = ensemble
    rng = np.random.default_rng(0)

    def long():
        y = np.cumsum(rng.normal(size=(10_000, 2)), axis=0)
        y[rng.uniform(size=y.shape) < 0.05] = np.nan
        return Series(y, u=rng.normal(size=(10_000, 1)), time=0.5 * np.arange(10_000))

    data = [long() for _ in range(10)]
    page = written(model, data, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    pictures, said = pictures_of(page), keyed(page)
    assert "decimated" in section(page, "data").text
    for n, series in enumerate(data):
        for k, panel in enumerate(pictures["figures"]["data"]["views"][str(n)][:2]):
            drawn = [value for value in pictures["lines"][panel["layers"][-1]["d"]]["y"] if value is not None]
            assert len(drawn) <= said["decimated"]
            assert np.allclose((min(drawn), max(drawn)), (np.nanmin(series.y[:, k]), np.nanmax(series.y[:, k])), rtol=1e-4)


@pytest.mark.slow
def test_of_many_series_the_first_are_drawn_and_all_are_counted(single, tmp_path):
    model, data = single
    page = written(model, [data] * (MOST_SERIES + 5), tmp_path)
    assert len(pictures_of(page)["choices"]["series"]) == MOST_SERIES
    assert f"Drawn are the first {MOST_SERIES} series" in page.one("main").text
    assert "1,800 time steps in 45 series" in page.one("main").text


# ---------------------------------------------------------------- in a browser

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def file(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page.source, encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, file):
    browser.messages.clear()
    browser.requests.clear()
    browser.open(file)
    yield browser
    assert browser.messages == []
    assert set(browser.requests) == {file.as_uri()}


def place(browser, figure, across, down=0.5):
    """Where a point of the first panel of a picture is in the window, by fractions of its width and height."""
    box = f"document.querySelector('[data-figure=\"{figure}\"] svg').getBoundingClientRect()"
    browser.run(f"scrollTo(0, scrollY + {box}.top - 200)")
    left, top, width, height = browser.run(f"(b => [b.left, b.top, b.width, b.height])({box})")
    return left + across * width, top + down * height


def ticks(browser, figure):
    return browser.run(
        f"[...document.querySelectorAll('[data-figure=\"{figure}\"] svg:last-child text')].map(t => t.textContent).join()"
    )


def drawn(browser, figure):
    return browser.run(f"document.querySelector('[data-figure=\"{figure}\"] svg path').getAttribute('d')")


@in_chromium
@pytest.mark.slow
class TestInChromium:
    def test_the_page_is_drawn_without_a_word_on_every_screen(self, opened, file):
        for size in (
            {"width": 1200},
            {"width": 390, "touch": True},
            {"width": 1200, "dark": True},
            {"width": 320},
            {"media": "print"},
        ):
            opened.open(file, **size)
            shapes = "[...document.querySelectorAll('[data-figure]')].map(f => f.querySelectorAll('svg path, svg rect').length)"
            assert len(opened.run(shapes)) == 9
            assert min(opened.run(shapes)) > 1
            assert opened.run("document.documentElement.scrollWidth <= innerWidth"), size

    @pytest.mark.parametrize(
        ("freq", "wanted"), [("h", "03-31"), ("min", "03:30"), ("D", "2024-04-04"), ("MS", "2026"), ("YS", "2050")]
    )
    def test_dates_are_on_the_axis_of_time(self, browser, freq, wanted, tmp_path):
        pandas = pytest.importorskip("pandas")
        index = pandas.date_range("2024-03-30 03:20", periods=60, freq=freq, name="when")
        frame = pandas.DataFrame({"load": wave(60)}, index=index)
        with without_training():
            linear_prodssm().fit(frame).report(frame, tmp_path / "report.html")
        browser.messages.clear()
        browser.open(tmp_path / "report.html")
        assert wanted in ticks(browser, "data").split(",")
        assert browser.messages == []

    def test_texts_are_the_numbers_of_the_model(self, opened, ensemble):
        model, data = ensemble
        numbers = "[...document.querySelectorAll('[data-source]')].map(e => [e.dataset.source, e.dataset.value, e.textContent])"
        found = opened.run(numbers)
        assert len(found) > 15
        for source, exact, text in found:
            value = float(eval(source, {"model": model, "data": data}))
            assert float(exact) == pytest.approx(value, rel=1e-12, nan_ok=True)
            if math.isfinite(value):
                assert read_number(text) / (100 if text.endswith("%") else 1) == pytest.approx(value, rel=0.06, abs=0.006)

    def test_the_picker_of_series_changes_pictures_and_origins_from_the_keyboard(self, opened):
        before, origins_before = (
            drawn(opened, "outputs"),
            opened.run("document.querySelector('[data-choice=origin]').innerText"),
        )
        opened.run("document.querySelector('[data-choice=series]').focus()")
        opened.press("ArrowDown", windowsVirtualKeyCode=40)
        assert opened.run("document.querySelector('[data-choice=series]').selectedOptions[0].textContent") == "run 2"
        assert drawn(opened, "outputs") != before
        assert opened.run("document.querySelector('[data-choice=origin]').innerText") != origins_before
        forecast = drawn(opened, "forecast")
        opened.run("document.querySelector('[data-choice=origin]').focus()")
        opened.press("ArrowDown", windowsVirtualKeyCode=40)
        assert drawn(opened, "forecast") != forecast

    def test_pointing_reads_the_values_of_the_data(self, opened, ensemble):
        _, data = ensemble
        opened.mouse("mouseMoved", *place(opened, "data", 0.3))
        tip = opened.run("document.querySelector('[data-figure=data] .tip').innerText")
        when = float(re.search(r"time \(s\) ([\d.]+)", tip)[1])
        shown = read_number(re.search(r"observed (.+)", tip)[1])
        assert shown == pytest.approx(float(data[0].y[round(when / 0.5), 0]), rel=1e-4)
        assert opened.run("document.querySelector('[data-figure=data] .cursor').getAttribute('visibility')") == "visible"
        opened.mouse("mouseMoved", 5, 5)
        assert opened.run("document.querySelector('[data-figure=data] .tip').hidden")

    def test_dragging_zooms_linked_pictures_and_a_double_click_resets_them(self, opened):
        before = ticks(opened, "data"), ticks(opened, "states")
        opened.drag(place(opened, "data", 0.4), place(opened, "data", 0.6))
        zoomed = ticks(opened, "data"), ticks(opened, "states")
        assert zoomed[0] != before[0]
        assert zoomed[1] != before[1]
        assert opened.run("document.querySelectorAll('[data-zoomed]').length") == 3
        assert opened.run("document.querySelectorAll('.reset').length") == 3
        where = place(opened, "data", 0.5)
        for _ in range(2):
            opened.drag(where, where)
        assert (ticks(opened, "data"), ticks(opened, "states")) == before

    def test_fingers_zoom_and_reset_as_well(self, opened, file):
        opened.open(file, width=390, height=800, touch=True)
        before, (x, y) = ticks(opened, "data"), place(opened, "data", 0.4)

        def touch(*path):
            opened.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": path[0], "y": y}])
            for each in path[1:]:
                opened.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": each, "y": y}])
            opened.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

        touch(x, x + 30, x + 60, x + 90)
        assert ticks(opened, "data") != before
        touch(x)
        assert not opened.run("document.querySelector('[data-figure=data] .tip').hidden")
        touch(x)
        assert ticks(opened, "data") == before

    def test_the_keyboard_reads_zooms_and_resets(self, opened):
        opened.run("document.querySelector('[data-figure=outputs]').focus()")
        before = ticks(opened, "outputs")
        opened.press("ArrowRight")
        opened.press("ArrowRight")
        assert re.match(r"time \(s\) [\d.]+, observed ", opened.run("document.getElementById('live').textContent"))
        opened.press("+")
        assert ticks(opened, "outputs") != before
        opened.press("Escape")
        assert ticks(opened, "outputs") == before

    def test_a_layer_is_hidden_by_its_name_in_the_legend(self, opened):
        layers = "[...document.querySelectorAll('#figure-outputs g[data-layer]')].map(g => g.dataset.layer)"
        assert "filtered" in opened.run(layers)
        opened.run(
            "[...document.querySelectorAll('#figure-outputs .legend button')].find(b => b.innerText == 'filtered').click()"
        )
        assert "filtered" not in opened.run(layers)
        assert "smoothed" in opened.run(layers)

    def test_light_and_dark_follow_the_system_and_the_button(self, opened, file):
        colour = "getComputedStyle(document.body).backgroundColor"
        assert opened.run(colour) == "rgb(255, 255, 255)"
        opened.run("document.getElementById('theme').click()")
        assert opened.run(colour) == "rgb(20, 24, 29)"
        opened.open(file, dark=True)
        assert opened.run(colour) == "rgb(20, 24, 29)"
        opened.run("document.getElementById('theme').click()")
        assert opened.run(colour) == "rgb(255, 255, 255)"

    def test_print_is_light_without_controls_and_with_all_that_is_folded(self, opened, file):
        opened.open(file, dark=True, media="print")
        assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        hidden = (
            "[...document.querySelectorAll('.bar, nav, .controls, .hint')].every(e => getComputedStyle(e).display == 'none')"
        )
        assert opened.run(hidden)
        folded = "[...document.querySelectorAll('details')]"
        opened.run(f"addEventListener('beforeprint', () => {{ window.all = {folded}.every(d => d.open) }})")
        assert opened.pdf().startswith(b"%PDF")
        assert opened.run("window.all")
        assert not opened.run(f"{folded}.some(d => d.open)")

    def test_text_and_tables_do_without_scripts(self, opened, file):
        opened.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            opened.open(file)
            text = opened.run("document.body.innerText")
            assert "pictures are left out" in text
            assert "Share of values inside" in text
            assert opened.run("document.querySelectorAll('svg').length") == 0
            assert opened.run(
                "[...document.querySelectorAll('figure, .tools')].every(e => getComputedStyle(e).display == 'none')"
            )
        finally:
            opened.call("Emulation.setScriptExecutionDisabled", value=False)

    def test_hostile_names_run_nothing(self, opened, file):
        opened.call("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => { window.attacked = true }")
        opened.open(file)
        for figure in ("data", "forecast"):
            opened.mouse("mouseMoved", *place(opened, figure, 0.5))
        assert opened.run("window.attacked") is None
        assert HOSTILE in opened.run("document.querySelector('h1').innerText")
        assert opened.run("document.querySelectorAll('script').length") == 2


def test_groups_and_features_of_the_calendar_have_their_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-03-01", periods=60, freq="h", name="when")
    frames = [pandas.DataFrame({"load": np.sin(0.3 * np.arange(60)), "site": site}, index=index) for site in ("north", "south")]
    data = ps.frames.series_of(pandas.concat(frames), group="site", time="when", calendar="hour_of_day")
    with without_training():
        model = linear_prodssm().fit(data)
    model.report(data, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "north" in text
    assert "hour_of_day.3" in text


@pytest.mark.slow
def test_a_mixture_has_a_report_whose_bands_are_its_own_quantiles(tmp_path):
    with without_training():
        parts = {
            "method": ps.Moments(components=3),
            "hidden": (4,),
            "emission": "identity",
            "residual": True,
            "n_estimators": 1,
        }
        model = small(**parts).fit(wave())
    page = written(model, wave(), tmp_path)
    content = json.loads(page.one("script", id="pictures").text)
    ahead = model.forecast(wave(), 10)
    assert ahead.components.mean.shape[0] > 1
    last = content["choices"]["origin"]["0"].index("the end of the data")
    panel = content["figures"]["forecast"]["views"][f"0/{last}"][0]
    band = next(content["lines"][layer["d"]] for layer in panel["layers"] if layer["k"] == "band")
    for name, probability in (("y", 0.5), ("lo", 0.025), ("hi", 0.975)):
        assert np.allclose(band[name], ahead.quantile(probability)[:, 0], rtol=1e-3, atol=1e-3)
