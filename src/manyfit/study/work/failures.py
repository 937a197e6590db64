"""Classification of exceptions as failures of a known kind."""

from __future__ import annotations

import hashlib
import traceback
from typing import Final

from manyfit.core.errors import (
    ConfigError,
    FolderError,
    Interrupted,
    ManyfitError,
    RunFailed,
    UsageError,
    classify_error,
)
from manyfit.core.redaction import redact
from manyfit.core.tracebacks import explain_error, notes, user_frame
from manyfit.study.work.units import Failure, FailureKind

MOST_TEXT: Final = 4_000


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a failure of a known kind."""
    cause = error.__cause__ if isinstance(error, RunFailed) and error.__cause__ is not None else error
    lines = traceback.format_exception(type(cause), cause, cause.__traceback__)
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(cause.__traceback__)]
    group = hashlib.sha256(repr((type(cause).__name__, frames)).encode()).hexdigest()[:12]
    if isinstance(error, ManyfitError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {explain_error(error)}{notes(error)}\n  at {user_frame(error)}"
    is_usage = isinstance(error, UsageError) and not isinstance(error, FolderError)
    shown, trace = redact(text)[:MOST_TEXT], redact("".join(lines))[-MOST_TEXT:]
    return Failure(_kind(error), shown, trace, group, is_usage=is_usage)


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, Interrupted):
        return "preempted"
    if isinstance(error, FolderError) and not isinstance(error, ConfigError):
        return "infrastructure"
    known: dict[str, FailureKind] = {
        "out of memory": "out of memory",
        "not a number": "not a number",
        "diverged": "not a number",
        "data": "data",
        "disk": "infrastructure",
        "folder": "infrastructure",
        "process": "infrastructure",
    }
    return known.get(classify_error(error), "user error")
