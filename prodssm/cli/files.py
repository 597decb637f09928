"""Files of the command line: tables as CSV, Parquet or npz, plots as PNG, SVG or PDF. Written whole or not at all."""

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np

TABLES, PLOTS = (".csv", ".parquet", ".npz"), (".png", ".svg", ".pdf")
DELIMITERS = (",", ";", "\t", "|")
LONGEST_HEADER = 1 << 20  # bytes


# ---------------------------------------------------------------- reading


def read_table(path: Path, delimiter: str | None = None, encoding: str | None = None) -> Any:
    """A table of pyarrow from a CSV, Parquet or npz file; an empty cell is a missing value.

    Args:
        path: The file.
        delimiter: Of a CSV file; by default the one that its first line has most of.
        encoding: Of a CSV file; UTF-8 by default.
    """
    require_source(path)
    kind = path.suffix.lower()
    if kind == ".npz":
        return _from_npz(path)
    if kind == ".parquet":
        from pyarrow import ArrowException, parquet

        try:
            return _without_index(parquet.read_table(path))
        except ArrowException as error:
            raise ValueError(f"{path} is not a Parquet file: {error}") from error
    return _from_csv(path, delimiter, encoding or "utf-8")


def require_source(path: Path) -> None:
    """Raise unless there is a file with something in it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if not path.exists():
        near = [other.name for other in path.parent.glob("*") if other.suffix == path.suffix] if path.parent.is_dir() else []
        there = f"; the folder has {', '.join(sorted(near)[:5])}" if near else ""
        raise FileNotFoundError(f"{path} does not exist{there}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")


def _from_csv(path: Path, delimiter: str | None, encoding: str) -> Any:
    from pyarrow import ArrowException, csv

    header = _header(path, encoding)
    delimiter = delimiter or max(DELIMITERS, key=header.count)
    names = header.rstrip("\r\n").split(delimiter)
    duplicates = sorted({name.strip('"') for name in names if name and names.count(name) > 1})
    if duplicates:
        raise ValueError(f"{path}: columns must have different names, got {duplicates[0]!r} {names.count(duplicates[0])} times")
    options = csv.ConvertOptions(null_values=["", "NA", "NaN", "nan", "null", "None", "?"], strings_can_be_null=True)
    try:
        found = csv.read_csv(
            path,
            read_options=csv.ReadOptions(encoding=encoding),
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=options,
        )
    except (ArrowException, UnicodeDecodeError) as error:
        text = str(error).split("\n")[0]
        if "UTF8" in text or "codec" in text or "utf-8" in text:
            raise ValueError(f"{path} is not written in {encoding}: {text}; try --encoding latin-1") from error
        raise ValueError(f"{path} cannot be read as CSV with the delimiter {delimiter!r}: {text}") from error
    if found.num_rows == 0:
        raise ValueError(f"{path} has a header and no rows")
    # A delimiter at the end of every line makes a column without name and values.
    return found.select([name for name in found.column_names if name or found[name].null_count < found.num_rows])


def _header(path: Path, encoding: str) -> str:
    """The first line of a text file."""
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER)
    if b"\0" in head[:1024]:
        raise ValueError(f"{path} is not a CSV file: it holds binary data; known are {', '.join(TABLES)}")
    try:
        return head.split(b"\n", 1)[0].decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise ValueError(f"{path} is not written in {encoding}: {error}; try --encoding latin-1") from error


def _without_index(table: Any) -> Any:
    """The columns under the names that people gave them; pandas calls an index without a name __index_level_0__."""
    return table.rename_columns(["time" if name == "__index_level_0__" else name for name in table.column_names])


def _from_npz(path: Path) -> Any:
    """One column per vector; a matrix `y` becomes y0, y1, ..."""
    import pyarrow

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not an npz file of arrays: {error}") from error
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] > 1:
            columns |= {f"{name}{n}": array[:, n] for n in range(array.shape[1])}
        elif array.ndim in (1, 2):
            columns[name] = array.reshape(len(array))
        else:
            raise ValueError(f"{path}: {name!r} must be a vector or a matrix, got shape {array.shape}")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: arrays must have the same length, got {lengths}")
    return pyarrow.table(columns)


# ---------------------------------------------------------------- writing


def require_target(path: Path, kinds: Sequence[str]) -> None:
    """Raise before any work if a file cannot be written there."""
    if kinds and path.suffix.lower() not in kinds:
        raise ValueError(f"{path} must end with {' or '.join(kinds)}, got {path.suffix or 'no ending'!r}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise PermissionError(f"{path} cannot be written: permission denied")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file beside the target that takes its place at the end, or is removed if something fails."""
    draft = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        yield draft
        os.replace(draft, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"{path} could not be written: {reason[:1].lower()}{reason[1:]}") from error
    finally:
        draft.unlink(missing_ok=True)


def write_table(table: Any, path: Path) -> None:
    """Write a data frame by the ending of the path."""
    table = nw.from_native(table, eager_only=True).to_arrow()
    with whole(path) as draft:
        kind = path.suffix.lower()
        if kind == ".csv":
            from pyarrow import csv

            csv.write_csv(table, draft, csv.WriteOptions(quoting_style="needed"))
        elif kind == ".parquet":
            from pyarrow import parquet

            parquet.write_table(table, draft)
        else:
            columns = {name: column.to_numpy(zero_copy_only=False) for name, column in _chunks(table)}
            texts = {name: column.astype(str) for name, column in columns.items() if column.dtype == object}
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **columns | texts)


def _chunks(table: Any) -> Iterator[tuple[str, Any]]:
    for name in table.column_names:
        yield name, table[name].combine_chunks()


def write_text(text: str, path: Path) -> None:
    """Write a text file."""
    with whole(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_plot(axes: Any, path: Path) -> None:
    """Write the figure of some axes."""
    import matplotlib.pyplot as plt

    figure = np.ravel(axes)[0].figure
    with whole(path) as draft:
        figure.savefig(draft, dpi=140)
    plt.close(figure)
