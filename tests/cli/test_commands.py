"""The command line, from files to files."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from small_models import linear_prodssm, without_training

import prodssm as ps

pandas = pytest.importorskip("pandas")
pytest.importorskip("typer")
program = pytest.importorskip("prodssm.cli.program")
ROWS = 60


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch, tmp_path):
    """Files in a folder of its own; no cache of programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ps, "enable_compilation_cache", lambda: None)
    monkeypatch.setattr(program.warnings, "formatwarning", program.warnings.formatwarning)


def record(**more):
    index = pandas.date_range("2024-03-29", periods=ROWS, freq="h", tz="Europe/Berlin").tz_convert("UTC")
    pump = np.cos(np.arange(ROWS))
    level = np.sin(0.3 * np.arange(ROWS)) + 0.1 * np.random.default_rng(0).standard_normal(ROWS)
    return pandas.DataFrame({"when": index, "level": level, "pump": pump} | more)


@pytest.fixture
def data(tmp_path):
    """A CSV file with a gap."""
    frame = record()
    frame.loc[20:24, "level"] = np.nan
    frame.to_csv(tmp_path / "data.csv", index=False)
    return "data.csv"


@pytest.fixture(scope="module")
def fitted():
    with without_training():
        return linear_prodssm().fit(ps.frames.series_of(record(), time="when", controls="pump"))


@pytest.fixture
def model(fitted, tmp_path):
    fitted.save(tmp_path / "m.safetensors")
    return "m.safetensors"


def run(*words):
    return program.run([str(word) for word in words])


def test_the_version_is_printed_without_a_command(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"{ps.__version__}\n"


def test_fit_reads_its_configuration_and_flags_win(data, tmp_path):
    (tmp_path / "run.toml").write_text(
        'output = "level"\ncontrol = ["pump"]\niterations = 3\n[model]\nhidden = []\nlatent_dim = 2\nemission = "linear"\n'
        "[recipe]\nlearning_rate = 0.02\n"
    )
    with without_training():
        assert run("fit", data, "--config", "run.toml", "--model", "m.safetensors", "--metrics", "m.json", "--quiet") == 0
    found = ps.load("m.safetensors")
    assert (found.latent_dim, found.recipe.iterations, found.recipe.learning_rate) == (2, 3, 0.02)
    assert found.layout_.time == "when"
    assert found.layout_.controls == ("pump",)
    facts = json.loads((tmp_path / "m.json").read_text())
    assert facts["outputs"] == ["level"]
    with without_training():
        assert run("fit", data, "--config", "run.toml", "--iterations", 4, "--model", "n.safetensors", "--quiet") == 0
    assert ps.load("n.safetensors").recipe.iterations == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cls"), [("poisson", ps.Poisson), ("bernoulli", ps.Bernoulli), ("student_t", ps.StudentT), ("gaussian", None)]
)
def test_a_likelihood_is_chosen_by_name_and_forecasts_stay_in_its_support(name, cls, tmp_path):
    events = (np.sin(0.3 * np.arange(ROWS)) > 0) * 1.0
    pandas.DataFrame({"events": events}).to_csv("events.csv", index=False)
    quick = 'emission = "linear"\nlatent_dim = 2\nhidden = []\n'
    (tmp_path / "run.toml").write_text(f"[model]\n{quick}")
    (tmp_path / "named.toml").write_text(f'[model]\nlikelihood = "{name}"\n{quick}')
    with without_training():
        words = ("fit", "events.csv", "--likelihood", name, "--config", "run.toml", "--model", "m.safetensors", "--quiet")
        assert run(*words) == 0
        assert run("fit", "events.csv", "--config", "named.toml", "--model", "n.safetensors", "--quiet") == 0
    found, other = ps.load("m.safetensors"), ps.load("n.safetensors")
    assert found.likelihood == other.likelihood == name
    assert isinstance(found.ssm_.likelihood, cls or ps.GaussianLikelihood)
    assert run("forecast", "m.safetensors", "events.csv", "--steps", 4, "--out", "ahead.csv", "--quiet") == 0
    assert run("filter", "m.safetensors", "events.csv", "--out", "rates.csv", "--quiet") == 0
    if name in ("poisson", "bernoulli"):
        ahead, rates = pandas.read_csv("ahead.csv"), pandas.read_csv("rates.csv")
        assert set(ahead["events_lower"]) | set(ahead["events_upper"]) <= set(range(20))
        assert (rates["events_lower"] > 0).all()


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_a_forecast_is_that_of_the_library_with_real_stamps(data, model, fitted, kind, tmp_path, capsys):
    frame = pandas.read_csv(data, parse_dates=["when"])
    schedule = pandas.DataFrame({"pump": np.ones(5)})
    schedule.to_csv("schedule.csv", index=False)
    words = ("--steps", 5, "--controls", "schedule.csv", "--out", f"ahead.{kind}", "--plot", "ahead.svg")
    assert run("forecast", model, data, *words) == 0
    assert capsys.readouterr().out == f"the forecast is in ahead.{kind}\n"
    if kind == "npz":
        found = dict(np.load("ahead.npz"))
    else:
        found = pandas.read_csv("ahead.csv", parse_dates=["when"]) if kind == "csv" else pandas.read_parquet("ahead.parquet")
    ahead = fitted.forecast(ps.frames.series_of(frame, time="when", controls="pump"), 5, u=np.ones((5, 1)))
    assert np.allclose(found["level_mean"], ahead.mean[:, 0], atol=1e-5)
    assert np.allclose(found["level_upper"], ahead.interval()[1][:, 0], atol=1e-5)
    stamps = pandas.to_datetime(found["when"], utc=True)
    assert list(stamps) == list(pandas.date_range(frame["when"].iloc[-1], periods=6, freq="h")[1:])
    assert (tmp_path / "ahead.svg").stat().st_size > 1000


