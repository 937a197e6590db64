"""Seals: how manyfit recognises later what this user made on this machine.

A seal is a keyed hash. The key is made once for a user and never leaves the machine, so a file that came
from elsewhere cannot carry a seal that holds here. It says who wrote a text and for which project, nothing
about its content.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from manyfit.core.errors import FolderError
from manyfit.core.files import read_bytes

log = logging.getLogger("manyfit")

SIZE: Final = 32


def sealer(project: Path) -> Sealer:
    """Who makes and compares the seals of one project; a study asks for every trial."""
    return _sealer(project, key_file())


@functools.lru_cache(maxsize=64)
def _sealer(project: Path, key: Path) -> Sealer:
    return Sealer(project, _key(key))


class Sealer:
    """Makes and compares the seals of one project."""

    def __init__(self, project: Path, key: bytes) -> None:
        self._key = key
        self._project = os.fsencode(project.resolve()) + b"\0"

    @property
    def can_seal(self) -> bool:
        """Whether this user has a place for a key."""
        return bool(self._key)

    def seal(self, text: str) -> str:
        """Return the seal of a text; empty if this user has no place for a key."""
        if not self._key:
            return ""
        message = self._project + text.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(message, key=self._key, digest_size=SIZE).hexdigest()

    def holds(self, found: object, text: str) -> bool:
        """Whether a seal was made here, by this user, for this text and this project."""
        if not isinstance(found, str) or not found:
            return False
        return hmac.compare_digest(self.seal(text).encode(), found.encode("utf-8", "replace"))


def key_file() -> Path:
    """Where the key lies: among the user's state, which is not shared with a project."""
    return _key_file(os.environ.get("XDG_STATE_HOME") or "~/.local/state", os.environ.get("HOME", ""))


@functools.lru_cache(maxsize=8)
def _key_file(state: str, home: str) -> Path:
    return Path(state).expanduser() / "manyfit" / "key"


@functools.lru_cache(maxsize=8)
def _key(file: Path) -> bytes:
    """Read the key, or make one. Of several processes that begin at once, one makes it."""
    try:
        if not file.exists():
            _make(file)
        found = read_bytes(file)
    except (OSError, RuntimeError, FolderError) as error:
        log.info("no key can be kept in %s (%s): runs of this user are not recognised later", file, error)
        return b""
    return found if len(found) == SIZE else b""


def _make(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(SIZE))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(temporary, file)  # fails if another process was first, whose key then counts
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
