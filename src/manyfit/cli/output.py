"""Printing, without secrets and without terminal control sequences."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, TextIO, cast

import click

from manyfit.core.redaction import clean, clean_bytes, clean_file, redact
from manyfit.core.text import printable


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a message or a result."""
    click.echo(printable(redact(str(text))), err=err, nl=nl)


def say_data(text: str) -> None:
    """Print data for programs verbatim; on a terminal it is printed like any other text."""
    if sys.stdout.isatty():
        say(text, nl=False)
        return
    stream = sys.stdout  # click would remove escape sequences
    whole = stream.inner if isinstance(stream, Cleaned) else stream
    whole.write(clean_file(text))  # only whole secrets: a piece of one may be an ID


class Cleaned:
    """A stream that removes secrets from all output: of user code, warnings and libraries."""

    def __init__(self, stream: TextIO, is_vital: bool = True) -> None:
        """With `is_vital`, a failed write raises an error; messages and progress bars may be lost."""
        self._stream = stream
        self._ignored = () if is_vital else (OSError,)

    @property
    def inner(self) -> TextIO:
        """The stream itself, for data."""
        return self._stream

    def write(self, text: str) -> int:
        """Write text without secrets."""
        with contextlib.suppress(*self._ignored):
            self._stream.write(clean(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with contextlib.suppress(*self._ignored):
            self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        self.write("".join(lines))

    @property
    def buffer(self) -> CleanedBytes:
        """The underlying byte stream, without secrets."""
        return CleanedBytes(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CleanedBytes:
    """A byte stream that removes secrets."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        """Write bytes without secrets."""
        self._stream.write(clean_bytes(bytes(data)))
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Write several pieces."""
        self.write(b"".join(map(bytes, lines)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def safe_streams(for_good: bool = False) -> Iterator[None]:
    """Remove secrets from stdout and stderr, and escape characters that the terminal cannot encode.

    With `for_good` this holds until the process ends: threads and exit handlers may still print.
    """
    before = sys.stdout, sys.stderr
    # A closed stream (`>&-`) is None.
    streams = [stream or open(os.devnull, "w") for stream in before]  # noqa: PTH123, SIM115
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = cast(TextIO, Cleaned(streams[0])), cast(TextIO, Cleaned(streams[1], False))
    try:
        yield
    finally:
        if not for_good:
            sys.stdout, sys.stderr = before
