"""`train`: from a config to a trained and evaluated run, in one call that can be repeated."""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit.config import Config, load_config, patch
from manyfit.config.load import config_file
from manyfit.config.override import Overrides
from manyfit.config.project import project_root
from manyfit.core.errors import Interrupted, RunConflict, UsageError
from manyfit.core.state import State
from manyfit.data import once
from manyfit.data.randomness import own_randomness
from manyfit.run import guard
from manyfit.run.journal import failures, logged, recorded
from manyfit.run.result import RunResult
from manyfit.run.signals import Asked, Watch, watched
from manyfit.run.stopping import ending
from manyfit.run.trainer import Callback
from manyfit.store import durable, provenance
from manyfit.store.checkpoint import Checkpoint, newest, set_aside
from manyfit.store.events import EventLog, read_events
from manyfit.store.folder import RunFolder
from manyfit.store.lock import owned

if TYPE_CHECKING:
    from manyfit.run.build import Built
    from manyfit.run.cohort import Member

log = logging.getLogger("manyfit")

COPIED = "# Copied by manyfit from a config that lies elsewhere"


def train(
    source: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    folder: str | Path | None = None,
    callbacks: Sequence[Callback] | None = None,
    allow_change: Collection[str] = (),
    debug: bool = False,
) -> RunResult:
    """Train what a config describes, evaluate it, and return the result.

    `source` is a run folder, a YAML file, or the config itself as a dict; then `folder` says where it lies.
    A run that was cut short goes on from its last checkpoint; a finished one is not trained again unless its
    epochs were raised. With `debug` everything happens in a folder that is removed afterwards.

    >>> manyfit.train("runs/digits-mlp", ["train.epochs=30"])    # doctest: +SKIP
    """
    config, run = located(source, overrides, folder)
    with temporary(run, debug) as run, owned(run.path), logged(run.path / "run.log", debug):
        run.check_links()
        last, changed = resumable(run), set[str]()
        if last is not None:
            config = patch(config, frozen=run.frozen())
            changed = guard.check_config(config, run, allow_change)
        with failures(run), watched() as watch:
            return _train(config, run, last, callbacks, allow_change, changed, watch)


def located(
    source: str | Path | Mapping[str, Any], overrides: Overrides, folder: str | Path | None
) -> tuple[Config, RunFolder]:
    """The config, and the folder in which it is trained."""
    project = project_root(place(source, folder)) if isinstance(source, Mapping) else None
    config = load_config(source, overrides, project=project)
    run = RunFolder(place(source, folder))
    check_place(config, run)
    return config, run


def place(source: str | Path | Mapping[str, Any], folder: str | Path | None) -> Path:
    """Where a run lies: as said, the folder of its config.yaml, or runs/<name of the file>."""
    if folder is not None:
        return Path(folder)
    if isinstance(source, Mapping):
        raise UsageError("say where the run shall lie: train(config, folder='runs/<name>')")
    file = config_file(Path(source))
    if file.name in ("config.yaml", "config.resolved.yaml"):
        return file.parent
    return project_root(file) / "runs" / file.stem


@contextmanager
def temporary(run: RunFolder, wanted: bool) -> Iterator[RunFolder]:
    """The run folder, or one that leaves no trace."""
    if not wanted:
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="manyfit-") as path:
        yield RunFolder(Path(path) / run.name)


def resumable(run: RunFolder) -> tuple[Checkpoint, State] | None:
    """The checkpoint to go on from; one that is damaged is passed over, and that is said."""
    found = newest(run.checkpoint_folder)
    if found is None:
        if run.metrics.is_file() and run.metrics.stat().st_size:
            log.warning("%s has a log, but no checkpoint: it is trained from the start", run.path)
        return None
    for reason in found.wrong.values():
        log.warning("%s; going on from step %d", reason, found.checkpoint.step)
    older = {path: why for path, why in run.damaged().items() if path not in found.wrong}
    for reason in older.values():
        log.warning("%s; it cannot be the best any more", reason)
    set_aside([*found.wrong, *older])
    return found.checkpoint, found.state


