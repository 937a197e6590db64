"""The exceptions that manyfit raises.

::

    ManyfitError                 exit code 1
    ├── UsageError               exit code 2: the request cannot be carried out
    │   ├── ConfigError          a config with one or more problems, all of them listed
    │   ├── ExtraMissing         an optional package is not installed; names the extra
    │   ├── RunConflict          a run folder that belongs to another config, or to another process
    │   └── FolderError          a run folder that is missing, unreadable or damaged
    ├── RunFailed                a run that started and could not be finished
    │   ├── ComponentFailed      user code raised while it was built or called
    │   ├── NotANumber           a loss that is NaN or infinite
    │   └── Diverged             a loss far above the lowest so far
    └── Interrupted              exit code 128 + signal number
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value is defined: a file and a line, or a part of the command line."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a config: its place, what was expected, what was received, and a suggestion."""

    path: str
    origin: Origin
    message: str
    expected: str = ""
    received: str = ""
    suggestion: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.origin}: {self.path}: {self.message}" if self.path else f"{self.origin}: {self.message}"
        )
        if self.expected:
            text += f"\n    expected: {self.expected}"
        if self.received:
            text += f"\n    received: {self.received}"
        if self.suggestion:
            text += f"\n    did you mean: {self.suggestion}"
        return text


class ManyfitError(Exception):
    """Base class of all errors; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(ManyfitError):
    """The request cannot be carried out."""

    exit_code = 2


class ConfigError(UsageError):
    """A config with problems. All of them are in `problems`, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        head = "1 problem in the configuration" if count == 1 else f"{count} problems in the configuration"
        super().__init__("\n".join([f"{head}:", *(f"  {p}".replace("\n", "\n  ") for p in self.problems)]))


class ExtraMissing(UsageError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"the package {package!r} is required: pip install 'manyfit[{extra}]'")


class RunConflict(UsageError):
    """A run folder that belongs to another config, or to another process."""


class FolderError(UsageError):
    """A run folder that is missing, unreadable or damaged."""


class RunFailed(ManyfitError):
    """A run that started and could not be finished."""

    kind = "failed"


class ComponentFailed(RunFailed):
    """User code raised while it was built or called. The cause is chained."""

    kind = "user error"


class NotANumber(RunFailed):
    """A loss that is NaN or infinite."""

    kind = "not a number"


class Diverged(RunFailed):
    """A loss far above the lowest so far."""

    kind = "diverged"


class Interrupted(ManyfitError):
    """A signal ended the work."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


LOADER_DIED: Final = re.compile(r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)")
"""torch's message when a data loading process was killed."""


def classify_error(error: BaseException) -> str:
    """Return the kind of failure that an exception is."""
    if is_out_of_memory(error) or (error.__cause__ is not None and is_out_of_memory(error.__cause__)):
        return "out of memory"
    if isinstance(error, RunFailed):
        return error.kind
    full = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    if isinstance(error, OSError) and error.errno in full:
        return "disk"
    if isinstance(error, FolderError):
        return "folder"
    if isinstance(error, RuntimeError) and LOADER_DIED.search(str(error)):
        return "process"
    return "data" if _came_through(error, "manyfit.data") else "user error"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: in Python, or in torch on a GPU or the CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _came_through(error: BaseException, package: str) -> bool:
    """Return whether an exception passed through a function of a package."""
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(package):
            return True
        trace = trace.tb_next
    return False
