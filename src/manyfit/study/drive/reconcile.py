"""Reconciliation at every start: the ledger, the current study file and the run folders."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from manyfit.config.identity import Snapshot, diff_snapshots, hash_data
from manyfit.config.study.study import StudyConfig
from manyfit.config.typed.cadence import Cadence
from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import FolderError, RunConflict, UsageError
from manyfit.core.names import pluralize
from manyfit.run.build.user_code import hash_imported, hash_main_classes
from manyfit.run.session.resume_check import is_allowed
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.decisions import Stopper, next_pause, pauses_of
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, TrialRecord, epochs_of
from manyfit.study.work.schedule import close
from manyfit.study.work.training import read_committed_progress
from manyfit.study.work.units import SHORT, Failure, Outcome

log = logging.getLogger("manyfit")


def reconcile(
    study: StudyConfig, folder: StudyFolder, ledger: Ledger, stopper: Stopper | None, *, folders: bool = True
) -> None:
    """Update the ledger: no trial is `running` any more, and what the study now asks for is open again.

    Without `folders`, the executor keeps no run folders, and only the ledger and the study file count.
    """
    # In the ledger, "budget" is `train.stop`, "stop" is `search.stop`, and "aim" is the objective.
    stop_changed = _has_changed(ledger, "budget", _budget(study))
    stopper_changed = _has_changed(ledger, "stop", _stop(study))
    objective = {"metric": study.objective.metric, "mode": study.objective.mode}
    objective_changed = _has_changed(ledger, "aim", objective) and folders
    crashed = ledger.get("isolates") is False
    travels = study.execute.hop or bool(ledger.get("travels"))  # states may have been in memory only
    pauses = set(pauses_of(stopper, study.base.run.train.epochs)) if stopper is not None else set()
    reported = ledger.get("reported") or {}
    before = {trial.id: max(trial.step, reported.get(trial.id, 0)) for trial in ledger.trials.values()}
    with ledger.transaction():
        for point in ledger.points:
            if not point.current:
                continue
            point.trials = [trial for trial in point.trials if trial.seed in study.seeds]
            for seed in study.seeds if point.state != "stopped" else ():
                ledger.add_trial(point, seed)
            if folders and any(t.step and not folder.trial(t.id).path.is_dir() for t in point.trials):
                epochs = epochs_of(point.values, study.base.run.train.epochs)
                if point.state != "open" and point.granted != 0:  # unless a user has stopped it
                    point.state, point.reason = "open", ""
                    point.granted = next_pause(stopper, 0, epochs)
                for seed in study.seeds:
                    ledger.add_trial(point, seed)
            for trial in point.trials:
                if objective_changed and trial.step:
                    trial.curve, trial.value = (), None
                    _read_progress(trial, folder, study)
                _update_trial(trial, point, study, folder, stop_changed, crashed, folders, travels)
            _update_point(point, stopper, pauses, study, stopper_changed)
            close(point)
            ledger.save_point(point)
            for trial in point.trials:
                ledger.save_trial(trial)
        ledger.set("reported", {})
        repeated = sum(
            max(0, before.get(trial.id, 0) - trial.step)
            for trial in ledger.trials.values()
            if not folders or folder.trial(trial.id).path.is_dir()  # or else, somebody has removed it
        )
        ledger.count_repeated(repeated)
    if repeated:
        log.warning("%s must be trained again: they were not on disk yet", pluralize(repeated, "step"))


def _update_trial(
    trial: TrialRecord,
    point: PointRecord,
    study: StudyConfig,
    folder: StudyFolder,
    stop_changed: bool,
    crashed: bool,
    folders: bool,
    travels: bool,
) -> None:
    """Update a trial: one that was interrupted waits; a finished one continues if it may train longer."""
    if folders and trial.step and not folder.trial(trial.id).path.is_dir():
        log.warning("the folder of trial %s is missing: the trial is trained again", trial.id)
        trial.state, trial.step, trial.epoch, trial.over = "waiting", 0, 0.0, False
        trial.curve, trial.value, trial.failure = (), None, None
    # What is known about a point that was stopped stays: nothing will train it again.
    is_open = point.state == "open" and trial.state in ("running", "waiting", "paused")
    if folders and travels and is_open and trial.step:
        _rewind(trial, folder, study)
    if trial.state == "running":
        trial.state = "waiting"
        before = trial.step
        if folders:
            _read_progress(trial, folder, study)
        if crashed and trial.step == before:
            trial.deaths += 1
            if trial.deaths > study.execute.retries:
                trial.state = "failed"
                text = f"the process died {trial.deaths} times while this trial was trained in it"
                trial.failure = Failure("infrastructure", text, group="driver", process_died=True)
    epochs = epochs_of(point.values, study.base.run.train.epochs)
    ended_early = bool(trial.reason)
    if trial.state == "finished" and (
        (trial.epoch < epochs and not ended_early) or (ended_early and stop_changed)
    ):
        trial.state, trial.over, trial.reason = "waiting", False, ""


def _rewind(trial: TrialRecord, folder: StudyFolder, study: StudyConfig) -> None:
    """Set a trial that travels back to its last state on disk: what was only in memory is trained again."""
    try:
        step, epoch, curve = read_committed_progress(folder.trial(trial.id), study.objective.metric)
    except FolderError as error:
        log.warning("%s", error)
        return
    trial.step, trial.epoch, trial.curve = step, epoch, curve
    trial.value = trial.best(math.inf, study.objective.sign)


def _read_progress(trial: TrialRecord, folder: StudyFolder, study: StudyConfig) -> None:
    """Read from its run folder what a trial had committed before the interruption."""
    try:
        step, epoch, curve = read_committed_progress(folder.trial(trial.id), study.objective.metric)
    except FolderError as error:
        log.warning("%s", error)
        return
    found = Outcome(trial.id, step, epoch, max(0, step - trial.step), curve=curve)
    trial.take(found, study.objective.sign)


def _update_point(
    point: PointRecord,
    stopper: Stopper | None,
    pauses: Collection[int],
    study: StudyConfig,
    stopper_changed: bool,
) -> None:
    """Update a point: it is open if one of its trials is, and granted until a pause that still exists."""
    epochs = epochs_of(point.values, study.base.run.train.epochs)
    by_person = point.granted == 0
    if point.state == "stopped" and stopper_changed and not by_person:
        point.state, point.reason = "open", ""
    if point.state in ("finished", "failed") and any(not trial.is_done for trial in point.trials):
        point.state = "open"
    if point.state != "open":
        return
    if stopper is None:
        point.granted = None
    elif point.granted not in pauses:
        point.granted = next_pause(stopper, min(t.epoch for t in point.trials) - 0.5, epochs)
    for trial in point.trials:
        short = point.granted is None or trial.epoch < point.granted
        if trial.state in ("paused", "waiting") and not trial.over:
            trial.state = "waiting" if short else "paused"


def check_base(study: StudyConfig, ledger: Ledger, allowed: Collection[str]) -> None:
    """Raise if the base has changed so that new trials would not be comparable with old ones."""
    now = study.base.snapshot
    before = ledger.get("base")
    if before is not None and ledger.points:
        kinds = {key: Kind(kind) for key, kind in before["kinds"].items()}
        found = diff_snapshots(Snapshot(before["values"], kinds, ""), now)
        keys = set(study.space.keys)
        changed = [
            d for d in found
            if d.kind is Kind.IDENTITY and d.path != "seed" and not _within(d.path, keys)
            and not is_allowed(d.path, allowed, "base")
            and d.path in {**before["given"], **_list_given(study)}
        ]  # fmt: skip
        if changed:
            lines = "\n".join(f"  {difference}" for difference in changed)
            raise RunConflict(
                f"{study.folder} was started with another base:\n{lines}\n"
                "its trials would not be comparable: create another study, restore the old values, or add "
                "new trials next to the old ones with --allow-change base"
            )


def hash_study_code(study: StudyConfig) -> dict[str, str]:
    """Return hashes of the user's modules, and of the classes of the running script."""
    source = study.base.project / study.base.run.src_code_path
    return {**hash_imported(source), **hash_main_classes(study.base)}


