"""The points of an adaptive search: proposed one at a time, from the results in the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import ConfigError, UsageError
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.sampling import EXHAUSTED, Observation, Sampler, is_blind
from manyfit.study.search.standings import View
from manyfit.study.work.points import Candidate, candidate
from manyfit.study.work.records import epochs_of


class Asker:
    """Asks the sampler for points that are new and satisfy the constraints."""

    def __init__(self, study: StudyConfig, ledger: Ledger) -> None:
        self._study = study
        self._ledger = ledger
        self._sampler = Sampler(study) if not study.is_grid else None
        self._used_up = False
        self.recount()

    def recount(self) -> None:
        """Count the points that the sampler proposed, and those that the study still has."""
        asked = [point for point in self._ledger.points if point.origin == "asked"]
        self.numbers, self._current = len(asked), sum(point.current for point in asked)

    @property
    def coming(self) -> int:
        """Number of points that the sampler has yet to propose."""
        if self._sampler is None or self._used_up:
            return 0
        return max(0, (self._study.search.trials or 0) - self._current)

    def note_added(self, found: Candidate) -> None:
        """Count a point that was added to the ledger."""
        if found.origin == "asked":
            self.numbers += 1
            self._current += 1

    def ask(self) -> Candidate | None:
        """Return the next point; None if the search space is exhausted, which `coming` then reflects."""
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
            raise UsageError(f"{where}: space: no point satisfies the constraints")
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
