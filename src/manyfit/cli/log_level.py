"""What of manyfit's log is written to stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any

from manyfit.cli.output import say


def set_log_level(level: str) -> None:
    """Send manyfit's log to stderr, without secrets."""

    logger = logging.getLogger("manyfit")
    handler = _StderrHandler(logging.getLevelNamesMapping()[level.upper()])
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.handlers[:] = [handler]
    logger.propagate = False  # some libraries add a handler to the root logger
    logger.setLevel(level.upper())


class _StderrHandler(logging.Handler):
    """A handler that writes to the current `sys.stderr`; on a terminal, also what announces long work."""

    def __init__(self, wanted: int) -> None:
        super().__init__(min(wanted, logging.INFO))
        self._wanted = wanted

    def filter(self, record: logging.LogRecord) -> Any:
        """Return whether a record is written."""
        announces = getattr(record, "is_progress", False) and self._wanted <= logging.WARNING
        shown = record.levelno >= self._wanted or (announces and sys.stderr.isatty())
        return shown and super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), err=True)
