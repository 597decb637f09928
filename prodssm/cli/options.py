"""Arguments and options that commands share, with what `--help` says of them."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Argument(help="CSV, Parquet or npz; one row per time step, an empty cell is a missing value.")]
Model = Annotated[Path, typer.Argument(help="A model that `prodssm fit` has written.")]
Output = Annotated[
    list[str] | None, typer.Option(help="Column to forecast; repeat for several. By default all without a role.")
]
Control = Annotated[list[str] | None, typer.Option(help="Column of a control input, known in advance; repeat for several.")]
Time = Annotated[str | None, typer.Option(help="Column of time stamps: numbers, dates or times. By default the only dates.")]
Group = Annotated[str | None, typer.Option(help="Column that says which series a row belongs to.")]
Calendar = Annotated[
    list[str] | None, typer.Option(help="Feature of the calendar: hour_of_day, day_of_week, weekend, day_of_year, or auto.")
]
OneHot = Annotated[list[str] | None, typer.Option(help="Column of categories that acts as a control.")]
Fill = Annotated[str | None, typer.Option(help="How gaps in controls are filled: previous or interpolate.")]
Delimiter = Annotated[str | None, typer.Option(help="Of CSV files; found out by default.")]
Encoding = Annotated[str | None, typer.Option(help="Of CSV files; utf-8 by default.")]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file of flags, [model] and [recipe] parameters; flags win.")]
Likelihood = Annotated[
    str | None,
    typer.Option(help="Of observations: gaussian, poisson (counts), bernoulli (labels 0 and 1) or student_t (outliers)."),
]
Weights = Annotated[str | None, typer.Option(help="local, global or point.")]
Members = Annotated[int | None, typer.Option(help="Number of models whose mixture forecasts.", min=1)]
Iterations = Annotated[
    int | None, typer.Option(help="Of training, at most; a free run after it has its own, free_run of [recipe].", min=1)
]
Seed = Annotated[int | None, typer.Option(help="Of all randomness.", min=0)]
Out = Annotated[Path, typer.Option(help="Where to write the table: CSV, Parquet or npz.")]
Plot = Annotated[Path | None, typer.Option(help="Where to draw a picture: PNG, SVG or PDF.")]
Metrics = Annotated[Path | None, typer.Option(help="Where to write what was measured, as JSON.")]
Probability = Annotated[float, typer.Option(help="Of the intervals.", min=0.01, max=0.999)]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