def check_study_code(study: StudyConfig, ledger: Ledger, allowed: Collection[str]) -> None:
    """Raise if the user's code differs from the code that trained the study so far."""
    source = study.base.project / study.base.run.src_code_path
    before, now = ledger.get("modules") or {}, hash_study_code(study)
    changed = [
        name for name in now
        if before.get(name, now[name]) != now[name] and not is_allowed(f"code.{name}", allowed, "code")
    ]  # fmt: skip
    if changed and any(trial.step for trial in ledger.trials.values()):
        names = ", ".join(changed)
        raise RunConflict(
            f"the code of {study.folder} has changed since it was trained: {names} in {source.name}/ "
            "(comments and docstrings do not count). Old and new trials would not be comparable: create "
            "another study, restore the old code, or continue with --allow-change code if the results are "
            "the same"
        )


def keep_base(study: StudyConfig, ledger: Ledger) -> None:
    """Record the base for the checks of the next start. Call it once everything has been checked."""
    now = study.base.snapshot
    values = {key: value for key, value in now.values.items() if _is_plain(value)}
    kinds_now = {key: str(kind) for key, kind in now.kinds.items()}
    ledger.set("modules", hash_study_code(study))
    ledger.set("base_values", {key: v for key in study.space.keys if _is_plain(v := study.value(key))})
    ledger.set("base", {"values": values, "kinds": kinds_now, "given": _list_given(study)})


