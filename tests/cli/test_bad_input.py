"""Bad input: exit code 2, one sentence that helps, and nothing left behind."""

import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest
from small_models import without_training
from test_commands import fitted, model, quiet_world, record, run  # noqa: F401 - fixtures

import prodssm as ps

pandas = pytest.importorskip("pandas")
settings = pytest.importorskip("prodssm.cli.settings")
FIT = ("--output", "level", "--control", "pump", "--model", "new.safetensors", "--quiet")
AHEAD = ("--steps", "3", "--controls", "u.csv", "--out", "ahead.csv", "--quiet")


def csv(frame, name="bad.csv", **how):
    frame.to_csv(name, **{"index": False} | how)


def text(content, name="bad.csv", encoding="utf-8"):
    with open(name, "w", encoding=encoding, newline="") as file:
        file.write(content)


def shuffled():
    frame = record()
    frame.loc[[3, 4]] = frame.loc[[4, 3]].to_numpy()
    csv(frame.astype({"level": float, "pump": float}))


def doubled():
    frame = record()
    frame.loc[4, "when"] = frame.loc[3, "when"]
    csv(frame)


def packed(name):
    with open(name, "wb") as file:
        file.write(gzip.compress(record().to_csv(index=False).encode()))


def damaged():
    np.savez_compressed("bad.npz", level=np.random.default_rng(0).normal(size=600))
    with open("bad.npz", "r+b") as file:
        file.seek(100)
        file.write(bytes(300))


def numbers(rule):
    csv(record(level=[rule(n) for n in range(len(record()))]))


def configured(content, **more):
    csv(record(**more))
    text(content, "c.toml")


