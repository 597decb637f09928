"""The program: runs a command, and says what is wrong in one sentence."""

import os
import sys
import warnings

import typer

from prodssm._progress import LOG
from prodssm.cli.app import app
from prodssm.cli.processes import command_line
from prodssm.cli.shared import errors

WRONG, INTERRUPTED = 2, 130  # exit codes


def main() -> None:
    """Run the command that the arguments name; exit code 2 and one sentence if something is wrong, 130 if interrupted."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """The exit code of a command."""
    from prodssm import enable_compilation_cache

    os.environ.setdefault("MPLBACKEND", "Agg")
    command_line.set(words)
    warnings.formatwarning = lambda message, *_, **__: f"note: {message}\n"
    try:
        enable_compilation_cache()
    except OSError:  # a cache is not worth an error
        pass
    try:
        found = typer.main.get_command(app).main(args=words, prog_name="prodssm", standalone_mode=False)
        if found == INTERRUPTED:  # what some versions of typer make of an interrupt
            raise KeyboardInterrupt
        return found if isinstance(found, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        errors.print("interrupted", markup=False)
        return INTERRUPTED
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError, MemoryError) as error:
        errors.print(f"error: {_sentence(error)}", markup=False)
        return WRONG
    except Exception as error:
        said = getattr(error, "format_message", None)  # of typer's own errors, which have no public base class
        if said is None:
            LOG.debug("unforeseen error", exc_info=True)
            errors.print(f"error: {type(error).__name__}: {_sentence(error)}; this is a bug, please report it", markup=False)
            return WRONG
        asked = type(error).__name__ == "NoArgsIsHelpError"
        errors.print(said() if asked else f"error: {said()}", markup=False)
        return WRONG


def _sentence(error: BaseException) -> str:
    """What is wrong, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return text or type(error).__name__
