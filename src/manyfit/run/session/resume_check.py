"""Checks whether a config may resume a run. Budget and neutral keys may differ; others make another run.

A difference that changes results is refused unless it is named: by its key in the config, by `data` or
`data.train`, by `code` or `code.<module>`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from manyfit.config import Config, Kind
from manyfit.config.identity import NOT_SET, Difference, Snapshot, diff_snapshots, flat
from manyfit.core.errors import RunConflict

log = logging.getLogger("manyfit")

HORIZON = "train.horizon"


class Recorded(Protocol):
    """What is recorded about a run: its folder, or the part of it that travels with the run."""

    @property
    def path(self) -> Path:
        """The folder of the run."""
        ...

    def snapshot(self) -> Snapshot | None:
        """Return the values of the config that the run was trained with; None before the first step."""
        ...

    def sessions(self) -> Sequence[Mapping[str, Any]]:
        """Return the starts of the run."""
        ...


def check_config(config: Config, folder: Recorded, allowed: Collection[str] = ()) -> set[str]:
    """Refuse a config that belongs to another run, or that exceeds the schedule of the run.

    Return the identity keys that have changed, all of which were allowed to.
    """
    trained = folder.snapshot()
    if trained is None:
        return set()
    given = flat(config.explicit)
    found = diff_snapshots(trained, config.snapshot)
    if any(difference.path in ("export.metric", "export.mode") for difference in found):
        log.warning(
            "export.metric or export.mode has changed: the best is chosen among the remaining checkpoints"
        )
    for difference in found:
        key, before, after = difference.path, difference.before, difference.after
        both = isinstance(before, int) and isinstance(after, int)
        if key in ("train.epochs", "epochs") and both and after < before:
            log.warning("%s is now %s; it was %s when the run was last started", key, after, before)
    results = [d for d in found if d.kind is Kind.IDENTITY and not _is_new_default(d, given)]
    changed = [d for d in results if not is_allowed(d.path, allowed)]
    if changed:
        lines = "\n".join(f"  {difference}" for difference in changed)
        names = " ".join(f"--allow-change {difference.path}" for difference in changed)
        raise RunConflict(
            f"{folder.path} was trained with another config:\n{lines}\n"
            "train the new config in a separate folder, restore the old values, "
            f"or resume with the change: {names}"
        )
    horizon, epochs = config.run.train.horizon, config.run.train.epochs
    if horizon is not None and epochs > horizon and not is_allowed(HORIZON, allowed):
        raise RunConflict(
            f"the schedule of {folder.path} ends after {horizon} epochs, not {epochs}: train a longer "
            f"schedule in a separate folder, or continue at its last rate: --allow-change {HORIZON}"
        )
    return {difference.path for difference in results}


def check_data(
    now: Mapping[str, str], folder: Recorded, allowed: Collection[str] = (), splits: Collection[str] = ()
) -> None:
    """Refuse data that differs from what the run has seen so far, in all splits or in those of `splits`."""
    sessions = folder.sessions()
    before = sessions[-1].get("data", {}) if sessions else {}
    changed = [
        split
        for split in splits or dict.fromkeys([*now, *before])
        if split in before
        and before[split] != now.get(split)
        and not is_allowed(f"data.{split}", allowed, "data")
    ]
    if changed:
        names = " ".join(f"--allow-change data.{split}" for split in changed)
        raise RunConflict(
            f"the data of {folder.path} has changed since it was trained: {', '.join(changed)}; restore "
            f"the old data, train in a separate folder, or resume with the change: {names}"
        )


def check_run_code(
    now: Mapping[str, str],
    folder: Recorded,
    source: Path,
    allowed: Collection[str] = (),
    evaluation: Collection[str] = (),
) -> None:
    """Refuse user code that differs from the code that has trained the run so far.

    `evaluation` are modules that are only used for evaluation: they may change, with a warning.
    """
    sessions = folder.sessions()
    before: Mapping[str, str] = sessions[-1].get("modules", {}) if sessions else {}
    changed = [
        name
        for name in now
        if before.get(name, now[name]) != now[name] and not is_allowed(f"code.{name}", allowed, "code")
    ]
    if reporting := [name for name in changed if name in evaluation]:
        log.warning("evaluation code has changed since the run was trained: %s", ", ".join(reporting))
        changed = [name for name in changed if name not in evaluation]
    if changed:
        names = " ".join(f"--allow-change code.{name}" for name in changed)
        where = "" if all(name.startswith("__main__.") for name in changed) else f" in {source.name}/"
        raise RunConflict(
            f"the code of {folder.path} has changed since it was trained: {', '.join(changed)}{where} "
            f"(comments and docstrings do not count); restore the old code, train in a "
            f"separate folder, or resume with the change: {names}"
        )


def find_changed_code(now: Mapping[str, str], folder: Recorded, step: int) -> list[str]:
    """Return the modules that have changed since a step was trained."""
    begun = [(each.get("from_step", 0), each.get("modules")) for each in folder.sessions()]
    trained = [modules for start, modules in begun if isinstance(start, int) and start < step]
    before = trained[-1] if trained and isinstance(trained[-1], dict) else {}
    return [name for name in now if before.get(name, now[name]) != now[name]]


def check_backend(now: str, folder: Recorded, allowed: Collection[str] = ()) -> None:
    """Refuse to resume with another Keras backend than before."""
    sessions = folder.sessions()
    before = sessions[-1].get("backend", now) if sessions else now
    if before != now and not is_allowed("backend", allowed):
        raise RunConflict(
            f"{folder.path} was trained with Keras on {before}, but KERAS_BACKEND is now {now}; set it back, "
            "or resume with the change: --allow-change backend"
        )


def is_allowed(path: str, allowed: Collection[str], group: str = "") -> bool:
    """Return whether a difference was allowed: by its own key, or by a parent key."""
    parts = path.split(".")
    prefixes = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return bool(prefixes & set(allowed)) or bool(group and group in allowed)


def _is_new_default(difference: Difference, given: Mapping[str, object]) -> bool:
    """Return whether a parameter is new in this version and unset, so that nothing has changed."""
    return difference.before is NOT_SET and difference.path not in given
