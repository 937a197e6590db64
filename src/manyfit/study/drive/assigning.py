"""Which units are assigned to the executor next: whole trials, or visits of trials to shards."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from manyfit.config.study.quantities import seconds
from manyfit.core.errors import ManyfitError
from manyfit.core.names import pluralize
from manyfit.core.signals import Watch
from manyfit.study.drive.hopping import Hopping
from manyfit.study.drive.inbox import Inbox
from manyfit.study.drive.keepers import Keepers
from manyfit.study.drive.point_control import PointControl
from manyfit.study.search.sampling import is_blind
from manyfit.study.work import policy
from manyfit.study.work.failures import failure_of
from manyfit.study.work.groups import MOST, choose_mates
from manyfit.study.work.hops import Hop
from manyfit.study.work.records import PointRecord
from manyfit.study.work.schedule import Ready, waiting
from manyfit.study.work.units import Failure, Outcome

log = logging.getLogger("manyfit")


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
            group = [item]
            if self.keepers is None:
                group += self._choose_mates(item)
                self.dispatch.submit(group, item.until)
            elif not self._send_away(self.keepers, item):
                continue
            for each in group:
                self.shown.show_started(each.point, each.trial)

    def _choose_mates(self, item: Ready) -> list[Ready]:
        """Return the trials that are assigned in one unit with another, and take them off the queue."""
        fuse = self.study.execute.fuse
        if fuse == "off" or item.trial.id in self.dispatch.alone or self.dispatch.shards:
            return []
        while is_blind(self.study) and len(self._queue) < MOST and self._ask():
            pass  # points that do not depend on results may be added at any time
        others = {
            r.trial.id: r for r in self._queue if r.trial.id not in self.dispatch.alone and self._is_ready(r)
        }
        others.pop(item.trial.id, None)
        free = self.executor.slots - self.dispatch.count
        found = choose_mates(item, others.values(), fuse, free)
        taken = {id(each) for each in found}
        self._queue = deque(each for each in self._queue if id(each) not in taken)
        return found

    def _send_away(self, keepers: Keepers, item: Ready) -> bool:
        """Assign a trial to a worker that does not have its folder; return whether it could be read."""
        id = item.trial.id
        try:
            luggage = keepers.open(self.dispatch.as_trial(item.point, item.trial)).pack()
        except (ManyfitError, OSError) as error:
            keepers.abandon(id)
            self._refuse(item, failure_of(error))
            return False
        keepers.sent.add(id)
        self.dispatch.submit([item], item.until, luggage={id: luggage})
        return True

    def _hand_out_visits(self, hopping: Hopping) -> None:
        """Assign visits to shards while a worker is free and a trial waits for one of its shards."""
        hopping.meet_workers()
        while self.dispatch.has_room() and not self.watch.number and not self.over_budget():
            while self._queue:
                item = self._queue.popleft()
                if self._is_ready(item):
                    first = self.dispatch.first_shard(item.point, item.trial) or 0
                    hopping.enlist(item, first, self.epochs)
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

    def _send(self, hopping: Hopping, item: Ready, hop: Hop) -> None:
        trial, is_new = item.trial, not item.trial.step
        luggage = {}
        if self.keepers is not None:
            try:
                packed = hopping.pack(self.dispatch.as_trial(item.point, trial), hop.shard)
                if packed is None:
                    hopping.drop(trial.id)
                    self._queue.append(item)
                    return
                luggage[trial.id] = packed
            except (ManyfitError, OSError) as error:
                hopping.drop(trial.id)
                hopping.abandon(trial.id)
                self._refuse(item, failure_of(error))
                return
        until = hopping.until(trial.id)
        self.dispatch.submit([item], until, place=hop.worker, shard=hop.shard, luggage=luggage)
        hopping.begin(hop)
        if is_new:
            self.shown.show_started(item.point, trial)

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
        if not how:
            return
        self._how[outcome.trial] = how
        if measured and outcome.how != self._last_how:
            self._last_how = outcome.how
            self.ledger.decide(point, "fuse", outcome.how)

    def over_budget(self) -> bool:
        """Return whether a budget is exhausted."""
        steps, limit = self.study.search.steps, seconds(self.study.search.time)
        return (steps is not None and self._steps >= steps) or (limit is not None and self.elapsed >= limit)
