"""A run that others are compared with: trained up to an epoch, then paused; evaluated only if chosen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from manyfit.config import Config
from manyfit.core.errors import Interrupted
from manyfit.core.position import Position
from manyfit.core.signals import StopRequested, Watch
from manyfit.run.build.shared_data import SharedData
from manyfit.run.loop.journal import hold_folder, record_failure, translate_failures
from manyfit.run.loop.trainer import Callback
from manyfit.run.session.finish import finish, write_summary
from manyfit.run.session.session import advance, begin_run, open_run
from manyfit.store import provenance
from manyfit.store.events import Event, read_events
from manyfit.store.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a run stands after a stretch of training."""

    step: int
    epoch: float
    trained: int
    """Steps of this stretch."""
    over: bool
    reason: str
    events: Sequence[Event]


def train_until(
    config: Config,
    run: RunFolder,
    until: Position | None,
    watch: Watch,
    *,
    study: str,
    given: str = "",
    callbacks: Sequence[Callback] = (),
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
) -> Reached:
    """Train until some position, or to the end.

    `study` says where versions and code are recorded, `given` is what `config.yaml` shall say, `shared` is
    data that other trials of this process have built.
    """
    with (
        hold_folder(run),
        translate_failures(run, "the trial"),
        open_run(config, run, allowed, shared) as here,
    ):
        last, over, stopped = here.last.note if here.last else None, here.is_over, here.ending
        reason = stopped.reason if over and stopped is not None else ""
        per_epoch = here.built.plan.steps_per_epoch
        goal = None if until is None else until.in_steps(per_epoch)
        done = last is not None and goal is not None and last.step >= goal and last.measured
        best = None
        if not (over or done):
            begin_run(here, provenance.brief_session(study, here.facts), given)
            with record_failure(run):
                member = advance(here, callbacks, watch, goal)
            reason = member.ended.reason if member.ended is not None else ""
            last, best = member.last, member.best
            assert last is not None
            over = bool(reason) or last.step >= here.built.plan.total
        assert last is not None
        # Read from the disk, not from memory: the code of a trial may have been at it.
        events = read_events(run.metrics, last.log_length)
        if over and (best is not None or run.summary().get("step") != last.step):
            chosen = best or run.select_checkpoint(config.run.export.metric, config.run.export.mode)
            write_summary(config, run, chosen, last, reason, {})
        return Reached(last.step, last.epoch, last.step - here.step, over, reason, events)


def conclude_trial(
    config: Config,
    run: RunFolder,
    watch: Watch,
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
) -> None:
    """Export and evaluate a run that was trained as a trial."""
    with (
        hold_folder(run),
        translate_failures(run, "the evaluation"),
        open_run(config, run, allowed, shared) as here,
    ):
        reason = str(run.summary().get("stopped", ""))
        try:
            finish(here.config, run, here.built, watch, reason, shown=False)
        except StopRequested:
            raise Interrupted(f"ended while {run.path} was evaluated", watch.number) from None
