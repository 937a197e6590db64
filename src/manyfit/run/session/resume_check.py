"""May this config go on in this folder? Budget and neutral differences may; others are another run.

A difference that changes results is refused unless it is named: by its key in the config, by `data` or
`data.train`, by `code` or `code.<module>`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from manyfit.config import Config, Kind
from manyfit.config.identity import NOT_SET, Difference, diff_snapshots, flat
from manyfit.core.errors import RunConflict
from manyfit.store.folder import RunFolder

log = logging.getLogger("manyfit")

HORIZON = "train.horizon"


def check_config(config: Config, folder: RunFolder, allowed: Collection[str] = ()) -> set[str]:
    """Refuse a config that would continue another run, or go past the end of its schedule.

    Return the keys that have changed and were allowed to.
    """
    trained = folder.snapshot()
    if trained is None:
        return set()
    given = flat(config.explicit)
    found = diff_snapshots(trained, config.snapshot)
    if any(difference.path in ("export.metric", "export.mode") for difference in found):
        log.warning("what is best has changed: it is chosen among the checkpoints that are still there")
    for difference in found:
        key, before, after = difference.path, difference.before, difference.after
        both = isinstance(before, int) and isinstance(after, int)
        if key in ("train.epochs", "epochs") and both and after < before:
            log.warning("%s is %s now; when the run was last started, it was %s", key, after, before)
    results = [d for d in found if d.kind is Kind.IDENTITY and not _is_new_default(d, given)]
    changed = [d for d in results if not is_allowed(d.path, allowed)]
    if changed:
        lines = "\n".join(f"  {difference}" for difference in changed)
        names = " ".join(f"--allow-change {difference.path}" for difference in changed)
        raise RunConflict(
            f"{folder.path} was trained with another config:\n{lines}\n"
            "train the new config in a folder of its own, put the old values back, "
            f"or go on with the change: {names}"
        )
    horizon, epochs = config.run.train.horizon, config.run.train.epochs
    if horizon is not None and epochs > horizon and not is_allowed(HORIZON, allowed):
        raise RunConflict(
            f"the schedule of {folder.path} ends after {horizon} epochs, not {epochs}: train a longer "
            f"schedule in a folder of its own, or go on at its last rate: --allow-change {HORIZON}"
        )
    return {difference.path for difference in results}


def check_data(
    now: Mapping[str, str], folder: RunFolder, allowed: Collection[str] = (), splits: Collection[str] = ()
) -> None:
    """Refuse data that differs from what the run has seen so far, in all splits or in some."""
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
            f"the data of {folder.path} has changed since it was trained: {', '.join(changed)}; put the old "
            f"data back, train in a folder of its own, or go on with the change: {names}"
        )


def check_run_code(
    now: Mapping[str, str],
    folder: RunFolder,
    source: Path,
    allowed: Collection[str] = (),
    evaluation: Collection[str] = (),
) -> None:
    """Refuse code of the user's own that differs from what has trained the run so far.

    `evaluation` are modules that cannot have done so: what they say may change.
    """
    sessions = folder.sessions()
    before: Mapping[str, str] = sessions[-1].get("modules", {}) if sessions else {}
    changed = [
        name
        for name in now
        if before.get(name, now[name]) != now[name] and not is_allowed(f"code.{name}", allowed, "code")
    ]
    if reporting := [name for name in changed if name in evaluation]:
        log.warning("%s evaluates otherwise than when the run was trained", ", ".join(reporting))
        changed = [name for name in changed if name not in evaluation]
    if changed:
        names = " ".join(f"--allow-change code.{name}" for name in changed)
        raise RunConflict(
            f"the code of {folder.path} has changed since it was trained: {', '.join(changed)} in "
            f"{source.name}/ (comments and docstrings do not count); put the old code back, train in a "
            f"folder of its own, or go on with the change: {names}"
        )


def find_changed_code(now: Mapping[str, str], folder: RunFolder, step: int) -> list[str]:
    """Modules that are not what they were when a step was trained."""
    begun = [(each.get("from_step", 0), each.get("modules")) for each in folder.sessions()]
    trained = [modules for start, modules in begun if isinstance(start, int) and start < step]
    before = trained[-1] if trained and isinstance(trained[-1], dict) else {}
    return [name for name in now if before.get(name, now[name]) != now[name]]


def check_backend(now: str, folder: RunFolder, allowed: Collection[str] = ()) -> None:
    """Refuse to go on with Keras on another backend than before."""
    sessions = folder.sessions()
    before = sessions[-1].get("backend", now) if sessions else now
    if before != now and not is_allowed("backend", allowed):
        raise RunConflict(
            f"{folder.path} was trained by Keras on {before}, but KERAS_BACKEND is {now} now; set it back, "
            "or go on with the change: --allow-change backend"
        )


def is_allowed(path: str, allowed: Collection[str], group: str = "") -> bool:
    """Whether a difference was named: by its key, or by one that it lies under."""
    parts = path.split(".")
    prefixes = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return bool(prefixes & set(allowed)) or bool(group and group in allowed)


def _is_new_default(difference: Difference, given: Mapping[str, object]) -> bool:
    """A parameter that a newer version has, and that nobody has set, leaves things as they were."""
    return difference.before is NOT_SET and difference.path not in given
