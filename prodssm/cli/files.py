"""Files of the command line: tables as CSV, Parquet or npz, plots as PNG, SVG or PDF. Written whole or not at all."""

import codecs
import csv
import os
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import narwhals as nw
import numpy as np

from prodssm._files import write_files
from prodssm.data.layout import spells_number

TABLES, PLOTS = (".csv", ".parquet", ".npz"), (".png", ".svg", ".pdf")
DELIMITERS = (",", ";", "\t", "|")
LONGEST_HEADER = 1 << 20  # bytes
BINARY = {
    b"\x1f\x8b": "it is compressed with gzip; unpack it first",
    b"PAR1": "it is a Parquet file; let its name end with .parquet",
    b"PK\x03\x04": "it is a zip archive, perhaps a workbook or an npz file; export CSV, or let its name end with .npz",
}  # what files begin with
MARKUP = {b"<!": "HTML or XML", b"<html": "HTML", b"<?xml": "XML", b"{": "JSON", b"[{": "JSON", b"[[": "JSON"}  # likewise


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
    from pyarrow import ArrowException
    from pyarrow import csv as arrow

    header, blank_first = _header(path, encoding)
    delimiter = _delimiter(delimiter) or max(DELIMITERS, key=header.count)
    names = _names(header, delimiter)
    _require_different(path, names)
    _require_names(path, names)
    # In a file of one column an empty line is an empty cell; everywhere else it is nothing.
    parsing = arrow.ParseOptions(delimiter=delimiter, ignore_empty_lines=len(names) > 1 or blank_first)
    converting = arrow.ConvertOptions(null_values=["", "NA", "NaN", "nan", "null", "None", "?"], strings_can_be_null=True)
    try:
        found = arrow.read_csv(path, arrow.ReadOptions(encoding=encoding), parsing, converting)
    except (ArrowException, UnicodeDecodeError) as error:
        text = str(error).split("\n")[0]
        if "UTF8" in text or "codec" in text or "utf-8" in text:
            raise ValueError(f"{path} is not written in {encoding}: {text}; try --encoding latin-1") from error
        raise ValueError(
            f"{path} cannot be read as CSV with the delimiter {delimiter!r}: {text}; the first line names the "
            "columns, and every line has as many cells"
        ) from error
    if found.num_rows == 0:
        raise ValueError(f"{path} has a header and no rows")
    # A delimiter at the end of every line makes a column without name and values.
    kept = [n for n, name in enumerate(found.column_names) if name or found.column(n).null_count < found.num_rows]
    _require_different(path, [found.column_names[n] or "no name" for n in kept])
    return found.select(kept)


def _names(header: str, delimiter: str) -> list[str]:
    """The names of the columns."""
    if len(header) > csv.field_size_limit():  # no name is as long; pyarrow says what is wrong with the file
        return header.split(delimiter)
    return next(csv.reader([header], delimiter=delimiter), [])


def _delimiter(given: str | None) -> str | None:
    """The delimiter that was given; a tab may be spelt as a shell passes it on."""
    given = "\t" if given in ("\\t", "tab") else given
    if given and (len(given) > 1 or given in '"\r\n' or not given.isascii()):
        raise ValueError(f"--delimiter must be one character such as ';', or tab; got {given!r}")
    return given


def _require_different(path: Path, names: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: columns must have different names, got {twice[0]!r} {names.count(twice[0])} times")


def _require_names(path: Path, names: Sequence[str]) -> None:
    """Raise if the first line holds numbers that do not count the columns: rows without a header."""
    if not names or not all(map(spells_number, names)):
        return
    if [*names] not in ([str(n) for n in range(start, start + len(names))] for start in (0, 1)):
        raise ValueError(
            f"{path} has no header: its first line is {', '.join(names)[:60]}; write the names of the columns there"
        )


def _header(path: Path, encoding: str) -> tuple[str, bool]:
    """The first line of a text file that is not empty, and whether others come before it."""
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER)
    _require_text(path, head[:1024], encoding)
    try:
        # A piece of a file may end within a character.
        text = codecs.getincrementaldecoder(encoding)().decode(head).removeprefix("\ufeff")
    except (UnicodeError, LookupError) as error:
        raise ValueError(f"{path} is not written in {encoding}: {error}; try --encoding latin-1") from error
    lines = text.splitlines()
    header = next((line for line in lines if line.strip()), None)
    if header is None:
        raise ValueError(f"{path} has empty lines only")
    return header, lines[0] != header


