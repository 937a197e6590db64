"""The command line: one module per command; `--help` imports none of them."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
import traceback
from typing import Any

import click

from manyfit.cli.output import safe_streams, say
from manyfit.core.errors import ManyfitError
from manyfit.core.version import __version__

VERBS = {
    "init": "Create a small project that is ready to train.",
    "train": "Train a run, or resume it.",
    "sweep": "Train the trials of a study, or resume them.",
    "status": "Show the progress of a study and its leaderboard.",
    "study": "Stop, resume, clone and add points of a study; export it.",
    "submit": "Submit a run or a study to a Slurm cluster.",
    "check": "Try out a run, or verify that it resumes exactly.",
    "evaluate": "Evaluate a run again, row by row.",
    "predict": "Predict rows, also for new data.",
    "export": "Export the model in other formats.",
    "compare": "Compare two runs on the same rows.",
    "list": "List the runs and studies of a project.",
    "show": "Show one run, its model, its schedule, or a checkpoint.",
    "history": "Draw the curves of runs and studies.",
    "find-lr": "Find a learning rate for a run.",
    "profile": "Show where the time of a run goes.",
    "config": "Show, check and compare configs.",
    "data": "Index, count, verify and convert files of records.",
    "track": "Send trackers what they have missed.",
    "doctor": "Check versions, devices, disk and extras, and report problems.",
    "completion": "Print the completion script for a shell.",
}


MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors about a path that the user has given; a full disk is not one."""

ALIASES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("trainer",): ("train", "--help"),
    ("trainer", "--help"): ("train", "--help"),
    ("trainer", "train"): ("train",),
    ("utils",): ("data", "--help"),
    ("utils", "--help"): ("data", "--help"),
    ("utils", "generate-metadata"): ("data", "index"),
    ("utils", "validate"): ("data", "verify"),
    ("utils", "total-examples"): ("data", "count", "--examples"),
}
"""Names of these commands in other systems."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used; their help lines come from a table."""

    def __init__(self, *args: Any, verbs: dict[str, str], package: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verbs = verbs
        self.package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a user needs them."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in self.verbs:
            return None
        command: click.Command = importlib.import_module(f"{self.package}.{name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest one."""
        args = [*ALIASES.get((args[0], *args[1:2]), args[:2]), *args[2:]]
        if args[0] not in self.verbs and not args[0].startswith("-"):
            from manyfit.core.names import nearest

            if known := [" ".join(words) for words in ALIASES if words[0] == args[0] and len(words) > 1]:
                there = ", ".join(each for each in known if "--" not in each)
                ctx.fail(f"no such command {' '.join(args[:2])!r}; valid commands: {there}.")
            best = nearest(args[0], self.verbs)
            ctx.fail(f"no such command {args[0]!r}." + (f" Did you mean {best!r}?" if best else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.verbs.items()))


def _log_level(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        from manyfit.cli.log_level import set_log_level

        set_log_level(value)


LOG_LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)


@click.group(
    cls=LazyGroup,
    verbs=VERBS,
    package="manyfit.cli",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="manyfit")
@click.option(
    "-l",
    "--log-level",
    type=LOG_LEVELS,
    expose_value=False,
    callback=_log_level,
    help="Log to stderr at this level and above.",
)
def cli() -> None:
    """Train, resume, evaluate and compare models from plain code and one typed YAML file."""


def main(args: list[str] | None = None) -> None:
    """Run the command line. An error is one message on stderr; the exit code tells its kind."""
    with safe_streams(for_good=args is None):
        _main(args)


def _main(args: list[str] | None) -> None:
    try:
        sys.exit(cli.main(args, prog_name="manyfit", standalone_mode=False) or 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        _complain(shown.getvalue(), nl=False)
        sys.exit(error.exit_code)
    except ManyfitError as error:
        _complain(f"manyfit: {error}")
        sys.exit(error.exit_code)
    except SystemExit as stop:  # user code may exit with text, which Python would print with its secrets
        if stop.code is None or isinstance(stop.code, int):
            raise
        _complain(stop.code)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        _complain("manyfit: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does; nothing can be reported.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _complain(f"manyfit: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
        sys.exit(2 if isinstance(error, MISTAKES) or error.errno == errno.ELOOP else 1)
    except BaseException:
        _complain(traceback.format_exc())
        _complain("manyfit: this is a bug in manyfit; the traceback above shows where")
        sys.exit(1)


def _complain(text: object, nl: bool = True) -> None:
    """Print to stderr; if that fails, the exit code still tells the kind of error."""
    with contextlib.suppress(OSError):
        say(text, err=True, nl=nl)
