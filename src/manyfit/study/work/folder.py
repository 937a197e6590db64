"""The study folder: `studies/<name>/` with its ledger, its trials and the best of them."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import FolderError
from manyfit.store.folder import RunFolder

WRITTEN: Final = (
    ".lock",
    "ledger.db",
    "ledger.db-wal",
    "base",
    "trials",
    "groups",
    "compiled",
    "weights",
    "inbox",
    "best",
    "study.log",
)
"""Names that manyfit writes to in a study folder. None of them may be a link."""


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """The paths inside a study folder."""

    path: Path

    @property
    def name(self) -> str:
        """The study's name."""
        return self.path.resolve().name

    @property
    def ledger(self) -> Path:
        """The ledger file."""
        return self.path / "ledger.db"

    @property
    def trials(self) -> Path:
        """The folder with one run folder per trial."""
        return self.path / "trials"

    @property
    def groups(self) -> Path:
        """The checkpoints of trials that train in one pass, until they have files of their own."""
        return self.path / "groups"

    @property
    def compiled(self) -> Path:
        """Compiled steps of its trials."""
        return self.path / "compiled"

    @property
    def weights(self) -> Path:
        """Initial weights of cloned trials, copied when they were cloned."""
        return self.path / "weights"

    @property
    def inbox(self) -> Path:
        """The folder of user commands for the driver."""
        return self.path / "inbox"

    @property
    def best(self) -> Path:
        """The best trial as a separate run folder, exported and evaluated."""
        return self.path / "best"

    @property
    def provenance(self) -> Path:
        """The record of versions, hardware and code, common to all trials."""
        return self.path / "provenance.json"

    def base(self, fingerprint: str) -> Path:
        """Return the path of the base config as it was when the study was started."""
        return self.path / "base" / f"{fingerprint[:12]}.yaml"

    def trial(self, id: str) -> RunFolder:
        """Return the run folder of a trial."""
        return RunFolder(self.trials / id)

    def sessions(self) -> list[dict[str, Any]]:
        """Return the provenance of each start of the study."""
        return RunFolder(self.path).sessions()

    def check_links(self) -> None:
        """Refuse a folder in which a link would redirect writes out of it."""
        for name in WRITTEN:
            if (self.path / name).is_symlink():
                raise FolderError(f"{self.path / name} is a link, which may lead out of the study; remove it")


class PlaceWatch:
    """Tells whether a folder is still where it was."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.resolve()
        place = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, place)  # while it is open, no other folder gets its number
        found = os.fstat(place)
        self._number = found.st_dev, found.st_ino

    def is_moved(self) -> bool:
        """Return whether it was moved or removed."""
        try:
            found = self._path.stat()
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._number