CONFIG = ("fit", "bad.csv", "--config", "c.toml", "--model", "new.safetensors", "--quiet")
COUNTS = ("--likelihood", "poisson", *FIT)
CASES = {
    "no likelihood": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--likelihood", "poison", *FIT),
        "likelihood must be one of gaussian",
    ),
    "no counts": (
        lambda: numbers(lambda n: n % 7 - 1.0),
        ("fit", "bad.csv", *COUNTS),
        "data must be counts .* got -1 in level",
    ),
    "parts of counts": (
        lambda: numbers(lambda n: n / 2),
        ("fit", "bad.csv", *COUNTS),
        "data must be counts .* got 0.5 in level",
    ),
    "no labels": (
        lambda: numbers(lambda n: n % 3),
        ("fit", "bad.csv", "--likelihood", "bernoulli", *FIT),
        "data must be labels 0 and 1 for the likelihood Bernoulli, got 2 in level",
    ),
    "no file": (lambda: None, ("fit", "none.csv", *FIT), "none.csv does not exist"),
    "a folder": (lambda: None, ("fit", ".", *FIT), "is a folder; name a file"),
    "empty": (lambda: text(""), ("fit", "bad.csv", *FIT), "bad.csv is empty"),
    "header only": (lambda: text("level,pump\n"), ("fit", "bad.csv", *FIT), "has a header and no rows"),
    "binary": (lambda: text("\0\1\2,\0\n"), ("fit", "bad.csv", *FIT), "is not a CSV file: it holds binary data"),
    "not a parquet file": (lambda: text("level\n1\n", "bad.parquet"), ("fit", "bad.parquet", *FIT), "is not a Parquet file"),
    "not an npz file": (lambda: text("level\n1\n", "bad.npz"), ("fit", "bad.npz", *FIT), "is not an npz file"),
    "ragged": (lambda: text("level,pump\n1,2\n1,2,3\n"), ("fit", "bad.csv", *FIT), "cannot be read as CSV"),
    "delimiter": (lambda: csv(record(), sep=";"), ("fit", "bad.csv", "--delimiter", ",", *FIT), "must have a column 'level'"),
    "encoding": (
        lambda: text("level,püm\n1,ä\n", encoding="latin-1"),
        ("fit", "bad.csv", *FIT),
        "is not written in utf-8.*try --encoding latin-1",
    ),
    "mixed types": (
        lambda: csv(record().astype({"level": object}).replace({"level": {record().level[5]: "off"}})),
        ("fit", "bad.csv", *FIT),
        "column 'level' must be numeric, got String such as",
    ),
    "misspelt": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--output", "levl", "--model", "new.safetensors"),
        "bad.csv: must have a column 'levl', .* did you mean 'level'",
    ),
    "same column twice": (
        lambda: text("level,level\n1,2\n2,3\n"),
        ("fit", "bad.csv", *FIT),
        "columns must have different names",
    ),
    "two roles": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--output", "level", "--control", "level", "--model", "new.safetensors"),
        "must be different columns, got 'level' twice",
    ),
    "unsorted": (shuffled, ("fit", "bad.csv", "--time", "when", *FIT), r"2024-03-29 02:00:00 after .* sort the rows"),
    "duplicate stamp": (doubled, ("fit", "bad.csv", "--time", "when", *FIT), r"got 2024-03-29 02:00:00 twice .*drop one"),
    "no stamp": (
        lambda: csv(record().assign(when=record().when.where(record().index != 7))),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "column 'when' must be complete, got a missing value in row 7",
    ),
    "text for a time": (
        lambda: csv(record().assign(when="soon")),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "time column 'when' must hold numbers, dates or times",
    ),
    "mixed time zones": (
        lambda: csv(record().assign(when=["2024-01-01T00:00:00+01:00"] * 30 + ["2024-07-01T00:00:00+02:00 CEST"] * 30)),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "of one format and time zone",
    ),
    "two zones": (
        lambda: csv(record(when=["2024-01-01T00:00:00+01:00"] * 30 + ["2024-07-01T00:00:00+02:00"] * 30)),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "got 2023-12-31 23:00:00 twice",
    ),
    "gap in a control": (
        lambda: csv(record().assign(pump=record().pump.where(record().index != 7))),
        ("fit", "bad.csv", *FIT),
        "column 'pump' must be complete, got a missing value in row 7; say how to fill gaps",
    ),
    "fill": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--fill", "next", *FIT),
        "fill must be one of 'previous', 'interpolate'",
    ),
    "calendar without dates": (
        lambda: csv(record().drop(columns="when")),
        ("fit", "bad.csv", "--calendar", "weekend", *FIT),
        "calendar needs time stamps",
    ),
    "calendar": (lambda: csv(record()), ("fit", "bad.csv", "--calendar", "tide", *FIT), "calendar must be 'auto' or among"),
    "one row": (lambda: csv(record()[:1]), ("fit", "bad.csv", *FIT), "must have at least two time steps, got 1"),
    "never observed": (
        lambda: csv(record().assign(level=np.nan)),
        ("fit", "bad.csv", *FIT),
        "y must have observations of every output|column 'level' must be numeric",
    ),
    "an id with one row": (
        lambda: csv(record(site=["a"] * 59 + ["b"])),
        ("fit", "bad.csv", "--group", "site", "--time", "when", *FIT),
        "group 'b': y must have at least two time steps",
    ),
    "infinite": (lambda: csv(record().assign(level=np.inf)), ("fit", "bad.csv", *FIT), "y must be finite or NaN"),
    "no model path": (lambda: csv(record()), ("fit", "bad.csv"), "--model must say where"),
    "ending of the model": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--model", "m.pkl"),
        "must end with .safetensors, got '.pkl'",
    ),
    "no folder": (lambda: csv(record()), ("fit", "bad.csv", "--model", "no/m.safetensors"), "does not exist; create it first"),
    "weights": (lambda: csv(record()), ("fit", "bad.csv", "--weights", "lokal", *FIT), "local, global"),
    "no number": (lambda: csv(record()), ("fit", "bad.csv", "--iterations", "many", *FIT), "Invalid value for .--iterations"),
    "not toml": (
        lambda: [csv(record()), text("a = ", "c.toml")],
        ("fit", "bad.csv", "--config", "c.toml", *FIT),
        "is not TOML",
    ),
    "key of the file": (
        lambda: [csv(record()), text("outptu = 1", "c.toml")],
        ("fit", "bad.csv", "--config", "c.toml", *FIT),
        "'outptu' is not known; did you mean 'output'",
    ),
    "parameter of the file": (
        lambda: [csv(record()), text("[model]\nhiden = 1", "c.toml")],
        ("fit", "bad.csv", "--config", "c.toml", *FIT),
        r"'hiden' in \[model\] is not known; did you mean 'hidden'",
    ),
    "not a model": (lambda: csv(record()), ("forecast", "bad.csv", "bad.csv", *AHEAD), "safetensors"),
    "no controls": (
        lambda: csv(record()),
        ("forecast", "m.safetensors", "bad.csv", "--steps", "3", "--out", "a.csv"),
        "--controls must name a file with the values of 'pump', 2 rows or more",
    ),
    "too few controls": (
        lambda: [csv(record()), csv(record()[["pump"]][:1], "u.csv")],
        ("forecast", "m.safetensors", "bad.csv", *AHEAD),
        r"u must have shape \(2 or more, 1\), got \(1, 1\)",
    ),
    "column of the model": (
        lambda: [csv(record().drop(columns="pump")), csv(record()[["pump"]], "u.csv")],
        ("forecast", "m.safetensors", "bad.csv", *AHEAD),
        "bad.csv: must have a column 'pump'",
    ),
    "ending of the answer": (
        lambda: csv(record()),
        ("filter", "m.safetensors", "bad.csv", "--out", "a.xlsx"),
        "must end with .csv or .parquet or .npz",
    ),
    "horizon": (
        lambda: csv(record()),
        ("backtest", "bad.csv", "--model", "m.safetensors", "--horizon", "90", "--out", "a.csv", "--quiet"),
        "data must have at least 120 observations",
    ),
    "only empty lines": (lambda: text("\n\n\n"), ("fit", "bad.csv", *FIT), "bad.csv has empty lines only"),
    "wide characters": (
        lambda: text(record().to_csv(index=False), encoding="utf-16"),
        ("fit", "bad.csv", *FIT),
        "is not written in utf-8; try --encoding utf-16",
    ),
    "unknown encoding": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--encoding", "klingon", *FIT),
        "unknown encoding: klingon; try --encoding latin-1",
    ),
    "gzip": (lambda: packed("bad.csv"), ("fit", "bad.csv", *FIT), "is compressed with gzip; unpack it first"),
    "gzip by name": (lambda: packed("bad.csv.gz"), ("fit", "bad.csv.gz", *FIT), "is compressed with gzip; unpack it first"),
    "Parquet by another name": (
        lambda: record().to_parquet("bad.csv"),
        ("fit", "bad.csv", *FIT),
        "is a Parquet file; let its name end with .parquet",
    ),
    "workbook": (lambda: text("PK\3\4\0", "bad.xlsx"), ("fit", "bad.xlsx", *FIT), "is a zip archive, perhaps a workbook"),
    "thousands": (
        lambda: numbers(lambda n: f"1,{n:03d}.5"),
        ("fit", "bad.csv", *FIT),
        r"column 'level' must be numeric, got String such as '1,000.5' \(write numbers with a decimal point",
    ),
    "decimal commas": (
        lambda: csv(record(), sep=";", decimal=","),
        ("fit", "bad.csv", *FIT),
        r"column 'level' must be numeric, .* \(write numbers with a decimal point",
    ),
    "one text among numbers": (
        lambda: numbers(lambda n: "off" if n == 40 else n),
        ("fit", "bad.csv", *FIT),
        "column 'level' must be numeric, got String such as 'off'",
    ),
    "empty cells of time": (
        lambda: csv(record(when=None)),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "column 'when' must be complete, got a missing value in row 0",
    ),
    "a date that is none": (
        lambda: csv(record(when="0000-00-00")),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "such as '2024-01-31 18:00:00', got text that cannot be read, such as '0000-00-00' in row 0$",
    ),
    "one date that is none": (
        lambda: csv(record(when=[*(f"2024-01-{n + 1:02d}" for n in range(31)), "2024-01-32", *["2024-02-01"] * 28])),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "got text that cannot be read, such as '2024-01-32' in row 31$",
    ),
    "dates with and without a zone": (
        lambda: csv(record(when=["2024-01-01 00:00:00"] * 30 + ["2024-01-02T00:00:00+01:00"] * 30)),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "of one format and time zone, .* such as '2024-01-02T00:00:00.01:00' in row 30$",
    ),
    "dates that nanoseconds cannot count": (
        lambda: csv(record(when=[f"9999-01-01 00:{n:02d}:00" for n in range(60)])),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "time stamps must lie between the years 1678 and 2261, got 9999-01-01T00:00:00",
    ),
    "a category without values": (
        lambda: csv(record(kind=None)),
        ("fit", "bad.csv", "--one-hot", "kind", *FIT),
        "one_hot column 'kind' must have values, got none",
    ),
    "delimiter of two": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--delimiter", ";;", *FIT),
        "--delimiter must be one character such as ';', or tab; got ';;'",
    ),
    "output twice": (
        lambda: csv(record()),
        ("fit", "bad.csv", "--output", "level", *FIT),
        "must be different columns, got 'level' twice",
    ),
    "negative steps": (
        lambda: csv(record()),
        ("forecast", "m.safetensors", "bad.csv", "--steps", "-3", "--out", "a.csv"),
        "Invalid value for .--steps",
    ),
    "no steps": (
        lambda: csv(record()),
        ("forecast", "m.safetensors", "bad.csv", "--steps", "0", "--out", "a.csv"),
        "Invalid value for .--steps",
    ),
    "steps beyond memory": (
        lambda: [csv(record()), csv(record()[["pump"]], "u.csv")],
        ("forecast", "m.safetensors", "bad.csv", *AHEAD, "--steps", str(10**12)),
        "steps must fit in memory: 10+ steps need about .* GB, and this machine has .* GB; ask for fewer",
    ),
    "simulated steps beyond memory": (
        lambda: csv(record()[["pump"]], "u.csv"),
        ("simulate", "m.safetensors", "--steps", str(10**30), "--controls", "u.csv", "--out", "a.csv"),
        "steps must fit in memory",
    ),
    "gap in future controls": (
        lambda: [csv(record()), text("pump\n1\n\n2\n3\n", "u.csv")],
        ("forecast", "m.safetensors", "bad.csv", *AHEAD),
        "column 'pump' must be complete, got a missing value in row 1",
    ),
    "infinite control": (
        lambda: [csv(record()), text("pump\n1\ninf\n2\n", "u.csv")],
        ("forecast", "m.safetensors", "bad.csv", *AHEAD),
        r"u must be finite, got inf at index \(1, 0\)",
    ),
    "no jobs": (
        lambda: csv(record()),
        ("backtest", "bad.csv", "--model", "m.safetensors", "--horizon", "3", "--jobs", "0", "--out", "a.csv", "--quiet"),
        "n_jobs must be a number of processes, or -1 for all cores; got 0",
    ),
    "a number for a column": (lambda: configured("output = 3"), CONFIG, "'output' must be text or a list of texts, got 3"),
    "a list for a column": (lambda: configured('time = ["when"]'), CONFIG, r"'time' must be text, got \['when'\]"),
    "text for a number": (lambda: configured('seed = "x"'), CONFIG, "'seed' must be a whole number, got 'x'"),
    "a damaged model": (
        lambda: text("hello, this is no model", "bad.safetensors"),
        ("inspect", "bad.safetensors"),
        "is not a safetensors file",
    ),
    "a folder as a model": (lambda: csv(record()), ("forecast", ".", "bad.csv", *AHEAD), "is a folder; name a file"),
    "no such folder at the end": (
        lambda: csv(record()),
        ("filter", "m.safetensors", "bad.csv", "--out", "no/a.csv"),
        "does not exist; create it first",
    ),
    "probability": (
        lambda: csv(record()),
        ("filter", "m.safetensors", "bad.csv", "--out", "a.csv", "--probability", "95"),
        "Invalid value for .--probability",
    ),
    "HTML": (
        lambda: text("<!DOCTYPE html>\n<html></html>\n"),
        ("fit", "bad.csv", *FIT),
        "is not a CSV file: it holds HTML or XML",
    ),
    "JSON": (lambda: text('{"level": [1, 2]}', "bad.json"), ("fit", "bad.json", *FIT), "is not a CSV file: it holds JSON"),
    "a letter": (
        lambda: text("Dear Sir,\nplease find enclosed\n"),
        ("fit", "bad.csv", *FIT),
        "cannot be read as CSV .*; the first line names the columns, and every line has as many cells",
    ),
    "no header": (
        lambda: csv(record()[["level", "pump"]], header=False),
        ("fit", "bad.csv", "--model", "new.safetensors", "--quiet"),
        "bad.csv has no header: its first line is .*, 1.0; write the names of the columns there",
    ),
    "units under the names": (
        lambda: text("level,pump\nm,V\n1,2\n2,3\n"),
        ("fit", "bad.csv", *FIT),
        "column 'level' must be numeric, got String such as 'm'",
    ),
    "a month or a day": (
        lambda: csv(record(when=[f"{1 + n % 12:02d}/{1 + n // 12:02d}/2024" for n in range(60)])),
        ("fit", "bad.csv", "--time", "when", *FIT),
        "time column 'when' must say which number is the day, got text such as '01/01/2024'; write year-month-day",
    ),
    "numbers for dates": (
        lambda: [csv(record(when=range(60))), csv(record()[["pump"]], "u.csv")],
        ("forecast", "m.safetensors", "bad.csv", *AHEAD),
        "bad.csv: time column 'when' must hold dates as in fit, got Int64",
    ),
    "more outputs than rows": (
        lambda: csv(pandas.DataFrame(np.eye(3, 7)).add_prefix("c")),
        ("fit", "bad.csv", "--model", "new.safetensors", "--quiet"),
        "y must have a row per time step and a column per output, got 3 by 7; is it transposed",
    ),
    "a single value": (
        lambda: csv(record(level=[1.0] + [np.nan] * 59)),
        ("fit", "bad.csv", *FIT),
        "data must have observations after the first",
    ),
    "no id": (
        lambda: csv(record(site=[None] + ["a"] * 59)),
        ("fit", "bad.csv", "--group", "site", *FIT),
        "column 'site' must be complete, got a missing value in row 0",
    ),
    "model and data swapped": (
        lambda: csv(record()),
        ("filter", "bad.csv", "m.safetensors", "--out", "a.csv"),
        "bad.csv is not a safetensors file",
    ),
    "a model as data": (
        lambda: None,
        ("filter", "m.safetensors", "m.safetensors", "--out", "a.csv"),
        "m.safetensors is not a CSV file: it holds binary data",
    ),
    "arrays of different lengths": (
        lambda: np.savez("bad.npz", level=np.zeros(3), pump=np.zeros(4)),
        ("fit", "bad.npz", *FIT),
        "arrays must have the same length, got {'level': 3, 'pump': 4}",
    ),
    "objects in an npz file": (
        lambda: np.savez("bad.npz", level=np.array([1, "off", None], object)),
        ("fit", "bad.npz", *FIT),
        "bad.npz is not an npz file of arrays",
    ),
    "an npz file that was cut short": (
        lambda: [np.savez("bad.npz", level=np.zeros(60)), os.truncate("bad.npz", 200)],
        ("fit", "bad.npz", *FIT),
        "bad.npz is not an npz file of arrays: File is not a zip file",
    ),
    "a damaged npz file": (damaged, ("fit", "bad.npz", *FIT), "bad.npz is not an npz file of arrays: "),
    "a single array": (
        lambda: [np.save("x.npy", np.zeros(60)), os.rename("x.npy", "bad.npz")],
        ("fit", "bad.npz", *FIT),
        "bad.npz is not an npz file of arrays: it holds a single array",
    ),
    "complex numbers": (
        lambda: np.savez("bad.npz", level=np.zeros(60) + 1j),
        ("fit", "bad.npz", *FIT),
        "bad.npz: 'level' must hold real numbers, dates or text, got complex128",
    ),
    "an empty npz file": (lambda: np.savez("bad.npz"), ("fit", "bad.npz", *FIT), "must have a column 'level', got none"),
    "an unwritable path": (
        lambda: csv(record()),
        ("filter", "m.safetensors", "bad.csv", "--out", "/proc/a.csv", "--quiet"),
        "/proc/a.csv (cannot|could not) be written",
    ),
    "the data as the answer": (
        lambda: csv(record()),
        ("filter", "m.safetensors", "bad.csv", "--out", "./bad.csv"),
        "bad.csv is read, and must not be written as well; name another file",
    ),
    "the controls as the answer": (
        lambda: [csv(record()), csv(record()[["pump"]], "u.csv")],
        ("forecast", "m.safetensors", "bad.csv", "--steps", "3", "--controls", "u.csv", "--out", "u.csv", "--quiet"),
        "u.csv is read, and must not be written as well",
    ),
    "a simulation without controls": (
        lambda: None,
        ("simulate", "m.safetensors", "--steps", "3", "--out", "a.csv", "--quiet"),
        "--controls must name a file with the values of 'pump', 2 rows or more",
    ),
    "a very long name": (
        lambda: text(f"level,{'a' * 200_000}\n1,2\n2,3\n"),
        ("fit", "bad.csv", *FIT),
        "must have a column 'pump', got 'level', 'aaa",
    ),
    "an open quote": (lambda: text('level,"pump\n1,2\n2,3\n'), ("fit", "bad.csv", *FIT), "cannot be read as CSV"),
    "a recipe as a parameter": (
        lambda: configured("[model]\nrecipe = 'quick'"),
        CONFIG,
        r"'recipe' in \[model\] is not known",
    ),
    "a value of the recipe": (lambda: configured("[recipe]\nlearning_rate = -1.0"), CONFIG, "learning_rate must be positive"),
    "a file as a folder": (
        lambda: csv(record()),
        ("filter", "m.safetensors", "bad.csv", "--out", "bad.csv/a.csv"),
        "does not exist; create it first",
    ),
    "a name that is too long": (
        lambda: csv(record()),
        ("filter", "m.safetensors", "bad.csv", "--out", "a" * 300 + ".csv", "--quiet"),
        "[Ff]ile name too long",
    ),
    "no such command": (lambda: None, ("fitt",), "No such command 'fitt'"),
    "no such flag": (lambda: csv(record()), ("fit", "bad.csv", "--outptu", "level"), "No such option.*--output"),
    "no arguments": (lambda: None, ("forecast",), "Missing argument 'model'"),
    "ending of the report": (
        lambda: csv(record()),
        ("report", "m.safetensors", "bad.csv", "--out", "r.pdf"),
        "must end with .html, got '.pdf'",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exit_code_2_and_one_sentence(name, model, tmp_path, capsys):  # noqa: F811
    make, words, said = CASES[name]
    make()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run(*words) == 2
    found = capsys.readouterr().err
    assert found.startswith("error: ")
    assert found.count("\n") == 1, found
    assert re.search(said, found), found
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_model_file_of_another_version_says_so(model, tmp_path, capsys):  # noqa: F811
    path = tmp_path / model
    content = path.read_bytes().replace(b'"format_version":"2"', b'"format_version":"9"')
    path.write_bytes(content)
    assert run("inspect", model) == 2
    assert "upgrade prodssm" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("filter", "m.safetensors", "data.csv", "--out", "a.csv", "--quiet"),
        ("filter", "m.safetensors", "data.csv", "--out", "b.parquet", "--plot", "a.svg", "--quiet"),
        ("fit", "data.csv", "--config", "c.toml", "--model", "a.safetensors", "--quiet"),
    ],
)
def test_a_full_disk_leaves_nothing_behind(words, model, tmp_path, capsys, monkeypatch):  # noqa: F811
    csv(record(), "data.csv")
    text('output = "level"\ncontrol = "pump"\n[model]\nhidden = []\nlatent_dim = 1\nemission = "identity"', "c.toml")
    synchronise = os.fsync

    def full(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").resolve().suffix in (".csv", ".svg", ".safetensors"):
            raise OSError(28, "No space left on device")
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(path.name for path in tmp_path.iterdir())
    with without_training():
        assert run(*words) == 2
    last = next(word for word in words if word.startswith("a."))
    assert re.fullmatch(f"error: .*{last} could not be written: no space left on device\n", capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert ps.load(model) is not None


@pytest.mark.parametrize("kind", [KeyError, RuntimeError])
def test_what_nobody_foresaw_is_one_sentence_as_well(kind, tmp_path, capsys, monkeypatch):
    csv(record(), "data.csv")
    monkeypatch.setattr(settings, "read_table", lambda *_: (_ for _ in ()).throw(kind("level")))
    assert run("inspect", "data.csv") == 2
    assert re.fullmatch(f"error: {kind.__name__}: .*level.*; this is a bug, please report it\n", capsys.readouterr().err)


@pytest.mark.parametrize("words", [("fit", "data.csv", "--model", "n.safetensors"), ("inspect", "data.csv")])
def test_an_interrupted_command_ends_with_130(words, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    csv(record(), "data.csv")
    monkeypatch.setattr(settings, "read_table", interrupted)
    assert run(*words) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    "frame",
    [
        record()[:2],
        record(level=3.0),
        record(pump=3.0),
        record().assign(when=[f"{d:02d}.03.2024" for d in range(1, 31)] * 2)[:12],
    ],
    ids=["two rows", "a constant output", "a constant control", "points in dates"],
)
def test_poor_data_that_are_legal_have_finite_forecasts(frame, tmp_path):
    csv(frame, "data.csv")
    csv(record()[["pump"]], "u.csv")
    text("[model]\nhidden = []\nn_estimators = 1", "c.toml")
    with without_training():
        assert run("fit", "data.csv", "--config", "c.toml", "--time", "when", *FIT) == 0
    assert run("forecast", "new.safetensors", "data.csv", *AHEAD) == 0
    found = pandas.read_csv("ahead.csv", parse_dates=["when"])
    stamps = pandas.to_datetime(frame["when"], utc=True, dayfirst=True)
    assert pandas.to_datetime(found["when"], utc=True)[0] - stamps.iloc[-1] == stamps.iloc[-1] - stamps.iloc[-2]
    assert np.isfinite(found.drop(columns="when")).all(axis=None)
