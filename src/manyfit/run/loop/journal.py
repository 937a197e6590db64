"""What a run says about itself: its log file, and one clear message when it ends badly."""

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
"""What CUDA says of any index that is out of range, at some later call."""


@contextmanager
def translate_failures(run: RunFolder, what: str = "the run") -> Iterator[None]:
    """Turn what user code raises, and a Ctrl-C, into one clear message; the traceback goes to the log."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; the same command goes on from the last checkpoint in {run.path}", 2
        ) from None
    except ManyfitError as error:
        log.info("%s", error, exc_info=error)
        raise
    except BaseException as error:  # of user code, which may also end its process or raise what it likes
        log.info("%s failed", what, exc_info=error)
        said = f"{type(error).__name__}: {explain_error(error)}{notes(error)}"
        text = f"{what} failed with {said}\n  at {user_frame(error)}"
        if ASSERTED in said:
            text += (
                "\n  on a GPU this is usually a class index that the model has no output for, or an index "
                "beyond an embedding; run with train.device=cpu to see which"
            )
        if any(isinstance(handler, _FileHandler) and not handler.passing for handler in log.handlers):
            text += f"\n  the whole traceback is in {run.path / 'run.log'}"
        failed = RunFailed(redact(text))
        failed.kind = classify_error(error)
        raise failed from error


@contextmanager
def record_failure(run: RunFolder) -> Iterator[None]:
    """Keep in the folder why a run that had started has failed."""
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
            log.info("the failure could not be written down: %s", full)
        raise


@contextmanager
def hold_folder(run: RunFolder, passing: bool = False) -> Iterator[None]:
    """Hold a run folder in which no link leads out, and keep manyfit's own log in it."""
    with hold_lock(run.path):
        run.check_links()
        durable.tidy(run.path)
        with log_to(run.path / "run.log", passing):
            yield


_speaker: ContextVar[Path | None] = ContextVar("speaker", default=None)
"""The log of the run that something is done for, where several runs are open; None where one is."""


@contextmanager
def log_only_to(run: RunFolder) -> Iterator[None]:
    """Keep what is logged from here on out of the logs of the other runs of this process."""
    before = _speaker.set(run.path / "run.log")
    try:
        yield
    finally:
        _speaker.reset(before)


@contextmanager
def log_to(path: Path, passing: bool = False) -> Iterator[None]:
    """Keep manyfit's own log beside the run, without secrets. A passing one is removed with its folder."""
    check_file(path)
    durable.make_own(path)
    # Whoever uses Python without a log of his own hears of warnings as he would without this file.
    is_alone = not log.hasHandlers() and multiprocessing.parent_process() is None
    spoken = logging.StreamHandler() if is_alone else None
    if spoken is not None:
        spoken.setLevel(logging.WARNING)
        spoken.setFormatter(Redacting("manyfit: %(message)s"))
        log.addHandler(spoken)
    handler = _FileHandler(path, encoding="utf-8", delay=True)
    handler.addFilter(lambda record: _speaker.get() in (None, path))
    handler.passing = passing
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    level, wanted = log.level, min(log.level or logging.INFO, logging.INFO)
    if wanted != level:
        log.setLevel(wanted)  # which is slow: all loggers forget what they know
    try:
        yield
    finally:
        log.removeHandler(handler)
        if spoken is not None:
            log.removeHandler(spoken)
        if wanted != level:
            log.setLevel(level)
        handler.close()


class _FileHandler(logging.FileHandler):
    """A log file that may be full: then the run has other ways to say so."""

    passing = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Do not print a traceback over the message that matters."""

    def close(self) -> None:
        """Close the file, also if it cannot be flushed."""
        try:
            super().close()
        except OSError:
            self.stream = None


class Redacting(logging.Formatter):
    """A formatter that hides secrets, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record without the secrets that were read."""
        return printable(redact(super().format(record)))