def _train(
    config: Config,
    run: RunFolder,
    last: tuple[Checkpoint, State] | None,
    callbacks: Sequence[Callback] | None,
    allowed: Collection[str],
    changed: Collection[str],
    watch: Watch,
) -> RunResult:
    from manyfit.run.build import build, device_name, threads
    from manyfit.run.code import imported
    from manyfit.run.finish import finish
    from manyfit.run.mirror import finished, mirrors
    from manyfit.run.progress import progress_for

    with own_randomness(), threads(config.run.train.threads) as thread_count:
        built = build(config, warm=last is None)
        data, source = built.fingerprints(), config.project / config.run.src_code_path
        code = imported(source)
        start, length = 0, 0
        if last is not None:
            guard.check_data(data, run, allowed)
            guard.check_code(code, run, source, allowed)
            start, length = last[0].step, last[0].log_length
            if is_over(config, run, built, last[0]) and run.summary().get("step") == start:
                write_resolved(config, run)
                return result(run)
            options = built.learner.update.options()
            built.learner.load([last[1]])
            if any(key.startswith(("train.optimizer", "train.groups")) for key in changed):
                built.learner.update.set_options(options)
        rehearse(built)
        facts = {
            "data": data,
            "modules": code,
            "threads": thread_count,
            "device": device_name(built.learner.device),
            "environment": dict(config.environment),
            "from_step": start,
            "allowed_changes": sorted(allowed),
        }
        write_start(config, run, facts)
        trackers = mirrors(config, run)
        with recorded(run), finished(trackers, run):
            with EventLog(run.metrics, length) as events:
                shown = callbacks if callbacks is not None else [progress_for(sys.stderr)]
                member = trained(config, run, built, events, last, [*trackers, *shown], watch)
            try:
                finish(
                    config, run, built, watch, member.ended.reason if member.ended else "", callbacks is None
                )
            except Asked:
                raise Interrupted(
                    f"ended while {run.path} was evaluated; the same command does that again", watch.number
                ) from None
        return result(run, trained=run.checkpoints()[-1].step - start)


def is_over(config: Config, run: RunFolder, built: Built, last: Checkpoint) -> bool:
    """Whether there is nothing left to train: the last epoch is done, or the run has stopped early."""
    if last.step >= built.plan.total:
        return last.note.measured
    events = read_events(run.metrics, last.log_length)
    return ending(config.run.train, events, built.plan.steps_per_epoch) is not None


def trained(
    config: Config,
    run: RunFolder,
    built: Built,
    events: EventLog,
    last: tuple[Checkpoint, State] | None,
    callbacks: Sequence[Callback],
    watch: Watch,
) -> Member:
    """Train from where the run stands to its end."""
    from manyfit.run.cohort import Cohort, Member
    from manyfit.run.trainer import fit

    step, measured = (last[0].step, last[0].note.measured) if last is not None else (0, True)
    member = Member(config, run, events, committed=read_events(run.metrics, events.length))
    member.ended = ending(config.run.train, member.committed, built.plan.steps_per_epoch)
    cohort = Cohort(
        [member],
        built.learner,
        built.plan,
        built.train.batches(built.order, step),
        built.validation,
        built.order.batch_size,
        step,
        measured,
        built.whole,
    )
    fit(cohort, callbacks, watch)
    if member.ended is not None and member.ended.error is not None:
        raise member.ended.error
    return member


def rehearse(built: Built) -> None:
    """Evaluate one batch before the first step, so that a mistake in a metric does not cost an epoch."""
    from manyfit.run.measure import Whole

    source = built.split("validation") or built.train
    with own_randomness():
        outputs = next(built.learner.evaluate(itertools.islice(once(source, built.order.batch_size), 1)))
        whole = Whole(built.whole)
        whole.update(outputs, 0)
        whole.values()
        if built.evaluator.functions and outputs.target is not None:
            import torch

            built.evaluator(torch.from_numpy(outputs.output[0]), torch.from_numpy(outputs.target[0]))


def result(run: RunFolder, trained: int = 0) -> RunResult:
    """Read a finished run."""
    summary = run.summary()
    return RunResult(
        run.path, summary["step"], summary["best_step"], summary["metrics"], summary["test"], trained, summary
    )


def check_place(config: Config, run: RunFolder) -> None:
    """A config from elsewhere is copied into the run folder, but never over one that a person wrote there."""
    if config.file is not None and config.file.resolve() in (run.config.resolve(), run.resolved.resolve()):
        return
    if run.config.exists() and not run.config.read_text(errors="replace").startswith(COPIED):
        raise RunConflict(f"{run.config} is a config of its own; train it, or choose another folder")


def write_start(config: Config, run: RunFolder, facts: Mapping[str, Any]) -> None:
    """Keep what was given, what it means, and where it comes from."""
    if not run.config.exists() or run.config.read_text(errors="replace").startswith(COPIED):
        durable.write(run.config, f"{COPIED}, with every reference filled in.\n{config.dump()}")
    write_resolved(config, run)
    provenance.record(run, config.project, {"fingerprint": config.fingerprint, **facts})


def write_resolved(config: Config, run: RunFolder) -> None:
    """Keep what the config means."""
    durable.write(
        run.resolved, "# Written by manyfit. Edit config.yaml, not this file.\n" + config.resolved()
    )