def _require_text(path: Path, head: bytes, encoding: str) -> None:
    """Raise if a file does not hold text in this encoding; the message says what it seems to be."""
    for start, advice in BINARY.items():
        if head.startswith(start):
            raise ValueError(f"{path} is not a CSV file: {advice}")
    found = next((kind for start, kind in MARKUP.items() if head.lstrip().lower().startswith(start)), None)
    if found is not None:
        raise ValueError(f"{path} is not a CSV file: it holds {found}; known are {', '.join(TABLES)}")
    wide = encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32"))
    if b"\0" in head and not wide:
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError(f"{path} is not written in {encoding}; try --encoding utf-16")
        raise ValueError(f"{path} is not a CSV file: it holds binary data; known are {', '.join(TABLES)}")


def _without_index(table: Any) -> Any:
    """The columns under the names that people gave them; pandas calls an index without a name __index_level_0__."""
    return table.rename_columns(["time" if name == "__index_level_0__" else name for name in table.column_names])


def _from_npz(path: Path) -> Any:
    """One column per vector; a matrix `y` becomes y0, y1, ..."""
    import pyarrow

    try:
        # Opened here: of a file that is cut short NumPy would leave it open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (ValueError, OSError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        said = "it holds a single array" if isinstance(error, TypeError) else error
        raise ValueError(f"{path} is not an npz file of arrays: {said}") from error
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] > 1:
            columns |= {f"{name}{n}": array[:, n] for n in range(array.shape[1])}
        elif array.ndim in (1, 2):
            columns[name] = array.reshape(len(array))
        else:
            raise ValueError(f"{path}: {name!r} must be a vector or a matrix, got shape {array.shape}")
        if array.dtype.kind not in "biufMUS":
            raise ValueError(f"{path}: {name!r} must hold real numbers, dates or text, got {array.dtype}")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: arrays must have the same length, got {lengths}")
    return pyarrow.table(columns)


# ---------------------------------------------------------------- writing


def require_target(path: Path, kinds: Sequence[str], *sources: Path | None) -> None:
    """Raise before any work if a file cannot be written there, or would replace one of those that are read."""
    if any(source is not None and path.resolve() == source.resolve() for source in sources):
        raise ValueError(f"{path} is read, and must not be written as well; name another file for the answer")
    if kinds and path.suffix.lower() not in kinds:
        raise ValueError(f"{path} must end with {' or '.join(kinds)}, got {path.suffix or 'no ending'!r}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise PermissionError(f"{path} cannot be written: permission denied")


def write_table(table: Any, path: Path) -> None:
    """Write a data frame by the ending of the path."""
    write_answer(table, path)


def write_answer(table: Any, path: Path, plot: Path | None = None, draw: Callable[[], Any] | None = None) -> None:
    """Write a data frame and, if asked for, the picture that `draw` makes; both or neither."""
    writers = {path: partial(_write_table, nw.from_native(table, eager_only=True).to_arrow())}
    if plot is not None and draw is not None:
        writers[plot] = partial(_write_picture, draw())
    write_files(writers)


def write_text(text: str, path: Path) -> None:
    """Write a text file."""
    write_files({path: lambda draft: draft.write_text(text, encoding="utf-8")})


def _write_table(table: Any, path: Path) -> None:
    kind = path.suffix.lower()
    if kind == ".csv":
        from pyarrow import csv as arrow

        arrow.write_csv(table, path, arrow.WriteOptions(quoting_style="needed"))
    elif kind == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, path)
    else:
        columns = {name: table[name].combine_chunks().to_numpy(zero_copy_only=False) for name in table.column_names}
        texts = {name: column.astype(str) for name, column in columns.items() if column.dtype == object}
        np.savez(path, allow_pickle=False, **columns | texts)


def _write_picture(axes: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure = np.ravel(axes)[0].figure
    figure.savefig(path, dpi=140)
    plt.close(figure)
