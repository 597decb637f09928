"""The commands. Each reads files, asks the library, and writes files."""

from pathlib import Path
from typing import Annotated, Any

import typer

from prodssm.cli.files import PLOTS, TABLES, require_target, write_answer, write_table
from prodssm.cli.options import (
    Calendar,
    ConfigFile,
    Control,
    Data,
    Delimiter,
    Encoding,
    Fill,
    Group,
    Iterations,
    Likelihood,
    Members,
    Metrics,
    Model,
    OneHot,
    Out,
    Output,
    Plot,
    Probability,
    Quiet,
    Seed,
    Time,
    Weights,
)
from prodssm.cli.processes import is_first, joined, launched
from prodssm.cli.settings import Config, DataSettings, estimator
from prodssm.cli.shared import (
    controls_for,
    listed,
    load_model,
    opened,
    read_for,
    reading,
    say,
    working,
    write_beliefs,
)
from prodssm.cli.show import facts_of_model, lines_of_data, lines_of_model, write_metrics

MODEL_FILE = (".safetensors",)
OF_MODEL = {"likelihood": "likelihood", "weights": "weights", "members": "n_estimators", "seed": "random_state"}  # by flag
KNOWN = (*DataSettings.__dataclass_fields__, *OF_MODEL, "iterations", "horizon", "step", "start", "window")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> bool:
    if wanted:
        from prodssm import __version__

        typer.echo(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def root(
    # Eager, because without a command the function itself is not called.
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Learn dynamics from time series, and forecast with honest uncertainty."""


@app.command()
def fit(
    data: Data,
    model: Annotated[Path | None, typer.Option(help="Where to write the model, a .safetensors file.")] = None,
    output: Output = None,
    control: Control = None,
    time: Time = None,
    group: Group = None,
    calendar: Calendar = None,
    one_hot: OneHot = None,
    fill: Fill = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    config: ConfigFile = None,
    likelihood: Likelihood = None,
    weights: Weights = None,
    members: Members = None,
    iterations: Iterations = None,
    seed: Seed = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Resume an interrupted fit from files that begin like this.")] = None,
    metrics: Metrics = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be chosen, and train nothing.")] = False,
    processes: Annotated[int, typer.Option(help="Train in so many processes on this machine.", min=1)] = 1,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="This is one of the processes that SLURM, MPI or Kubernetes has started.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Learn a model from data."""
    flags = locals()
    if processes > 1 and distributed:
        raise ValueError(
            "give either --processes, which starts some here, or --distributed, for those that a cluster has started"
        )
    several = joined(distributed)
    if processes > 1 and not several:
        raise typer.Exit(launched(processes))
    if model is None and not dry_run:
        raise ValueError("--model must say where to write the model, such as --model m.safetensors; or give --dry-run")
    for path, kinds in ((model, MODEL_FILE), (metrics, (".json",))):
        if path is not None:
            require_target(path, kinds)
    said = Config.read(config, KNOWN)
    shown = not quiet and (not several or is_first())
    with reading(not shown):
        series = DataSettings.of(flags, said).series(data)
    parts = {parameter: said.given(flags, flag) for flag, parameter in OF_MODEL.items()} | {"checkpoint": checkpoint}
    unfitted = estimator(said, parts, {"iterations": said.given(flags, "iterations")}, progress=shown)
    if dry_run:
        typer.echo(lines_of_data(listed(series)))
        typer.echo(str(unfitted.choose(series)))
        return
    assert model is not None
    fitted = unfitted.fit(series)
    if several and not is_first():
        return
    fitted.save(model)
    if metrics is not None:
        write_metrics(facts_of_model(fitted), metrics)
    say(quiet, f"the model is in {model}")
    if fitted.history_.interrupted:
        raise KeyboardInterrupt


@app.command()
def forecast(
    model: Model,
    data: Data,
    out: Out,
    steps: Annotated[int, typer.Option(help="How many time steps ahead.", min=1)],
    controls: Annotated[Path | None, typer.Option(help="Future controls, one row per step ahead; same kinds of files.")] = None,
    plot: Plot = None,
    probability: Probability = 0.95,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Forecast what follows some data, with intervals."""
    from prodssm.evaluation.plots import plot_forecast

    fitted, series = opened(model, data, out, plot, delimiter, encoding, quiet)
    future = controls_for(fitted, controls, steps, out, delimiter, encoding)
    with working("forecasting", quiet):
        ahead = fitted.forecast(series, steps, u=future)
    first, past = (ahead[0], series[0]) if isinstance(series, list) else (ahead, series)
    write_answer(ahead.to_frame("pyarrow", probability), out, plot, lambda: plot_forecast(first, past, last=4 * steps))
    say(quiet, f"the forecast is in {out}")


@app.command(name="filter")
def filter_(
    model: Model,
    data: Data,
    out: Out,
    plot: Plot = None,
    states: Annotated[bool, typer.Option("--states", help="Write hidden states instead of outputs.")] = False,
    probability: Probability = 0.95,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Say where the system was at each time, given the data up to then."""
    fitted, series = opened(model, data, out, plot, delimiter, encoding, quiet)
    write_beliefs(fitted.filter, series, out, plot, states, probability, quiet)


@app.command()
def smooth(
    model: Model,
    data: Data,
    out: Out,
    plot: Plot = None,
    states: Annotated[bool, typer.Option("--states", help="Write hidden states instead of outputs.")] = False,
    probability: Probability = 0.95,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Say where the system was at each time, given all data; fills gaps."""
    fitted, series = opened(model, data, out, plot, delimiter, encoding, quiet)
    write_beliefs(fitted.smooth, series, out, plot, states, probability, quiet)


@app.command()
def backtest(
    data: Data,
    out: Out,
    horizon: Annotated[int | None, typer.Option(help="Steps ahead.", min=1)] = None,
    step: Annotated[int | None, typer.Option(help="From one origin to the next; the horizon by default.", min=1)] = None,
    start: Annotated[int | None, typer.Option(help="Rows before the first origin; half of them by default.", min=1)] = None,
    window: Annotated[int | None, typer.Option(help="Rows before an origin that count; all by default.", min=1)] = None,
    refit: Annotated[bool, typer.Option("--refit", help="Fit a new model at every origin.")] = False,
    jobs: Annotated[int, typer.Option(help="Refits at a time.")] = 1,
    model: Annotated[Path | None, typer.Option(help="A fitted model; by default one is fitted to the first rows.")] = None,
    output: Output = None,
    control: Control = None,
    time: Time = None,
    group: Group = None,
    calendar: Calendar = None,
    one_hot: OneHot = None,
    fill: Fill = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    config: ConfigFile = None,
    likelihood: Likelihood = None,
    iterations: Iterations = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """Forecast from many past origins, and score what happened then, by horizon."""
    given = locals()
    from prodssm.evaluation.backtesting import backtest as run

    said = Config.read(config, KNOWN)
    flags: dict[str, Any] = {name: said.given(given, name) for name in ("horizon", "step", "start", "window")}
    if flags["horizon"] is None:
        raise ValueError("--horizon must say how many steps ahead")
    for path, kinds in ((out, TABLES), (plot, PLOTS)):
        if path is not None:
            require_target(path, kinds, data)
    if model is None:
        parts = {parameter: said.given(given, flag) for flag, parameter in OF_MODEL.items()}
        tried = estimator(said, parts, {"iterations": said.given(given, "iterations")}, progress=not quiet)
        with reading(quiet):
            series = DataSettings.of(given, said).series(data)
    else:
        with reading(quiet):
            tried = load_model(model)
            series = read_for(tried, data, delimiter, encoding)
    found = run(tried, series, refit=refit, n_jobs=jobs, progress=not quiet, **flags)
    write_answer(found.scores, out, plot, found.plot)
    say(quiet, f"{found!r}\nthe scores are in {out}")


@app.command()
def simulate(
    model: Model,
    out: Out,
    steps: Annotated[int, typer.Option(help="Length of a run.", min=1)],
    count: Annotated[int, typer.Option(help="Number of runs.", min=1)] = 1,
    controls: Annotated[Path | None, typer.Option(help="Controls, one row per step.")] = None,
    seed: Annotated[int, typer.Option(help="Of all randomness.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Draw runs from a model."""
    import jax
    import numpy as np
    import pyarrow

    require_target(out, TABLES)
    fitted = load_model(model)
    u = controls_for(fitted, controls, steps, out)
    with working("simulating", quiet):
        runs = [fitted.simulate(steps, jax.random.key(seed + n), u=u)[1] for n in range(count)]
    columns = {"run": np.repeat(np.arange(count), steps), "step": np.tile(np.arange(steps), count)}
    y = np.concatenate(runs)
    write_table(pyarrow.table(columns | {name: y[:, n] for n, name in enumerate(fitted.output_names_)}), out)
    say(quiet, f"{count} run{'s' if count > 1 else ''} of {steps} steps in {out}")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A model, or data.")],
    output: Output = None,
    control: Control = None,
    time: Time = None,
    group: Group = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    metrics: Metrics = None,
) -> None:
    """Say what a model or a data file is."""
    flags = locals()
    if file.suffix.lower() not in MODEL_FILE:
        typer.echo(lines_of_data(listed(DataSettings.of(flags, Config({}, {}, {})).series(file))))
        return
    fitted = load_model(file)
    typer.echo(lines_of_model(fitted))
    if metrics is not None:
        require_target(metrics, (".json",))
        write_metrics(facts_of_model(fitted), metrics)


@app.command()
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="Where to write the page, an .html file.")],
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Write one page about a model on data: skill, calibration, forecasts, states; it needs no network."""
    require_target(out, (".html",))
    with reading(quiet):
        fitted = load_model(model)
        series = read_for(fitted, data, delimiter, encoding)
    fitted.progress = not quiet
    fitted.report(series, out)
    say(quiet, f"the report is in {out}")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where to put its files.")] = Path("prodssm-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A few iterations only.")] = False,
) -> None:
    """Write the record of two tanks, learn it, forecast it; the commands are shown, for you to change."""
    from prodssm.cli.demo import run_demo
    from prodssm.cli.program import run

    run_demo(folder, quick=quick, call=lambda *words: run([*words]), say=typer.echo)
