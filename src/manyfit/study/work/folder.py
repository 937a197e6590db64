"""The study folder: `studies/<name>/` with its ledger, its trials and the best of them."""

from __future__ import annotations

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
    "weights",
    "inbox",
    "best",
    "study.log",
)
"""What manyfit writes into a study folder. None of it may lead out of the folder."""


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """Paths inside a study."""

    path: Path

    @property
    def name(self) -> str:
        """The study's name."""
        return self.path.resolve().name

    @property
    def ledger(self) -> Path:
        """The durable record."""
        return self.path / "ledger.db"

    @property
    def trials(self) -> Path:
        """One run folder for each trial."""
        return self.path / "trials"

    @property
    def weights(self) -> Path:
        """Weights that trials began with, copied when they were cloned."""
        return self.path / "weights"

    @property
    def inbox(self) -> Path:
        """Commands that people have given."""
        return self.path / "inbox"

    @property
    def best(self) -> Path:
        """The best trial as a run folder of its own, exported and evaluated."""
        return self.path / "best"

    @property
    def provenance(self) -> Path:
        """Versions, hardware and code, once for all trials."""
        return self.path / "provenance.json"

    def base(self, fingerprint: str) -> Path:
        """The base config as it was when the study was started."""
        return self.path / "base" / f"{fingerprint[:12]}.yaml"

    def trial(self, id: str) -> RunFolder:
        """The run folder of a trial."""
        return RunFolder(self.trials / id)

    def sessions(self) -> list[dict[str, Any]]:
        """How the study was started, each time."""
        return RunFolder(self.path).sessions()

    def check_links(self) -> None:
        """Refuse a folder in which a link would lead what is written out of it."""
        for name in WRITTEN:
            if (self.path / name).is_symlink():
                raise FolderError(
                    f"{self.path / name} is a link, which would lead out of the study; remove it"
                )
