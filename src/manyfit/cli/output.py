"""The one way to print: without secrets, and without what would steer a terminal."""

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
    """Print data for programs as it is; on a terminal it is for people, and printed like anything else."""
    if sys.stdout.isatty():
        say(text, nl=False)
        return
    stream = sys.stdout  # click would take escapes out of it
    whole = stream.inner if isinstance(stream, Cleaned) else stream
    whole.write(clean_file(text))  # pieces of a secret may be ids


class Cleaned:
    """A stream that takes secrets out of what others print to it: code of a run, warnings, libraries."""

    def __init__(self, stream: TextIO, is_vital: bool = True) -> None:
        """`is_vital` says whether one that cannot be written ends the command; notes and bars do not."""
        self._stream = stream
        self._ignored = () if is_vital else (OSError,)

    @property
    def inner(self) -> TextIO:
        """The stream itself, for data."""
        return self._stream

    def write(self, text: str) -> int:
        """Write text without the secrets that were read."""
        with contextlib.suppress(*self._ignored):
            self._stream.write(clean(text))
        return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        with contextlib.suppress(*self._ignored):
            self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        self.write("".join(lines))

    @property
    def buffer(self) -> CleanedBytes:
        """The same for bytes."""
        return CleanedBytes(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CleanedBytes:
    """The bytes below such a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        """Write bytes without the secrets that were read."""
        self._stream.write(clean_bytes(bytes(data)))
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Write several pieces."""
        self.write(b"".join(map(bytes, lines)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def safe_streams(for_good: bool = False) -> Iterator[None]:
    """Keep secrets off the terminal, and print what it has no letters for as escapes.

    With `for_good` that holds until the process ends: threads and exit handlers may still print.
    """
    before = sys.stdout, sys.stderr
    # A stream that is closed (`>&-`) is None.
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
