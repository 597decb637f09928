"""What a run is told: flags, and a TOML file for all that they do not say."""

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

from prodssm.cli.files import read_table, require_source

MANY = ("output", "control", "calendar", "one_hot")  # settings that name several columns
OF_PROGRAM = ("recipe", "progress")  # parameters of ProDSSM that a table or a flag of their own stands for
WHOLE = ("members", "iterations", "seed", "horizon", "step", "start", "window")  # settings that are whole numbers


@dataclass(frozen=True)
class DataSettings:
    """Which columns of a table are what, see `prodssm.frames.series_of`."""

    output: Sequence[str] = ()
    control: Sequence[str] = ()
    time: str | None = None
    group: str | None = None
    calendar: Sequence[str] = ()
    one_hot: Sequence[str] = ()
    fill: str | None = None
    delimiter: str | None = None
    encoding: str | None = None

    @classmethod
    def of(cls, flags: dict[str, Any], config: "Config") -> "DataSettings":
        """The flags that were given, and the settings of the file where none was."""
        found = {}
        for field in fields(cls):
            value = config.given(flags, field.name)
            if value is not None:
                found[field.name] = [value] if field.name in MANY and isinstance(value, str) else value
        return cls(**found)

    def series(self, path: Path) -> Any:
        """The series of a file."""
        from prodssm.data.frames import series_of

        table = read_table(path, self.delimiter, self.encoding)
        with named(path):
            return series_of(
                table,
                columns=list(self.output) or None,
                controls=list(self.control),
                time=self.time or _only_dates(table),
                group=self.group,
                calendar="auto" if list(self.calendar) == ["auto"] else list(self.calendar) or None,
                one_hot=list(self.one_hot),
                fill=self.fill,
            )


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors name the file that they come from."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error).removeprefix("frame ")
        raise type(error)(f"{path}: {text}" if path.name not in text else text) from error


def _only_dates(table: Any) -> str | None:
    """The only column of dates, if there is one."""
    import pyarrow

    found = [name for name in table.column_names if pyarrow.types.is_temporal(table.schema.field(name).type)]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class Config:
    """A TOML file: keys at the top are flags, `[model]` holds parameters of `ProDSSM`, `[recipe]` those of `Recipe`."""

    flags: dict[str, Any]
    model: dict[str, Any]
    recipe: dict[str, Any]

    def given(self, flags: dict[str, Any], name: str) -> Any:
        """A flag of the command, or else that of the file; None if neither says it."""
        value = flags.get(name)
        return self.flags.get(name) if value is None else value

    @classmethod
    def read(cls, path: Path | None, known: Sequence[str]) -> "Config":
        """The file, checked; without a path, nothing.

        Args:
            path: The file.
            known: Flags of the command.
        """
        if path is None:
            return cls({}, {}, {})
        require_source(path)
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}") from error
        model, recipe = (_table(path, found.pop(name, {}), name) for name in ("model", "recipe"))
        from prodssm import ProDSSM, Recipe

        for where, given, names in (
            ("", found, [name.replace("_", "-") for name in known]),
            (" in [model]", model, [name for name in signature(ProDSSM).parameters if name not in OF_PROGRAM]),
            (" in [recipe]", recipe, [field.name for field in fields(Recipe)]),
        ):
            for key in given:
                if key not in names and key.replace("_", "-") not in names:
                    near = get_close_matches(key, names, n=1)
                    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(names))}"
                    raise ValueError(f"{path}: {key!r}{where} is not known; {hint}")
        flags = {key.replace("-", "_"): value for key, value in found.items()}
        for name, value in flags.items():
            _require_kind(path, name, value)
        return cls(flags, model, recipe)


def _require_kind(path: Path, name: str, value: Any) -> None:
    """Raise unless a setting of the file has the type that its flag takes."""
    if name in WHOLE:
        right, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif name in MANY:
        parts = value if isinstance(value, list) else [value]
        right, wanted = all(isinstance(each, str) for each in parts), "text or a list of texts"
    else:
        right, wanted = isinstance(value, str), "text"
    if not right:
        raise ValueError(f"{path}: {name.replace('_', '-')!r} must be {wanted}, got {value!r}")


def _table(path: Path, value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: [{name}] must be a table, got {value!r}")
    return {key: tuple(each) if isinstance(each, list) else each for key, each in value.items()}


def estimator(config: Config, model: dict[str, Any], recipe: dict[str, Any], *, progress: bool) -> Any:
    """An unfitted model of the file's parameters and of flags, which win."""
    from prodssm import ProDSSM, Recipe

    trained = config.recipe | {name: value for name, value in recipe.items() if value is not None}
    parts = config.model | {name: value for name, value in model.items() if value is not None}
    return ProDSSM(**parts | {"recipe": Recipe(**trained) if trained else None, "progress": progress})
