"""What a terminal shows of the log: libraries that are muted, and long work that is announced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PROGRESS: Final = {"is_progress": True}
"""The `extra` of log records that announce long work, which a terminal shows below its log level, too."""


@contextmanager
def mute(*names: str) -> Iterator[None]:
    """Restrict the loggers of these names to errors within this block."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
