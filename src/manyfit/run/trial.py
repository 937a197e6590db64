"""Trials: runs that train up to a position and pause there; only the selected ones are evaluated.

Several of them train as one session; a single one is a session of one.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyfit.config import Config
from manyfit.core.errors import classify_error
from manyfit.core.position import Position
from manyfit.core.signals import Watch
from manyfit.learn.fusing import GroupFailed, Key, Refusal
from manyfit.learn.group import Part
from manyfit.learn.learner import Learner
from manyfit.run.build.shared_data import SharedData
from manyfit.run.loop.cohort import Member
from manyfit.run.loop.journal import hold_folder, log_only_to, record_failure, translate_failures
from manyfit.run.loop.process_state import ProcessState, own_process
from manyfit.run.loop.trainer import Callback
from manyfit.run.session.finish import finish, write_summary
from manyfit.run.session.fusing import Fuse, find_key, fuse_runs, release_memory, was_fused
from manyfit.run.session.session import Opened, Reached, advance, begin_run, open_run
from manyfit.store import provenance
from manyfit.store.events import read_events
from manyfit.store.folder import RunFolder
from manyfit.store.group_folder import choose_group
from manyfit.store.manifest import Note

log = logging.getLogger("manyfit")


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
) -> Iterator[tuple[Request, Reached | BaseException]]:
    """Train runs until a position, or to the end; yield the outcome of each as soon as it is known.

    Runs with the same plan train together; those that are behind catch up first. One may fail, end or be
    interrupted without the others. `study` is where versions and code are recorded, `shared` is data that
    other runs of this process have built. `fuse` is whether runs of one structure are trained in one pass.
    """
    several = len(requests) > 1 or fuse != "off"
    slots = [_Slot(request, several, fuse, lambda slot: slot.open(allowed, shared)) for request in requests]
    apart: list[_Slot] = []
    try:
        together: dict[Any, list[_Slot]] = {}
        for slot in slots:
            error = slot.open(allowed, shared)
            if error is not None:
                yield slot.request, error
            elif slot.is_one_of_several and not slot.can_take_turns:
                slot.close()  # it is opened again when the others are done
                apart.append(slot)
            else:
                together.setdefault(slot.key, []).append(slot)
        for group in together.values():
            yield from _answer(_train_group(group, until, watch, study, callbacks))
    finally:
        for slot in slots:
            slot.close()
    for slot in apart:
        with slot.request.scope(), log_only_to(slot.request.folder), own_process():
            alone = replace(slot.request, scope=nullcontext)
            either = _Either(watch, slot.request.watch)
            ((_, found),) = train_until(
                [alone], until, either, study=study, callbacks=callbacks, allowed=allowed, shared=shared
            )
        yield slot.request, found


def _answer(
    found: Iterator[tuple[_Slot, Reached | BaseException]],
) -> Iterator[tuple[Request, Reached | BaseException]]:
    """Yield outcomes with the requests that they answer, and how the runs were trained."""
    for slot, outcome in found:
        is_known = isinstance(outcome, Reached) and slot.how
        yield slot.request, replace(outcome, how=slot.how) if is_known else outcome  # type: ignore[type-var]


class _Either(Watch):
    """Whether all runs, or one of them, were asked to end."""

    def __init__(self, all_: Watch, one: Watch) -> None:
        self._watches = (all_, one)

    @property
    def number(self) -> int:  # type: ignore[override]
        """The signal."""
        return next((watch.number for watch in self._watches if watch.number), 0)

    def check(self) -> None:
        """Check both, which shows that the run is alive."""
        for watch in self._watches:
            watch.check()


def _train_group(
    group: Sequence[_Slot], until: Position | None, watch: Watch, study: str, callbacks: Sequence[Callback]
) -> Iterator[tuple[_Slot, Reached | BaseException]]:
    plan = group[0].here.built.plan
    goal = None if until is None else until.in_steps(plan.steps_per_epoch)
    waiting = []
    for slot in group:
        if slot.is_done(goal):
            yield slot, slot.finish(None)
        elif (error := slot.begin(study)) is not None:
            yield slot, error
        else:
            waiting.append(slot)
    while waiting:
        first = min(slot.place for slot in waiting)
        now = [slot for slot in waiting if slot.place == first]
        ahead = [slot.place[0] for slot in waiting if slot.place > first]
        end = min([*ahead, plan.total if goal is None else goal])
        failed, learner = list[_Slot](), None
        cause: BaseException | None = None
        try:
            learner = _fuse(now)
            request = now[0].request
            groups = request.groups if learner is not None and len(now) > 1 else None
            place = choose_group(groups, request.folder.name)
            for number, member in advance([slot.here for slot in now], callbacks, watch, end, learner, place):
                slot = now[number]
                if isinstance(member.error, GroupFailed):
                    waiting.remove(slot)
                    failed.append(slot)
                    cause = member.error.__cause__
                    continue
                if member.error is None and member.ended is None and ahead:
                    slot.pause()
                    continue
                waiting.remove(slot)
                if member.error is None:
                    yield slot, slot.finish(member)
                else:
                    yield slot, slot.close(member.error) or member.error
        except GeneratorExit:
            raise
        except BaseException as error:
            left = [slot for slot in now if slot in waiting]
            waiting = [slot for slot in waiting if slot not in left]
            if len(left) > 1 and now[0].fuse != "off" and classify_error(error) == "out of memory":
                failed, cause = left, error  # while they were compared
            else:
                for slot in left:
                    yield slot, slot.close(error) or error
        del learner
        if failed:
            yield from _train_smaller(failed, cause, until, watch, study, callbacks)


def _fuse(slots: Sequence[_Slot]) -> Learner | None:
    """Return the learner of runs that train in one pass, if they do; what was found out is noted for each."""
    first = slots[0]
    if first.fuse == "off":
        return None
    if isinstance(first.fuse_key, Refusal):
        for slot in slots:
            slot.how = f"alone: {slot.fuse_key.reason}" if isinstance(slot.fuse_key, Refusal) else slot.how
        return None
    if len(slots) == 1 and not was_fused(first.here):
        first.how = "alone: no other run has the same structure and position"
        return None
    found = fuse_runs([slot.here for slot in slots], first.fuse)
    for slot in slots:
        slot.how = found.text
    return found.learner


def _train_smaller(
    slots: Sequence[_Slot],
    cause: BaseException | None,
    until: Position | None,
    watch: Watch,
    study: str,
    callbacks: Sequence[Callback],
) -> Iterator[tuple[_Slot, Reached | BaseException]]:
    """Train runs on from their checkpoints after a step of all of them has failed.

    If memory ran out, in two groups, one after the other; otherwise one run at a time, so that only the run
    at fault fails.
    """
    assert cause is not None
    is_full = classify_error(cause) == "out of memory" and len(slots) > 1
    text = "memory ran out for" if is_full else f"a step failed ({type(cause).__name__}: {cause}) for"
    log.warning(
        "%s a group of %d runs; they go on %s", text, len(slots), "in halves" if is_full else "one at a time"
    )
    halves = [slots[: len(slots) // 2], slots[len(slots) // 2 :]] if is_full else [slots]
    for slot in slots:
        slot.close()
    release_memory()
    for half in halves:
        ready = []
        for slot in half:
            if not is_full:
                slot.fuse, slot.how = "off", "alone: a step of its group has failed"
            error = slot.reopen()
            if error is not None:
                yield slot, error
            else:
                ready.append(slot)
        if ready:
            yield from _train_group(ready, until, watch, study, callbacks)


class _Slot:
    """One run of a session, from opening its folder to closing it."""

    here: Opened

    def __init__(
        self,
        request: Request,
        is_one_of_several: bool,
        fuse: Fuse = "off",
        opening: Callable[[_Slot], BaseException | None] = lambda slot: None,
    ) -> None:
        """`opening` opens the run again, from its last checkpoint."""
        self.request = request
        self.is_one_of_several = is_one_of_several
        self.fuse = fuse
        self.fuse_key: Key | Refusal = Refusal("")
        """What runs must have in common to train in one pass."""
        self.how = ""
        """How it was trained: in one pass with others or alone, and why."""
        self.reopen = functools.partial(opening, self)
        self._is_open = False
        self._stack = ExitStack()
        self._process: ProcessState | None = None
        self._before = 0

    @property
    def key(self) -> Any:
        """What runs must have in common to train together."""
        fused = self.fuse_key if isinstance(self.fuse_key, Key) else None
        return self.here.built.plan, self.here.built.split("validation") is None, fused

    @property
    def can_take_turns(self) -> bool:
        """Whether it can train in turn with the others."""
        return self.here.built.kind.can_take_turns(self.here.built.learner)

    @property
    def place(self) -> tuple[int, bool]:
        """The step, and whether everything that is due there has been done."""
        last = self.here.last
        return (0, True) if last is None else (last.step, last.note.measured)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Work for this run alone: its log messages, its output and its process state are its own."""
        if not self.is_one_of_several:
            with self.request.scope():
                yield
            return
        outside = ProcessState.read()
        if self._process is not None:
            self._process.restore()
        try:
            with self.request.scope(), log_only_to(self.request.folder):
                yield
        finally:
            self._process = ProcessState.read()
            outside.restore()

    def open(self, allowed: Collection[str], shared: SharedData | None) -> BaseException | None:
        """Build the run and load its last checkpoint. Return the error, if any."""
        request = self.request
        try:
            with self.turn(), ExitStack() as stack:
                stack.enter_context(hold_folder(request.folder))
                stack.enter_context(translate_failures(request.folder, "the trial"))
                here = stack.enter_context(open_run(request.config, request.folder, allowed, shared))
                part = Part(here.built.learner, self.turn) if self.is_one_of_several else None
                self.here = replace(here, watch=request.watch, part=part)
                self._before = self._before if self._is_open else here.step
                self._is_open = True
                if self.fuse != "off":
                    self.fuse_key = find_key(self.here, self.fuse)
                self._stack = stack.pop_all()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return error
        return None

    def is_done(self, goal: int | None) -> bool:
        """Return whether nothing is left to train until step `goal`."""
        last = self.here.last
        return self.here.is_over or (
            last is not None and goal is not None and last.step >= goal and last.note.measured
        )

    def begin(self, study: str) -> BaseException | None:
        """Write the config and the provenance before training. Return the error, if any."""
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

    def finish(self, member: Member | None) -> Reached | BaseException:
        """Close the run and return its progress. Without a member, nothing was trained."""
        found: list[Reached] = []
        error = self.close(then=lambda: found.append(self._conclude(member)))
        return found[0] if error is None else error

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
        return Reached(last.step, last.epoch, last.step - self._before, over, reason, events)

    def close(
        self, error: BaseException | None = None, then: Callable[[], object] = lambda: None
    ) -> BaseException | None:
        """Close the folder, after calling `then`. Return the error, if any; `error` is made user-friendly."""
        stack, self._stack = self._stack, ExitStack()
        try:
            with self.turn(), stack:
                if error is not None:
                    raise error
                then()
        except KeyboardInterrupt:
            raise
        except BaseException as found:
            return found
        return None


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
