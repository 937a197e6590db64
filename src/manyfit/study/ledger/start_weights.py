"""The start weights of a cloned point, copied when it is cloned because its parent keeps training."""

from __future__ import annotations

from pathlib import Path

from manyfit.config.tree.project import project_root
from manyfit.core.errors import FolderError, UsageError
from manyfit.store.checkpoint import Checkpoint
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, TrialRecord


def keep_weights(folder: StudyFolder, point: PointRecord) -> str:
    """Copy the newest checkpoint of every seed of a point; return the name of the copy.

    The name is `<point>@<seed>:<step>,…`, which `start` parses.
    """
    steps = {}
    begun = [trial for trial in point.trials if folder.trial(trial.id).checkpoints()]
    for trial in begun or point.trials:
        for _ in range(5):  # training may remove a checkpoint while it is being copied
            found = folder.trial(trial.id).checkpoints()
            if not found:
                raise UsageError(
                    f"point {point.number} has no checkpoint yet, so its weights cannot be copied"
                )
            if copy_checkpoint(found[-1], folder.weights / f"{trial.id}-{found[-1].step}"):
                steps[trial.seed] = found[-1].step
                break
        else:
            raise UsageError(f"the weights of point {point.number} change too quickly to be copied")
    return f"{point.id}@" + ",".join(f"{seed}:{step}" for seed, step in steps.items())


def copy_checkpoint(found: Checkpoint, final: Path) -> bool:
    """Copy a checkpoint; return False if it was removed in the meantime."""
    if final.exists():
        return True
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        found.copy_to(final)
    except FolderError:
        return False
    return True


def start(folder: StudyFolder, project: Path, point: PointRecord, trial: TrialRecord) -> dict[str, str]:
    """Return `train.warm_start` for a trial of a clone; if the parent lacks its seed, another one is used."""
    from manyfit.study.work.points import trial_name

    parent, _, steps = point.parent.partition("@")
    known = {int(seed): int(step) for seed, step in (item.split(":") for item in steps.split(","))}
    seed = trial.seed if trial.seed in known else next(iter(known))
    path = (folder.weights / f"{trial_name(parent, seed)}-{known[seed]}").resolve()
    # Workers load the base from the study folder, which may not be in a project.
    is_there = project_root(folder.path / "base" / "config.yaml").resolve() == project.resolve()
    return {"path": str(path.relative_to(project.resolve()) if is_there else path)}
