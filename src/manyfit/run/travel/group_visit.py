"""Visits of several runs that train together on a worker that has none of their folders."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from manyfit.config import Config
from manyfit.core.position import Position
from manyfit.core.signals import EitherWatch, Watch
from manyfit.learn.group import Part
from manyfit.run.build.shared_data import SharedData
from manyfit.run.loop.cohort import Member
from manyfit.run.loop.journal import log_only_to, translate_failures
from manyfit.run.loop.process_state import own_process
from manyfit.run.loop.trainer import Callback
from manyfit.run.session.fusing import Fuse
from manyfit.run.session.session import Opened
from manyfit.run.session.slot import TrainingSlot
from manyfit.run.session.together import train_together
from manyfit.run.travel.luggage import Luggage, Parcel
from manyfit.run.travel.visit import (
    Deliver,
    Delivery,
    Visit,
    VisitFailed,
    Visiting,
    goal_of,
    log_messages,
    open_visit,
    train_visit,
)
from manyfit.run.travel.visitor import StateCollector
from manyfit.store.checkpoint import Checkpoint
from manyfit.store.folder import RunFolder


@dataclass(frozen=True)
class VisitRequest:
    """A request to train a run that travels."""

    config: Config
    luggage: Luggage
    watch: Watch
    """Whether this run alone was asked to stop."""
    deliver: Deliver
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context manager entered while working for this run, for example to capture its output."""


def train_visits(
    requests: Sequence[VisitRequest],
    until: Position | None,
    watch: Watch,
    *,
    callbacks: Sequence[Callback] = (),
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
    fuse: Fuse = "off",
) -> Iterator[tuple[VisitRequest, Parcel | VisitFailed, str]]:
    """Train runs until a position, or to the end; yield the result of each, and how it was trained.

    Those that measure a shard of validation rows do so one after another.
    """

    def train_alone(request: VisitRequest) -> Parcel | VisitFailed:
        try:
            with request.scope(), own_process():
                return train_visit(
                    request.config, request.luggage, until, EitherWatch(watch, request.watch),
                    callbacks=callbacks, allowed=allowed, shared=shared, deliver=request.deliver,
                )  # fmt: skip
        except VisitFailed as error:
            return error

    def train_slot(slot: TrainingSlot[Parcel]) -> Parcel | VisitFailed:
        assert isinstance(slot, _VisitSlot)
        return train_alone(slot.request)

    visits: list[Visit] = []
    slots = []
    for request in requests:
        if request.luggage.measures_at is not None:
            yield request, train_alone(request), ""
        else:
            slots.append(_VisitSlot(request, until, fuse, allowed, shared, visits))
    send = Delivery(visits)
    for slot, found in train_together(slots, watch, "", [*callbacks, send], train_slot):
        assert isinstance(slot, _VisitSlot)
        yield slot.request, slot.explain(found), slot.how


class _VisitSlot(TrainingSlot[Parcel]):
    """A run that is trained without its folder."""

    def __init__(
        self,
        request: VisitRequest,
        until: Position | None,
        fuse: Fuse,
        allowed: Collection[str],
        shared: SharedData | None,
        visits: list[Visit],
    ) -> None:
        """`visits` are those of all runs, from which their results are delivered."""
        super().__init__(RunFolder(request.luggage.path), self._collect, True, fuse)
        self.request = request
        self._until = until
        self._allowed = allowed
        self._shared = shared
        self._visits = visits
        self._visit: Visit | None = None
        self._text = io.StringIO()

    @contextmanager
    def _collect(self) -> Iterator[None]:
        with self.request.scope(), log_messages(self._text):
            yield

    @contextmanager
    def _log_here(self) -> Iterator[None]:
        with log_only_to(self.folder), log_messages(self._text):
            yield

    def _build(self, stack: ExitStack) -> Opened:
        request, luggage = self.request, self.request.luggage
        stack.enter_context(translate_failures(self.folder, "the trial"))
        if self._visit is not None:  # opened again, after a step of all runs has failed
            self._visit.send()
            self._visits.remove(self._visit)
            luggage = self._visit.visitor.repack()
        visit = self._visit = stack.enter_context(
            open_visit(request.config, luggage, self._text, request.deliver, self._allowed, self._shared)
        )
        visit.visitor.watch, visit.visitor.turn = request.watch, self._log_here
        self._visits.append(visit)
        part = Part(visit.built.learner, self.turn)
        return Visiting.open(visit, luggage, self._until, request.watch, part)

    @property
    def goal(self) -> int:
        """The step until which it trains now."""
        built = self.here.built
        return built.plan.total if self._until is None else goal_of(built, self._until)

    def begin(self, study: str) -> BaseException | None:
        """Do nothing: the keeper records the start."""
        return None

    def pause(self) -> None:
        """Set the newest state as the one to continue from later."""
        assert self._visit is not None
        collector = self._visit.visitor.writer
        assert isinstance(collector, StateCollector)
        assert collector.newest is not None
        note, state = collector.newest
        self.here = replace(self.here, last=Checkpoint(self.folder.path, note, state.values, {}))

    def _conclude(self, member: Member | None) -> Parcel:
        assert self._visit is not None
        visit = self._visit
        if visit.visitor.is_over(visit.built):
            visit.built.learner.end()
        return visit.wrap()

    def explain(self, found: Parcel | BaseException) -> Parcel | VisitFailed:
        """Return the result; after an error, with the part of the work that is still valid."""
        if isinstance(found, Parcel | VisitFailed):
            return found
        parcel = self._visit.wrap() if self._visit is not None else None
        return VisitFailed(found, parcel)
