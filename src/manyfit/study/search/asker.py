"""The points of a search that learns: asked for one at a time, from what the ledger says so far."""

from __future__ import annotations

from collections.abc import Iterator

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import ConfigError, UsageError
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.decisions import View
from manyfit.study.search.sampling import EXHAUSTED, Observation, Sampler, is_blind
from manyfit.study.work.points import Candidate, candidate
from manyfit.study.work.records import epochs_of


class Asker:
    """Asks for the next point that is new and that no constraint excludes."""

    def __init__(self, study: StudyConfig, ledger: Ledger) -> None:
        self._study = study
        self._ledger = ledger
        self._sampler = Sampler(study) if not study.is_grid else None
        self._used_up = False
        self.recount()

    def recount(self) -> None:
        """Count the points that were asked for, and those of them that the study still has."""
        asked = [point for point in self._ledger.points if point.origin == "asked"]
        self.numbers, self._current = len(asked), sum(point.current for point in asked)

    @property
    def coming(self) -> int:
        """Points that are still to be asked for."""
        if self._sampler is None or self._used_up:
            return 0
        return max(0, (self._study.search.trials or 0) - self._current)

    def note_added(self, found: Candidate) -> None:
        """A point was put into the ledger."""
        if found.origin == "asked":
            self.numbers += 1
            self._current += 1

    def ask(self) -> Candidate | None:
        """The next point; None if the space is used up, which is then known."""
        assert self._sampler is not None
        history = [] if is_blind(self._study) else list(self._history())
        state = self._ledger.get("sampler") or {}
        for attempt in range(EXHAUSTED):
            asked = self._sampler.ask(history, self.numbers, attempt, state)
            try:
                if not self._study.space.allows(asked.patch, self._study.value):
                    continue
                found = candidate(self._study, asked.patch, "asked", attrs=asked.attrs)
            except ConfigError as error:
                self._ledger.decide(None, "excluded", str(error))
                continue
            known = self._ledger.point(found.id)
            if known is None or not known.current:
                self._ledger.set("sampler", asked.state)
                return found
        self._used_up = True
        if not self._current:
            where = self._study.space.origin
            raise UsageError(f"{where}: space: no point was found that the constraints allow")
        self._ledger.set("trials", self._current)
        self._ledger.decide(None, "exhausted", f"no new point was found in {EXHAUSTED} tries")
        return None

    def _history(self) -> Iterator[Observation]:
        sign = self._study.objective.sign
        for point in self._ledger.points:
            state, value = View(point, sign).state, point.value(sign)
            if state == "waiting":
                state = "stopped" if value is not None else "running"
            epoch = int(min(point.epoch, epochs_of(point.values, self._study.base.run.train.epochs)))
            yield Observation(point.values, state, value, epoch, point.attrs)