def test_filter_smooth_simulate_backtest_and_inspect(data, model, fitted, capsys):
    frame = pandas.read_csv(data, parse_dates=["when"])
    for command in ("filter", "smooth"):
        assert run(command, model, data, "--out", f"{command}.csv", "--quiet") == 0
        outputs = getattr(fitted, command)(ps.frames.series_of(frame, time="when", controls="pump")).outputs
        assert np.allclose(pandas.read_csv(f"{command}.csv")["level_mean"], outputs.mean[:, 0], atol=1e-5)
    assert run("filter", model, data, "--out", "states.csv", "--states", "--plot", "states.png", "--quiet") == 0
    frame[["pump"]].to_parquet("u.parquet")
    assert run("simulate", model, "--steps", 10, "--count", 2, "--controls", "u.parquet", "--out", "runs.csv", "--quiet") == 0
    assert list(pandas.read_csv("runs.csv").columns) == ["run", "step", "level"]
    assert (
        run("backtest", data, "--model", model, "--horizon", 4, "--out", "scores.csv", "--plot", "scores.png", "--quiet") == 0
    )
    assert list(pandas.read_csv("scores.csv")["horizon"]) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().out == ""
    assert run("inspect", model) == 0
    said = capsys.readouterr().out
    assert "outputs level, controls pump" in said
    assert "1 member" in said
    assert run("inspect", data, "--output", "level") == 0
    assert "output level: " in (said := capsys.readouterr().out)
    assert "5 missing" in said
    assert "every 3600 s" in said


def test_a_single_row_is_inspected(capsys):
    record()[:1].to_csv("one.csv", index=False)
    assert run("inspect", "one.csv", "--output", "level") == 0
    assert "time when: from 2024-03-28 23:00:00 to 2024-03-28 23:00:00\n" in capsys.readouterr().out


def test_many_series_in_long_format(tmp_path):
    pandas.concat([record(site=site) for site in ("north", "south")]).to_csv("sites.csv", index=False)
    words = ("--output", "level", "--control", "pump", "--group", "site", "--time", "when", "--iterations", 2)
    (tmp_path / "small.toml").write_text('[model]\nhidden = []\nemission = "identity"\n')
    with without_training():
        assert run("fit", "sites.csv", *words, "--config", "small.toml", "--model", "m.safetensors", "--quiet") == 0
    pandas.DataFrame({"site": ["south"] * 2 + ["north"] * 2, "pump": 1.0}).to_csv("u.csv", index=False)
    out = ("--steps", 2, "--controls", "u.csv", "--out", "ahead.csv", "--plot", "ahead.png", "--quiet")
    assert run("forecast", "m.safetensors", "sites.csv", *out) == 0
    assert list(pandas.read_csv("ahead.csv")["site"]) == ["north", "north", "south", "south"]


def test_a_dry_run_writes_nothing(data, tmp_path, capsys):
    assert run("fit", data, "--output", "level", "--control", "pump", "--dry-run") == 0
    assert "chosen from the data: emission=" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv"]


@pytest.mark.slow
def test_an_interrupted_fit_keeps_its_model_and_says_so(data, tmp_path):
    words = [sys.executable, "-c", "from prodssm.cli.program import main; main()", "fit", data, "--output", "level"]
    words += ["--control", "pump", "--iterations", "1000000", "--model", "m.safetensors"]
    (tmp_path / "long.toml").write_text('[model]\nhidden = [5]\nemission = "identity"\nn_estimators = 1\n')
    process = subprocess.Popen([*words, "--config", "long.toml"], stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stderr is not None
    said = ""
    while not re.search(r"[1-9]\d*/1000000", said):  # training has begun, however busy the machine is
        part = os.read(process.stderr.fileno(), 4096)
        assert part, said
        said += part.decode(errors="replace")
    process.send_signal(2)
    said += process.communicate(timeout=300)[1].decode()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert ps.load(tmp_path / "m.safetensors").history_.interrupted
