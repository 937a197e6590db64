"""Trials: runs that train up to a position and pause there; only the selected ones are evaluated.

Several of them train as one session; a single one is a session of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyfit.config import Config
from manyfit.core.position import Position
from manyfit.core.signals import EitherWatch, Watch
from manyfit.learn.fusing import Terms
from manyfit.learn.group import Part
from manyfit.run.build.shared_data import SharedData
from manyfit.run.loop.cohort import Member
from manyfit.run.loop.journal import hold_folder, log_only_to, record_failure, translate_failures
from manyfit.run.loop.process_state import own_process
from manyfit.run.loop.trainer import Callback
from manyfit.run.session.finish import finish, write_summary
from manyfit.run.session.fusing import Fuse
from manyfit.run.session.session import Opened, Reached, begin_run, open_run
from manyfit.run.session.slot import TrainingSlot
from manyfit.run.session.together import train_together
from manyfit.store import provenance
from manyfit.store.compiled_steps import CompiledSteps
from manyfit.store.events import read_events
from manyfit.store.folder import RunFolder
from manyfit.store.manifest import Note


@dataclass(frozen=True)
class Request:
    """A request to train a run."""

    config: Config
    folder: RunFolder
    given: str = ""
    """The text of its `config.yaml`."""
    watch: Watch = field(default_factory=Watch)
    """Whether this run alone was asked to stop."""
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context manager entered while working for this run, for example to capture its output."""
    groups: Path | None = None
    """The folder for checkpoints that are written together with those of other runs, if there is one."""
    compiled: Path | None = None
    """The folder for compiled steps, if there is one."""


def train_until(
    requests: Sequence[Request],
    until: Position | None,
    watch: Watch,
    *,
    study: str,
    callbacks: Sequence[Callback] = (),
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
    fuse: Fuse = "off",
    streams: int = 1,
) -> Iterator[tuple[Request, Reached | BaseException]]:
    """Train runs until a position, or to the end; yield the outcome of each as soon as it is known.

    Runs with the same plan train together; those that are behind catch up first. One may fail, end or be
    interrupted without the others. `study` is where versions and code are recorded, `shared` is data that
    other runs of this process have built. `fuse` is whether runs of one structure are trained in one pass,
    `streams` is how many such groups train side by side.
    """
    several = len(requests) > 1 or fuse != "off"
    slots = [_FolderSlot(request, until, several, fuse, allowed, shared) for request in requests]

    def train_alone(slot: TrainingSlot[Reached]) -> Reached | BaseException:
        assert isinstance(slot, _FolderSlot)
        request = slot.request
        with request.scope(), log_only_to(request.folder), own_process():
            alone = replace(request, scope=nullcontext)
            either = EitherWatch(watch, request.watch)
            ((_, found),) = train_until(
                [alone], until, either, study=study, callbacks=callbacks, allowed=allowed, shared=shared
            )
        return found

    for slot, found in train_together(slots, watch, study, callbacks, train_alone, streams):
        assert isinstance(slot, _FolderSlot)
        yield slot.request, replace(found, how=slot.how) if isinstance(found, Reached) else found


class _FolderSlot(TrainingSlot[Reached]):
    """A run that is trained in its folder."""

    def __init__(
        self,
        request: Request,
        until: Position | None,
        is_one_of_several: bool,
        fuse: Fuse,
        allowed: Collection[str],
        shared: SharedData | None,
    ) -> None:
        super().__init__(request.folder, request.scope, is_one_of_several, fuse)
        self.request = request
        self.groups = request.groups
        if request.compiled is not None:
            self.terms = Terms(store=CompiledSteps(request.compiled, request.config.project))
        self._until = until
        self._allowed = allowed
        self._shared = shared
        self._before: int | None = None

    def _build(self, stack: ExitStack) -> Opened:
        request = self.request
        stack.enter_context(hold_folder(request.folder))
        stack.enter_context(translate_failures(request.folder, "the trial"))
        here = stack.enter_context(open_run(request.config, request.folder, self._allowed, self._shared))
        part = Part(here.built.learner, self.turn) if self.is_one_of_several else None
        self._before = here.step if self._before is None else self._before
        return replace(here, watch=request.watch, part=part)

    @property
    def goal(self) -> int:
        """The step until which it trains now."""
        plan = self.here.built.plan
        return plan.total if self._until is None else self._until.in_steps(plan.steps_per_epoch)

    def begin(self, study: str) -> BaseException | None:
        """Write the config and the provenance. Return the error, if any."""
        try:
            with self.turn():
                begin_run(self.here, provenance.brief_session(study, self.here.facts), self.request.given)
                self._stack.enter_context(record_failure(self.request.folder))
        except Exception as error:
            return self.close(error) or error
        return None

    def pause(self) -> None:
        """Set the committed checkpoint as the one to continue from later."""
        self.here = replace(self.here, last=self.request.folder.checkpoints()[-1])

    def _conclude(self, member: Member | None) -> Reached:
        here, run, best = self.here, self.request.folder, None
        if member is None:
            assert here.last is not None
            last: Note | None = here.last.note
            over, stopped = here.is_over, here.ending
            reason = stopped.reason if over and stopped is not None else ""
        else:
            here.built.learner.end()
            reason = member.end_reason
            last, best = member.last, member.best
            over = bool(reason) or (last is not None and last.step >= here.built.plan.total)
        assert last is not None
        # Read from disk, not from memory, which the code of the trial may have changed.
        events = read_events(run.metrics, last.log_length)
        if over and (best is not None or run.summary().get("step") != last.step):
            export = here.config.run.export
            chosen = best or run.select_checkpoint(export.metric, export.mode)
            write_summary(here.config, run, chosen, last, reason, {})
        return Reached(last.step, last.epoch, last.step - (self._before or 0), over, reason, events)


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
        with watch.translate(f"ended while evaluating {run.path}"):
            finish(here.config, run, here.built, watch, reason, shown=False)
