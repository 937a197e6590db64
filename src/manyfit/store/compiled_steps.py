"""Compiled steps in a folder, so that a study which goes on starts at once, also without the user's cache.

They are executed when they are loaded, so each has a seal: what another user or machine wrote is not read.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from manyfit.core.errors import FolderError
from manyfit.core.files import read_bytes
from manyfit.core.seal import sealer
from manyfit.store import durable

log = logging.getLogger("manyfit")


@dataclass(frozen=True)
class CompiledSteps:
    """The compiled steps in a folder, by key. Without them, steps are compiled again."""

    folder: Path
    project: Path

    def read(self, key: str) -> bytes | None:
        """Return what this user has written for a key, or None."""
        file = self._file(key)
        try:
            if not file.is_file():
                return None
            seal, _, data = read_bytes(file).partition(b"\n")
        except (OSError, FolderError) as error:
            log.debug("compiled steps could not be read: %s", error)
            return None
        if not sealer(self.project).holds(seal.decode("ascii", "replace"), _describe(key, data)):
            log.warning("%s is not loaded, as it was not written here, or was changed", file)
            return None
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep compiled steps. If that fails, they are compiled again the next time."""
        seal = sealer(self.project).seal(_describe(key, data))
        if not seal:  # nobody could trust them
            return
        try:
            durable.write_file(self._file(key), seal.encode() + b"\n" + data)
        except (OSError, FolderError) as error:
            log.debug("compiled steps could not be kept: %s", error)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.bin"


def _describe(key: str, data: bytes) -> str:
    """Return a text that stands for the data: the same seal is not valid under another key."""
    return f"compiled\0{key}\0{hashlib.sha256(data).hexdigest()}"
