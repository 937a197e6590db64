"""May this config go on in this folder? Budget and neutral differences may; others are another run."""

from __future__ import annotations

from collections.abc import Mapping

from manyfit.config import Config, Kind
from manyfit.config.identity import diff
from manyfit.core.errors import RunConflict
from manyfit.store.folder import RunFolder


def check_config(config: Config, folder: RunFolder) -> None:
    """Refuse a config that would continue another run, or go past the end of its schedule."""
    before = folder.snapshot()
    if before is None:
        return
    changed = [difference for difference in diff(before, config.snapshot) if difference.kind is Kind.IDENTITY]
    if changed:
        lines = "\n".join(f"  {difference}" for difference in changed)
        raise RunConflict(
            f"{folder.path} was trained with another config:\n{lines}\n"
            "train the new config in a folder of its own, or put the old values back"
        )
    horizon, epochs = config.run.train.horizon, config.run.train.epochs
    if horizon is not None and epochs > horizon:
        raise RunConflict(
            f"the schedule of {folder.path} ends after {horizon} epochs, not {epochs}: "
            "train a longer schedule in a folder of its own"
        )


def check_data(now: Mapping[str, str], folder: RunFolder) -> None:
    """Refuse data that differs from what the run has seen so far."""
    sessions = folder.sessions()
    before = sessions[-1].get("data", {}) if sessions else {}
    changed = [split for split in now if before.get(split, now[split]) != now[split]]
    if changed:
        raise RunConflict(
            f"the data of {folder.path} has changed since it was trained: {', '.join(changed)}; "
            "put the old data back, or train in a folder of its own"
        )
