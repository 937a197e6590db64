"""Which units are assigned to the executor next: whole trials, or visits of trials to shards."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from manyfit.config.study.quantities import seconds
from manyfit.core.errors import ManyfitError
from manyfit.core.names import pluralize
from manyfit.core.signals import Watch
from manyfit.run.session.fusing import BEGUN_ALONE
from manyfit.study.drive.hopping import Hopping
from manyfit.study.drive.inbox import Inbox
from manyfit.study.drive.keepers import Keepers
from manyfit.study.drive.point_control import PointControl
from manyfit.study.search.sampling import is_blind
from manyfit.study.work import policy
from manyfit.study.work.failures import failure_of
from manyfit.study.work.groups import MOST, choose_mates, choose_neighbors
from manyfit.study.work.hops import Hop
from manyfit.study.work.records import PointRecord
from manyfit.study.work.schedule import Ready, waiting
from manyfit.study.work.units import Failure, Outcome

log = logging.getLogger("manyfit")

MOST_DEATHS: Final = 2
"""How often a trial may lose its worker, without progress in between, before it has it for itself."""


@dataclass(frozen=True)
class Options:
    """Options of this start that are not part of the study."""

    only: Collection[int] | None = None
    fail_fast: bool = False


@dataclass
class Assigning(PointControl):
    """Assigns units to the executor as long as it has room."""

    watch: Watch = field(default_factory=Watch)
    options: Options = field(default_factory=Options)
    signals: int | None = None
    """A file descriptor that becomes readable when a signal arrives."""
    inbox: Inbox | None = None
    hopping: Hopping | None = None
    """The trials that hop over the shards of the data, if they do."""
    keepers: Keepers | None = None
    """The owners of run folders, if workers do not have them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._undecided = True
        self._began = self.executor.now()
        self._before = float(self.ledger.get("seconds") or 0.0)
        self._steps = 0
        self._reported: dict[str, int] = {}
        """The step that each trial in training has last reported."""
        self._how: dict[str, str] = dict(self.ledger.get("trained") or {})
        """How each trial was trained last: in one pass with others or alone, and why."""
        self._last_how = ""

    def _flush(self, point: PointRecord) -> None:
        if self.keepers is not None:
            for trial in point.trials:
                self.keepers.flush(trial.id)

    @property
    def elapsed(self) -> float:
        """Seconds that the study has been running, over all starts."""
        return self._before + self.executor.now() - self._began

    def _hand_out(self) -> None:
        if self.hopping is not None:
            self._hand_out_visits(self.hopping)
            return
        while self.dispatch.has_room() and not self.watch.number and not self.over_budget():
            item = self._next()
            if item is None:
                return
            group = [item, *self._choose_mates(item)]
            if self.keepers is None:
                self.dispatch.submit(group, item.until)
            else:
                group = self._send_away(self.keepers, group)
            for each in group:
                self.shown.show_started(each.point, each.trial)

    def _choose_mates(self, item: Ready) -> list[Ready]:
        """Return the trials that are assigned in one unit with another, and take them off the queue."""
        fuse = self.study.execute.fuse
        if fuse == "off" or not self._may_have_mates(item):
            return []
        self._ask_ahead(0)
        others = {r.trial.id: r for r in self._queue if self._is_ready(r) and self._may_have_mates(r)}
        others.pop(item.trial.id, None)
        waiting = len(others) + 1
        if self.dispatch.shards:  # others read rows in another order, of which a step has another number
            first = self.dispatch.first_shard(item.point, item.trial)
            alike = (r for r in others.values() if self.dispatch.first_shard(r.point, r.trial) == first)
            others = {r.trial.id: r for r in alike}
        free = self.executor.slots - self.dispatch.count
        most, streams = self._most_fused(), self.study.execute.streams
        found = choose_mates(item, others.values(), most, free, waiting)
        if streams != "auto" and self.keepers is None:
            found += choose_neighbors(item, found, others.values(), most, free, streams)
        taken = {id(each) for each in found}
        self._queue = deque(each for each in self._queue if id(each) not in taken)
        return found

    def _ask_ahead(self, waiting: int) -> None:
        """Add points that do not depend on results, so that trials can be chosen that train in one pass."""
        while is_blind(self.study) and len(self._queue) + waiting < MOST and self._ask():
            pass

    def _most_fused(self) -> Literal["auto"] | int:
        """Return how many trials are fused; those that travel occupy open files."""
        fuse = self.study.execute.fuse
        assert fuse != "off"
        return fuse if self.keepers is None or fuse == "auto" else min(fuse, self.keepers.most_away)

    def _may_have_mates(self, item: Ready) -> bool:
        return item.trial.id not in self.dispatch.alone and item.trial.deaths < MOST_DEATHS

    def _send_away(self, keepers: Keepers, group: Sequence[Ready]) -> list[Ready]:
        """Assign trials to a worker that does not have their folders; return those that could be read."""
        luggage: dict[str, Any] = {}
        for item in group:
            id = item.trial.id
            try:
                luggage[id] = keepers.open(self.dispatch.as_trial(item.point, item.trial)).pack()
                keepers.sent.add(id)
            except (ManyfitError, OSError) as error:
                keepers.abandon(id)
                self._refuse(item, failure_of(error))
        found = [item for item in group if item.trial.id in luggage]
        if found:
            self.dispatch.submit(found, found[0].until, luggage=luggage)
        return found

    def _hand_out_visits(self, hopping: Hopping) -> None:
        """Assign visits to shards while a worker is free and a trial waits for one of its shards."""
        hopping.meet_workers()
        while self.dispatch.has_room() and not self.watch.number and not self.over_budget():
            if self.study.execute.fuse != "off":
                self._ask_ahead(hopping.waiting)
            self._enlist(hopping)
            found = hopping.pick()
            if found is None:
                if not self._ask():
                    return
                continue
            item, hop = found
            if not self._is_ready(item):
                hopping.drop(item.trial.id)
                continue
            self._send(hopping, item, hop)

    def _enlist(self, hopping: Hopping) -> None:
        """Let the trials in the queue wait for a visit, except for those whose mates are still away."""
        held = list[Ready]()
        while self._queue:
            item = self._queue.popleft()
            if not self._is_ready(item):
                continue
            if hopping.is_held(item.trial.id):
                held.append(item)
                continue
            hopping.enlist(item, self.dispatch.first_shard(item.point, item.trial) or 0, self.epochs)
        self._queue.extend(held)

    def _send(self, hopping: Hopping, item: Ready, hop: Hop) -> None:
        group = [item]
        if self.study.execute.fuse != "off" and self._may_have_mates(item):
            others = (r for r in hopping.find_mates(hop) if self._is_ready(r) and self._may_have_mates(r))
            group += choose_mates(item, others, self._most_fused(), hopping.workers_per_shard)
        luggage, until = dict[str, Any](), hopping.until(item.trial.id)
        if self.keepers is not None:
            group = [each for each in group if self._pack_visit(hopping, each, hop, luggage)]
        if not group:
            return
        new = [each for each in group if not each.trial.step]
        self.dispatch.submit(group, until, place=hop.worker, shard=hop.shard, luggage=luggage)
        hopping.begin(hop, [each.trial.id for each in group])
        for each in new:
            self.shown.show_started(each.point, each.trial)

    def _pack_visit(self, hopping: Hopping, item: Ready, hop: Hop, luggage: dict[str, Any]) -> bool:
        """Add what a trial takes along to a visit; return whether it can take part in it."""
        trial = item.trial
        try:
            packed = hopping.pack(self.dispatch.as_trial(item.point, trial), hop.shard)
        except (ManyfitError, OSError) as error:
            hopping.drop(trial.id)
            hopping.abandon(trial.id)
            self._refuse(item, failure_of(error))
            return False
        if packed is None:
            hopping.drop(trial.id)
            self._queue.append(item)
            return False
        luggage[trial.id] = packed
        if self.keepers is not None:
            self.keepers.sent.add(trial.id)
        return True

    def _refuse(self, item: Ready, failure: Failure) -> None:
        """Record that a trial cannot be trained now, because its folder cannot be used."""
        found = policy.verdict(item.trial, failure, self.study.execute.retries)
        with self.ledger.transaction():
            item.trial.deaths += found.died
            item.trial.state = found.state
            item.trial.failure = failure if found.state != "waiting" else None
            self.ledger.save_trial(item.trial)
            self.ledger.decide(item.point, f"{failure.kind} → {found.state}", f"trial {item.trial.id}")
            self._close(item.point)
        if found.state == "waiting":
            self._queue.append(item)
        self._undecided = True
        self.shown.show_ended(item.point, item.trial, Outcome(item.trial.id, failure=failure))

    def _is_ready(self, item: Ready) -> bool:
        return item.trial.id not in self.dispatch.busy and item in waiting(item.point, self.options.only)

    def _next(self) -> Ready | None:
        while True:
            while self._queue:
                item = self._queue.popleft()
                if self._is_ready(item):
                    return item
            if not self._ask():
                return None

    def _ask(self) -> bool:
        """Add the next point of the search; return whether there was one."""
        found = self.asker.ask() if self.asker.coming and self.options.only is None else None
        if found is None:
            return False
        with self.ledger.transaction():
            point = self.add(found)
            self.ledger.decide(point, "ask", f"number {self.asker.numbers} of the search")
        self._queue.extend(waiting(point))
        return True

    def _lacks_workers(self) -> bool:
        """Return whether trials wait for a worker, but the executor has lost all of them."""
        if self.executor.slots or self.over_budget():
            return False
        if self.asker.coming and self.options.only is None:
            return True
        return any(waiting(point, self.options.only) for point in self.ledger.points)

    def _count_lost(self, outcome: Outcome) -> Outcome:
        """Count the steps that a worker had reported before it died, and that must be trained again."""
        lost = self._reported.pop(outcome.trial, 0) - outcome.step
        if outcome.failure is not None and outcome.failure.process_died and lost > 0:
            self.ledger.count_repeated(lost)
            self.ledger.set("reported", self._reported)  # these steps are counted
            log.warning("trial %s: %s must be trained again", outcome.trial, pluralize(lost, "step"))
        return outcome

    def _note_how(self, point: PointRecord, outcome: Outcome) -> None:
        """Record whether a trial was trained in one pass with others, and why not."""
        how, _, measured = outcome.how.partition("; ")
        is_repeated = how.endswith(BEGUN_ALONE) and outcome.trial in self._how
        if not how or is_repeated:  # the reason why it was begun alone says more
            return
        self._how[outcome.trial] = how
        if measured and outcome.how != self._last_how:
            self._last_how = outcome.how
            self.ledger.decide(point, "fuse", outcome.how)

    def over_budget(self) -> bool:
        """Return whether a budget is exhausted."""
        steps, limit = self.study.search.steps, seconds(self.study.search.time)
        return (steps is not None and self._steps >= steps) or (limit is not None and self.elapsed >= limit)
