"""Training several runs of one session: those with the same plan together, in one pass if they are fused.

Groups of several structures train one after another, or side by side on streams of a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from manyfit.core.errors import classify_error
from manyfit.core.signals import Watch
from manyfit.learn.fusing import GroupFailed, Refusal
from manyfit.learn.learner import Learner
from manyfit.run.build.modes import compute_as
from manyfit.run.loop.trainer import Callback
from manyfit.run.session.fusing import fuse_runs, launch_run, release_memory, was_fused
from manyfit.run.session.session import advance
from manyfit.run.session.side_by_side import are_side_by_side, train_side_by_side
from manyfit.run.session.slot import Result, TrainingSlot
from manyfit.store.group_folder import choose_group

log = logging.getLogger("manyfit")

Found = Iterator[tuple[TrainingSlot[Result], Result | BaseException]]
"""Runs, and what became of them."""
Turns = Iterator[tuple[TrainingSlot[Result], Result | BaseException] | None]
"""The same, with None where other groups can have a turn."""


def train_together(
    slots: Sequence[TrainingSlot[Result]],
    watch: Watch,
    study: str,
    callbacks: Sequence[Callback],
    train_alone: Callable[[TrainingSlot[Result]], Result | BaseException],
    streams: int = 1,
) -> Found[Result]:
    """Train runs until their goals; yield what became of each as soon as it is known.

    Those that are behind catch up first. `train_alone` trains a run that cannot take turns with others. At
    most `streams` groups of different structures train side by side.
    """
    apart: list[TrainingSlot[Result]] = []
    try:
        together: dict[Any, list[TrainingSlot[Result]]] = {}
        for slot in slots:
            error = slot.open()
            if error is not None:
                yield slot, error
            elif slot.is_one_of_several and not slot.can_take_turns:
                slot.close()  # it is opened again when the others are done
                apart.append(slot)
            else:
                together.setdefault(slot.key, []).append(slot)
        groups = list(together.values())
        for slot in slots:
            slot.terms = replace(slot.terms, waits=not are_side_by_side(len(groups), streams))
        makers = [
            (group[0].here.config.run.train, partial(_train_group, group, watch, study, callbacks))
            for group in groups
        ]
        yield from train_side_by_side(makers, streams)
    finally:
        for slot in slots:
            slot.close()
    for slot in apart:
        yield slot, train_alone(slot)


def _train_group(
    group: Sequence[TrainingSlot[Result]], watch: Watch, study: str, callbacks: Sequence[Callback]
) -> Turns[Result]:
    """Train runs until their goal; yield None where other groups can have a turn."""
    goal, waiting = group[0].goal, list[TrainingSlot[Result]]()
    for slot in group:
        if slot.is_done:
            yield slot, slot.finish(None)
        elif (error := slot.begin(study)) is not None:
            yield slot, error
        else:
            waiting.append(slot)
    while waiting:
        first = min(slot.place for slot in waiting)
        now = [slot for slot in waiting if slot.place == first]
        ahead = [slot.place[0] for slot in waiting if slot.place > first]
        failed, learner = list[TrainingSlot[Result]](), None
        cause: BaseException | None = None
        try:
            with _use_modes(now[0]):
                learner = _fuse(now)
                groups = now[0].groups if learner is not None and len(now) > 1 else None
                place = choose_group(groups, now[0].folder.name)
                runs = [slot.here for slot in now]
                for turn in advance(runs, callbacks, watch, min([*ahead, goal]), learner, place):
                    if turn is None:
                        yield None
                        continue
                    number, member = turn
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
            rest = [slot for slot in now if slot in waiting]
            waiting = [slot for slot in waiting if slot not in rest]
            if len(rest) > 1 and now[0].fuse != "off" and classify_error(error) == "out of memory":
                failed, cause = rest, error  # while they were compared
            else:
                for slot in rest:
                    yield slot, slot.close(error) or error
        del learner
        if failed:
            yield from _train_smaller(failed, cause, watch, study, callbacks)


def _use_modes(slot: TrainingSlot[Result]) -> AbstractContextManager[object]:
    """Compute as the config says between the turns of several runs; one run has no turns."""
    return compute_as(slot.here.config.run.train) if slot.is_one_of_several else nullcontext()


def _fuse(slots: Sequence[TrainingSlot[Result]]) -> Learner | None:
    """Return the learner of runs that train in one pass, if they do; what was found out is noted for each."""
    first = slots[0]
    if first.fuse == "off":
        return launch_run(first.here, first.terms) if len(slots) == 1 else None
    if isinstance(first.fuse_key, Refusal):
        for slot in slots:
            slot.how = f"alone: {slot.fuse_key.reason}" if isinstance(slot.fuse_key, Refusal) else slot.how
        return None
    if len(slots) == 1 and not was_fused(first.here):
        first.how = "alone: no other run has the same structure and position"
        return launch_run(first.here, first.terms)
    found = fuse_runs([slot.here for slot in slots], first.fuse, first.terms)
    for slot in slots:
        slot.how = found.text
    return found.learner


def _train_smaller(
    slots: Sequence[TrainingSlot[Result]],
    cause: BaseException | None,
    watch: Watch,
    study: str,
    callbacks: Sequence[Callback],
) -> Turns[Result]:
    """Train runs on from their newest states after a step of all of them has failed.

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
            error = slot.open()
            if error is not None:
                yield slot, error
            else:
                ready.append(slot)
        if ready:
            yield from _train_group(ready, watch, study, callbacks)
