"""The log file of a run, and one clear message when it fails."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from manyfit.core.errors import Interrupted, ManyfitError, RunFailed, classify_error
from manyfit.core.files import check_file
from manyfit.core.redaction import redact
from manyfit.core.text import printable
from manyfit.core.tracebacks import explain_error, notes, user_frame
from manyfit.store import durable
from manyfit.store.folder import RunFolder
from manyfit.store.lock import hold_lock

log = logging.getLogger("manyfit")

ASSERTED: Final = "device-side assert"
"""How CUDA reports any index that is out of range, at some later call."""


@contextmanager
def translate_failures(run: RunFolder, what: str = "the run") -> Iterator[None]:
    """Turn exceptions of user code, and Ctrl-C, into one clear message; the traceback goes to the log."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; run the same command again to resume from the last checkpoint in {run.path}", 2
        ) from None
    except ManyfitError as error:
        log.info("%s", error, exc_info=error)
        raise
    except BaseException as raised:  # user code may raise anything, including SystemExit
        # Python turns a StopIteration that passes through a generator into another error.
        is_turned = isinstance(raised, RuntimeError) and str(raised) == "generator raised StopIteration"
        cause = raised.__cause__ if is_turned and raised.__cause__ is not None else raised
        log.info("%s failed", what, exc_info=raised)
        described = f"{type(cause).__name__}: {explain_error(cause)}{notes(cause)}"
        text = f"{what} failed with {described}\n  at {user_frame(cause)}"
        if ASSERTED in described:
            text += (
                "\n  on a GPU this is usually a class index for which the model has no output, or an index "
                "that is out of range for an embedding; run with train.device=cpu to find out which"
            )
        if any(isinstance(handler, _FileHandler) and not handler.passing for handler in log.handlers):
            text += f"\n  the full traceback is in {run.path / 'run.log'}"
        failed = RunFailed(redact(text))
        failed.kind = classify_error(cause)
        raise failed from cause


@contextmanager
def record_failure(run: RunFolder) -> Iterator[None]:
    """Record in the folder why a run failed after it had started."""
    if run.failure_file.exists():
        run.failure_file.unlink(missing_ok=True)
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:
        found = run.checkpoints()
        kind = classify_error(error)
        text = str(error) if isinstance(error, ManyfitError) else f"{type(error).__name__}: {error}"
        try:
            run.write_failure(kind, redact(text), found[-1].step if found else 0)
        except OSError as full:
            log.info("could not record the failure: %s", full)
        raise


@contextmanager
def hold_folder(run: RunFolder, passing: bool = False) -> Iterator[None]:
    """Lock a run folder, refuse links that lead out of it, and write manyfit's log into it."""
    with hold_lock(run.path):
        run.check_links()
        durable.tidy(run.path)
        with log_to(run.path / "run.log", passing):
            yield


_current_log: ContextVar[Path | None] = ContextVar("current_log", default=None)
"""The log file of the run that is being worked for if several runs are open; None for a single run."""


@contextmanager
def log_only_to(run: RunFolder) -> Iterator[None]:
    """Keep log messages out of the logs of the other runs in this process."""
    before = _current_log.set(run.path / "run.log")
    try:
        yield
    finally:
        _current_log.reset(before)


@contextmanager
def log_to(path: Path, passing: bool = False) -> Iterator[None]:
    """Write manyfit's log to a file, with secrets redacted. A `passing` log is deleted with its folder."""
    check_file(path)
    durable.make_own(path)
    handler = _FileHandler(path, encoding="utf-8", delay=True)
    handler.addFilter(lambda record: _belongs(path))
    handler.passing = passing
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(message)s"))
    _open_logs.enter(handler)
    try:
        yield
    finally:
        _open_logs.leave(handler)
        handler.close()


def _belongs(path: Path) -> bool:
    """Return whether a line belongs to a log: if several are open, its run must be the current one."""
    current = _current_log.get()
    return current == path or (current is None and len(_open_logs.handlers) == 1)


class _OpenLogs:
    """The open logs. They share the level and the console: the last one that is closed restores both."""

    def __init__(self) -> None:
        self.handlers: list[logging.Handler] = []
        self._level = 0
        self._console: logging.Handler | None = None

    def enter(self, handler: logging.Handler) -> None:
        """Add a log."""
        if not self.handlers:
            # Without any handler, Python prints warnings to stderr. The file handler must not silence them.
            if not log.hasHandlers() and multiprocessing.parent_process() is None:
                self._console = logging.StreamHandler()
                self._console.setLevel(logging.WARNING)
                self._console.setFormatter(Redacting("manyfit: %(message)s"))
                log.addHandler(self._console)
            self._level = log.level
            wanted = min(log.level or logging.INFO, logging.INFO)
            if wanted != self._level:
                log.setLevel(wanted)  # slow, as it clears the caches of all loggers; hence the condition
        self.handlers.append(handler)
        log.addHandler(handler)

    def leave(self, handler: logging.Handler) -> None:
        """Remove a log."""
        log.removeHandler(handler)
        self.handlers.remove(handler)
        if self.handlers:
            return
        if self._console is not None:
            log.removeHandler(self._console)
            self._console = None
        if log.level != self._level:
            log.setLevel(self._level)


_open_logs = _OpenLogs()


class _FileHandler(logging.FileHandler):
    """A log file whose disk may be full: the run reports that in other ways."""

    passing = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore the error, so that its traceback does not bury the message that matters."""

    def close(self) -> None:
        """Close the file, even if it cannot be flushed."""
        try:
            super().close()
        except OSError:
            self.stream = None


class Redacting(logging.Formatter):
    """A formatter that redacts secrets, including those in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record with all known secrets redacted."""
        return printable(redact(super().format(record)))