def check_pauses(study: StudyConfig) -> None:
    """Raise if the stopper pauses at epochs without a validation: it would have no values to compare."""
    stop, train = study.search.stop, study.base.run.train
    cadence = Cadence.parse(train.every.validate)
    if stop is None or not study.objective.metric.startswith("val_") or cadence.unit != "ep":
        return
    stopper: Stopper = stop.build()
    missed = [pause for pause in pauses_of(stopper, train.epochs) if pause % cadence.amount]
    if missed:
        raise UsageError(
            f"{stop.origin}: search.stop: points are compared after {pluralize(missed[0], 'epoch')}, but "
            f"validated only every {train.every.validate}: choose other epochs for the stopper, or validate "
            "more often"
        )


def retry(ledger: Ledger, kinds: Sequence[str]) -> int:
    """Requeue the trials that failed with one of these kinds; return how many."""
    wanted = {SHORT.get(kind, kind) for kind in kinds}
    count = 0
    with ledger.transaction():
        for point in ledger.points:
            for trial in point.trials:
                failure = trial.failure
                if failure is None or trial.state not in ("failed", "infeasible"):
                    continue
                if "failed" in wanted or failure.kind in wanted:
                    trial.state, trial.failure, trial.deaths = "waiting", None, 0
                    if point.state == "failed":
                        point.state = "open"
                        ledger.save_point(point)
                    ledger.save_trial(trial)
                    ledger.decide(point, "retry", f"trial {trial.id}: {failure.kind}")
                    count += 1
    return count


def _within(path: str, keys: Collection[str]) -> bool:
    return any(path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in keys)


def _list_given(study: StudyConfig) -> dict[str, bool]:
    from manyfit.config.identity import flat

    return dict.fromkeys(flat(study.base.explicit), True)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return isinstance(value, bool | int | float | str) or value is None


def _budget(study: StudyConfig) -> dict[str, Any]:
    values = study.base.snapshot.values
    return {key: value for key, value in values.items() if key.startswith("train.stop") and _is_plain(value)}


def _stop(study: StudyConfig) -> Any:
    stop = study.search.stop
    return None if stop is None else {"class": stop.path, **{k: repr(v) for k, v in stop.params.items()}}


def _has_changed(ledger: Ledger, key: str, now: Any) -> bool:
    """Return whether a fact differs from the last start, and record it for the next one."""
    before = ledger.get(key)
    ledger.set(key, {"value": now})
    return before is not None and hash_data(before["value"]) != hash_data(now)
