"""Damaged model files, and CSV files that nobody meant: each is read, or refused in one sentence; nothing else may happen.

    python scripts/fuzz.py --seconds 3600

Model files are those of small fitted models with bytes, numbers and words of the header changed. CSV files are made of headers,
cells, delimiters, quotes and encodings that people have. A case that fails is reduced to a small one, and printed.
"""

import argparse
import json
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import prodssm as ps
from prodssm.cli.files import read_table

REFUSALS = (ValueError, TypeError, OSError)  # what the command line turns into one sentence
EXAMPLES = 200  # of each kind in a row
LONGEST_MESSAGE = 2000

cells = st.one_of(
    st.just(""),
    st.integers(-(10**18), 10**18).map(str),
    st.floats(width=32).map(str),
    st.sampled_from(
        ["NA", "nan", "1,5", "1.5e400", "true", "2024-03-31 02:30:00", "2024-02-30", "0x10", "-", "½", " 3 ", '"', "\t"]
    ),
    st.text(max_size=5),
)
names = st.one_of(st.sampled_from(["t", "y", "pump", "id", "", " y", "y "]), st.text(max_size=4))


@st.composite
def csv_bytes(draw: Callable[..., Any]) -> bytes:
    """A CSV file, or what looks like one."""
    width = draw(st.integers(1, 4))
    delimiter, ending = draw(st.sampled_from([",", ";", "\t", "|", " "])), draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n"]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    lines = [draw(st.lists(names, min_size=width, max_size=width))]
    lines += draw(st.lists(st.lists(cells, min_size=width, max_size=width + draw(st.integers(0, 1))), max_size=12))
    text = ending.join(delimiter.join(line) for line in lines)
    return text.encode(encoding, errors="replace")


def damaged(draw: Callable[..., Any], content: bytes) -> bytes:
    """A model file with something changed."""
    kind = draw(st.sampled_from(["bytes", "cut", "number", "word", "twice"]))
    if kind == "bytes":
        found = bytearray(content)
        for _ in range(draw(st.integers(1, 4))):
            found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
        return bytes(found)
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if kind == "twice":
        return content + content[: draw(st.integers(1, 100))]
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    config = json.loads(header["__metadata__"]["config"])
    where = draw(st.sampled_from(sorted(config)))
    junk = st.one_of(
        st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(max_size=5), st.lists(st.integers(), max_size=3)
    )
    if isinstance(config[where], dict) and config[where] and kind == "word":
        config[where] = config[where] | {draw(st.sampled_from(sorted(config[where]))): draw(junk)}
    else:
        config[where] = draw(junk)
    header["__metadata__"]["config"] = json.dumps(config)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def refused_or_read(path: Path, read: Callable[[Path], Any]) -> None:
    """Read a file; a refusal says something short."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except REFUSALS as error:
        text = str(error)
        assert text.strip(), "a refusal must say something"
        assert len(text) < LONGEST_MESSAGE, text


def as_data(path: Path) -> None:
    """What the command line does with a table before it learns."""
    ps.frames.series_of(read_table(path))


def model_files(folder: Path) -> list[bytes]:
    """Files of small fitted models."""
    y = np.sin(0.3 * np.arange(60))
    recipe = ps.Recipe(iterations=2)
    few = {"latent_dim": 1, "hidden": (2,), "emission": "linear", "residual": True, "activation": "relu", "progress": False}
    path = folder / "whole.safetensors"
    ps.ProDSSM(**few, n_estimators=1, recipe=recipe).fit(y).save(path)
    found = [path.read_bytes()]
    rows = ps.Recipe(iterations=2, prior_weight=0.1, validation=0.0)
    few = {"hidden": (2,), "noise_hidden": (), "steps": 1, "activation": "relu", "n_estimators": 1, "progress": False}
    ps.DeepStochasticRegressor(**few, recipe=rows).fit(y[:, None], y).save(path)
    return [*found, path.read_bytes()]


def main() -> int:
    """Fuzz for so long; the first case that fails raises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts, number = {"model": 0, "csv": 0}, options.seed
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = model_files(folder)
        begin = time.monotonic()
        shared: dict[str, Any] = {"max_examples": EXAMPLES, "deadline": None, "database": None}
        shared["suppress_health_check"] = list(HealthCheck)

        @settings(**shared)
        @given(st.data())
        def model(data: Any) -> None:
            counts["model"] += 1
            path = folder / "m.safetensors"
            path.write_bytes(damaged(data.draw, models[data.draw(st.integers(0, len(models) - 1))]))
            refused_or_read(path, ps.load)

        @settings(**shared)
        @given(csv_bytes())
        def table(content: bytes) -> None:
            counts["csv"] += 1
            path = folder / "d.csv"
            path.write_bytes(content)
            refused_or_read(path, as_data)

        while time.monotonic() - begin < options.seconds:
            seed(number)(model)()
            seed(number)(table)()
            number += 1
        print(f"{counts['model']} model files and {counts['csv']} tables in {time.monotonic() - begin:.0f} s: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
