"""The command line: `prodssm fit`, `forecast`, `filter`, `smooth`, `backtest`, `simulate`, `inspect`, `report`, `demo`."""


def main() -> None:
    """Run the program `prodssm`, which is installed with or without the packages that it needs."""
    try:
        from prodssm.cli.program import main as run
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: the program needs {error.name}: pip install 'prodssm[cli]'") from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # as in program.py, while that is imported
    run()
