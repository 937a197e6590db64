"""Seals: signatures that mark files as written by this user on this machine.

A seal is a keyed hash. The key is generated once per user and never leaves the machine, so a file from
elsewhere cannot carry a seal that is valid here. A seal proves who wrote a text and for which project, not
that its content is harmless.
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
    """Return the sealer of a project. It is cached: a study needs it for every trial."""
    return _sealer(project, key_file())


@functools.lru_cache(maxsize=64)
def _sealer(project: Path, key: Path) -> Sealer:
    return Sealer(project, _key(key))


class Sealer:
    """The creation and verification of the seals of one project."""

    def __init__(self, project: Path, key: bytes) -> None:
        self._key = key
        self._project = os.fsencode(project.resolve()) + b"\0"

    @property
    def can_seal(self) -> bool:
        """Whether this user has a key."""
        return bool(self._key)

    def seal(self, text: str) -> str:
        """Return the seal of a text; empty if this user has no key."""
        if not self._key:
            return ""
        message = self._project + text.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(message, key=self._key, digest_size=SIZE).hexdigest()

    def holds(self, found: object, text: str) -> bool:
        """Return whether a seal was created by this user on this machine for this text and project."""
        if not isinstance(found, str) or not found:
            return False
        return hmac.compare_digest(self.seal(text).encode(), found.encode("utf-8", "replace"))


def key_file() -> Path:
    """Return the path of the key: in the user's state folder, which is not shared with a project."""
    return _key_file(os.environ.get("XDG_STATE_HOME") or "~/.local/state", os.environ.get("HOME", ""))


@functools.lru_cache(maxsize=8)
def _key_file(state: str, home: str) -> Path:
    return Path(state).expanduser() / "manyfit" / "key"


@functools.lru_cache(maxsize=8)
def _key(file: Path) -> bytes:
    """Read the key, or create it. If several processes start at once, one of them creates it."""
    try:
        if not file.exists():
            _make(file)
        found = read_bytes(file)
    except (OSError, RuntimeError, FolderError) as error:
        log.info(
            "no key can be stored in %s (%s): runs of this user will not be recognized later", file, error
        )
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
        os.link(temporary, file)  # fails if another process was first; its key is used
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
