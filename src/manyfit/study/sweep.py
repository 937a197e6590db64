"""`sweep`: train a study and export its best trial. The same call resumes the study."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.config.study.study import StudyConfig, load_study
from manyfit.config.tree.nodes import Leaf, find, plain
from manyfit.config.tree.overrides import Overrides
from manyfit.config.tree.reader import dump, read_file
from manyfit.core.errors import ConfigError, RunConflict, RunFailed, UsageError
from manyfit.core.files import make_folder, read_text
from manyfit.core.redaction import redact
from manyfit.core.signals import Watch, watch_signals
from manyfit.data.randomness import own_randomness
from manyfit.run.build.user_code import main_classes
from manyfit.run.loop.journal import log_to
from manyfit.store import durable, provenance
from manyfit.store.folder import COPIED, RunFolder
from manyfit.store.group_folder import discard_leftovers
from manyfit.store.lock import hold_lock
from manyfit.study.drive.assigning import Options
from manyfit.study.drive.display import Display, Silent, choose_display
from manyfit.study.drive.driver import Driver
from manyfit.study.drive.hopping import Hopping
from manyfit.study.drive.inbox import Inbox, number_of
from manyfit.study.drive.keepers import Keepers
from manyfit.study.drive.planner import Execution, apply_plan, plan_execution
from manyfit.study.drive.reconcile import (
    check_base,
    check_pauses,
    check_study_code,
    keep_base,
    reconcile,
    retry,
)
from manyfit.study.drive.rehearsal import Asking, check_hop, rehearse_points
from manyfit.study.executors.base import Executor, Work
from manyfit.study.executors.choose import choose, choose_gpus
from manyfit.study.executors.processes import prepare, usable_cores
from manyfit.study.ledger import best
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.mirrors import mirror
from manyfit.study.result import Study, read_study
from manyfit.study.search.plan import StudyPlan, plan_study
from manyfit.study.search.sampling import is_blind, is_point
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.points import trial_name
from manyfit.study.work.training import Training
from manyfit.study.work.units import SHORT

log = logging.getLogger("manyfit")

Choose = Callable[[StudyConfig, Work, Watch, int], Executor]


@dataclass(frozen=True)
class Wish:
    """Options of a start that are not part of the study."""

    retry: Sequence[str] = ()
    only: Sequence[str] = ()
    fail_fast: bool = False
    allow_change: Collection[str] = ()
    quiet: bool = False


def sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    folder: str | Path | None = None,
    retry: Sequence[str] = (),
    only: Sequence[str] = (),
    fail_fast: bool = False,
    allow_change: Collection[str] = (),
    progress: bool = True,
) -> Study:
    """Train a study and return its results. The same call resumes it.

    `source` is a study folder, a YAML file, or the study as a dict; then `folder` is the study folder.

    >>> manyfit.sweep("studies/lr", ["search.trials=128"]).best.values     # doctest: +SKIP
    """
    if not is_inline(source, overrides):
        prepare()
    study = load_study(source, overrides, folder=Path(folder) if folder is not None else None)
    wish = Wish(retry, only, fail_fast, allow_change, not progress)
    return execute(study, wish, from_python=isinstance(source, Mapping))


def execute(
    study: StudyConfig, wish: Wish | None = None, choose: Choose = choose, from_python: bool = False
) -> Study:
    """Execute a loaded study on the executor that `choose` returns."""
    wish = wish or Wish()
    check_kinds(wish.retry)
    here = StudyFolder(study.folder)
    first = None
    if not here.ledger.exists():  # checked first, so that a study that cannot start leaves no folder behind
        check_pauses(study)
        first = plan_study(study)
    durable.make_place(here.path)
    with hold_lock(here.path), log_to(here.path / "study.log"), contextlib.ExitStack() as stack:
        here.check_links()
        durable.tidy(here.path)
        ledger = stack.enter_context(Ledger(here.ledger))
        stack.enter_context(guard_ledger(here.ledger))
        watch = stack.enter_context(watch_signals())
        stack.enter_context(own_randomness())
        if from_python:
            write_study(study, here)
        run(study, here, ledger, watch, wish, choose, stack, first)
    return read_study(here.path)


def run(
    study: StudyConfig,
    folder: StudyFolder,
    ledger: Ledger,
    watch: Watch,
    wish: Wish,
    choose: Choose,
    stack: contextlib.ExitStack,
    found: StudyPlan | None = None,
) -> None:
    """Check the study, train it, and export the best trial. Trials are recorded after all checks.

    `found` is the plan of a new study, if it was made already.
    """
    allowed = set(wish.allow_change)
    check_base(study, ledger, allowed)
    check_study_code(study, ledger, allowed)
    check_pauses(study)
    known = [point for point in ledger.points if point.origin == "asked"]
    if found is None or known:
        found = plan_study(study, known)
    ready = {trial_name(id, study.base.run.seed): config for id, config in found.configs.items()}
    base, metric = str(write_base(study, folder)), study.objective.metric
    mine, shared = tuple(main_classes(study.base)), list[Any]()
    planned = plan_execution(study, found, ledger, shared, watch)
    study = apply_plan(study, planned)
    work = Training(
        base, metric, allowed=tuple(allowed), ready=ready, shared=shared, carried=mine,
        fuse=study.execute.fuse, streams=count_streams(study),
    )  # fmt: skip
    found.configs.clear()
    discard_leftovers(folder.groups)
    engine = choose(study, work, watch, found.trials)
    has_keepers = engine.keeps_folders and (study.execute.hop or engine.travels)
    if engine.isolates and not has_keepers:  # its processes load and check the configs themselves
        ready.clear()
    stack.callback(engine.close)
    signals = stack.enter_context(signal_pipe())
    rehearse_points(study, found, ledger, engine, Asking(watch, signals))
    inbox = Inbox(folder.inbox)
    stack.callback(inbox.close)
    driver = Driver(study, folder, ledger, engine, watch, inbox=inbox, signals=signals)
    if has_keepers:
        driver.keepers = Keepers(study, folder, allowed, ready)
        ledger.set("travels", True)
    prepare_hopping(driver)
    begin_study(driver, found, wish)
    if engine.keeps_folders:
        make_folder(folder.trials)
    shown: Display = Silent() if wish.quiet else choose_display(sys.stderr, study, ledger.points)
    stack.callback(shown.close)
    driver.shown = shown
    say_plan(planned, shown)
    shown.say(f"{found.planned} points × {study.replicates}, {engine.slots} at once")
    driver.options = Options(select_points(ledger, wish.only), wish.fail_fast)
    driver.run()
    shown.close()
    conclude_study(driver)
    track(study, folder)


def count_streams(study: StudyConfig) -> int:
    """Return how many groups a worker trains side by side."""
    streams = 1 if study.execute.streams == "auto" else study.execute.streams
    if streams > 1 and not choose_gpus(study):
        log.warning("execute.streams: without a GPU, groups only take turns, which is not faster")
    return streams


def say_plan(planned: Execution | None, shown: Display) -> None:
    """Show how the study is executed, if that was planned."""
    for line in planned.describe() if planned is not None else ():
        log.info("%s", line)
        shown.say(line)


def prepare_hopping(driver: Driver) -> None:
    """Let the trials hop over the shards of the data, if they do."""
    study, ledger = driver.study, driver.ledger
    driver.dispatch.shards = shards = int(ledger.get("shards") or 0)
    if study.execute.hop:
        check_hop(ledger.get("shards"))
        measured = int(ledger.get("validation_shards") or 0)
        driver.hopping = Hopping(study, driver.folder, driver.executor, shards, measured, driver.keepers)


def begin_study(driver: Driver, found: StudyPlan, wish: Wish) -> None:
    """Record the current study in the ledger: its points, its seeds, and how it was started."""
    study, ledger = driver.study, driver.ledger
    record_study_start(study, driver.folder, driver.executor)
    with ledger.transaction():
        keep_current(study, ledger, found)
        for item in found.candidates:
            driver.add(item)
        ledger.set("objective", {"metric": study.objective.metric, "mode": study.objective.mode})
        ledger.set("seeds", study.seeds)
        ledger.set("folds", study.search.folds)
        ledger.set("epochs", study.base.run.train.epochs)
        ledger.set("trials", found.planned)
        ledger.set("space", study.space.keys)
        keeps = driver.executor.keeps_folders
        reconcile(study, driver.folder, ledger, driver.stopper, folders=keeps)
        ledger.set("isolates", driver.executor.isolates)
        driver.asker.recount()
        keep_base(study, ledger)
    if wish.retry:
        retry(ledger, wish.retry)


def keep_current(study: StudyConfig, ledger: Ledger, found: StudyPlan) -> None:
    """Mark points that the study file no longer has as not current; nothing is removed."""
    names = {item.id for item in found.candidates}
    for point in ledger.points:
        if point.origin == "grid" or (point.origin == "asked" and is_blind(study)):
            current = point.id in names
        elif point.origin == "asked":
            current = is_point(study, point.values)
        else:
            current = True
        if current != point.current:
            point.current = current
            ledger.save_point(point)


def conclude_study(driver: Driver) -> None:
    """Export and evaluate the best trial, or all of them, and write `best/`."""
    study, ledger, folder = driver.study, driver.ledger, driver.folder
    discard_leftovers(folder.groups)
    sign, objective = study.objective.sign, study.objective
    order = best.rank_points(ledger.points, sign, driver.epochs)
    if study.execute.evaluate == "all":
        todo = [(p, t) for p in order for t in p.trials if t.state == "finished"]
        driver.evaluate([item for item in todo if not best.is_evaluated(folder, item[1])])
    if order and driver.executor.keeps_folders:
        point = order[0]
        trial = best.best_trial(point, sign, driver.epochs)
        there = folder.trial(trial.id).checkpoint_folder.is_dir()
        if not there:
            log.warning(
                "the checkpoints of the best trial, %s, were removed, so best/ is not written", trial.id
            )
        elif not best.is_current(folder, trial, objective.metric, objective.mode):
            done = best.is_evaluated(folder, trial) or driver.evaluate([(point, trial)])
            if done:
                best.write_best(folder, point, trial, objective.metric, objective.mode)


def track(study: StudyConfig, folder: StudyFolder) -> None:
    """Update the mirrors. A tracker that is down never fails a study; it is synchronized later."""
    wanted = study.track
    if not wanted.tensorboard and wanted.mlflow is None:
        return
    try:
        mirror(folder.path, wanted.tensorboard, wanted.mlflow)
    except UsageError:
        raise
    except Exception as error:  # a tracker may raise anything
        text = redact(str(error)).strip().partition("\n")[0][:200]
        log.warning(
            "a mirror is not up to date: %s; once the tracker is available: manyfit track sync %s",
            text,
            folder.path,
        )


def write_base(study: StudyConfig, folder: StudyFolder) -> Path:
    """Write the current base to the study folder, for the workers and for later reference."""
    text = f"# Written by manyfit: the base of this study.\n{dump(plain(study.base.given.tree))}"
    file = folder.base(hashlib.sha256(text.encode()).hexdigest())
    make_folder(file.parent)
    if not file.exists() or read_text(file) != text:
        durable.write_file(file, text)
    return file.resolve()


def write_study(study: StudyConfig, folder: StudyFolder) -> None:
    """Write a study that was passed from Python to `study.yaml`, so that the command line can resume it."""
    file = folder.path / "study.yaml"
    if file.exists() and not read_text(file).startswith(COPIED):
        raise RunConflict(f"{file} was not written by manyfit; sweep that file, or choose another folder")
    text = plain(study.text)
    if isinstance(text["base"], str):  # in a file, paths are relative to its folder
        text["base"] = os.path.relpath(study.base.project / text["base"], folder.path.resolve())
    durable.write_file(file, f"{COPIED}\n{dump(text)}")


def record_study_start(study: StudyConfig, folder: StudyFolder, engine: Executor) -> None:
    """Record versions, hardware and code, once for all trials of this start."""
    facts = {
        "data": {},
        "modules": {},
        "base": study.base.fingerprint,
        "threads": study.base.run.train.threads,
        **engine.describe(),
    }
    provenance.record_start(RunFolder(folder.path), study.base.project, facts)


def select_points(ledger: Ledger, only: Sequence[str]) -> set[int] | None:
    """Return the numbers of the points that `only` names; None for all points."""
    if not only:
        return None
    ids = {point.id: point.number for point in ledger.points}
    ids |= {trial.id: trial.point for trial in ledger.trials.values()}
    return {number_of(text, len(ledger.points), ids) for text in only}


def is_inline(source: str | Path | Mapping[str, Any], overrides: Overrides) -> bool:
    """Return whether no workers will be needed, as far as can be determined before loading the study."""
    if len(usable_cores()) == 1 or any(str(word) == "execute.on=inline" for word in overrides):
        return True
    if isinstance(source, Mapping):
        return bool(source.get("execute", {}).get("on") == "inline")
    try:
        file = Path(source) / "study.yaml" if Path(source).is_dir() else Path(source)
        node = find(read_file(file), ("execute", "on"))
    except (ConfigError, OSError):
        return True  # loading the study reports it
    return isinstance(node, Leaf) and node.value == "inline"


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise if a kind of failure is unknown."""
    known = ("failed", *SHORT, *SHORT.values())
    for kind in kinds:
        if kind not in known:
            raise UsageError(f"there is no kind of failure {kind!r}; expected failed, {', '.join(SHORT)}")


@contextlib.contextmanager
def guard_ledger(ledger: Path) -> Iterator[None]:
    """Raise a clear error when the ledger cannot be written, for example because the disk is full."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise RunFailed(
            f"the ledger {ledger} could not be written: {error}; everything committed is intact, and the "
            "same command resumes"
        ) from error


@contextlib.contextmanager
def signal_pipe() -> Iterator[int | None]:
    """Yield a file descriptor that becomes readable when a signal arrives, so that no polling is needed."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
