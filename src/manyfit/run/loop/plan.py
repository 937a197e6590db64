"""When something happens: the boundaries of a run are known before its first step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from manyfit.config.schema.run import Every, Train
from manyfit.config.typed.cadence import Cadence, parse_cadences

AUTO, VALIDATION = "auto", "validation"
EPOCH = Cadence.parse("1ep")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A step at which training pauses, and what is due there."""

    step: int
    epoch: float
    ends_epoch: bool
    last: bool
    log: bool = False
    validate: bool = False
    checkpoint: bool = False

    @property
    def measures(self) -> bool:
        """Whether a row is written to the log."""
        return self.log or self.validate


@dataclass(frozen=True, slots=True)
class Plan:
    """How many steps there are, and what is due on the way. What the clock decides is not in it."""

    steps_per_epoch: int
    epochs: int
    log: Cadence = EPOCH
    validate: Cadence = EPOCH
    checkpoint: tuple[Cadence, ...] = ()
    """Whichever is due first."""
    auto: bool = True
    """Also once an epoch, at most every 30 seconds, which the clock decides."""
    with_validation: bool = False
    """Also whenever the model is validated."""
    grain: int = 1
    """Steps that are trained at once: there is no boundary between them."""

    @staticmethod
    def of(train: Train, steps_per_epoch: int, grain: int = 1) -> Plan:
        """The plan that a config describes."""
        every: Every = train.every
        cadences, words = parse_cadences(every.checkpoint)
        return Plan(
            steps_per_epoch,
            train.epochs,
            Cadence.parse(every.log),
            Cadence.parse(every.validate),
            tuple(cadences),
            AUTO in words,
            VALIDATION in words,
            grain,
        )

    @property
    def total(self) -> int:
        """Steps until the end."""
        return self.steps_per_epoch * self.epochs

    def at(self, step: int) -> Boundary:
        """What is due at a step.

        Rows are due by their cadence alone, also at the end: a run that is extended later must not differ
        from one that was that long from the start. What the clock decides is due at the end, too.
        """
        last, per_epoch = step == self.total, self.steps_per_epoch
        validate = (last and self.validate.by_time) or self.validate.is_due(step, per_epoch)
        return Boundary(
            step,
            step / self.steps_per_epoch,
            step % self.steps_per_epoch == 0,
            last,
            (last and self.log.by_time) or self.log.is_due(step, self.steps_per_epoch),
            validate,
            last
            or (validate and self.with_validation)
            or any(cadence.is_due(step, per_epoch) for cadence in self.checkpoint),
        )

    def next(self, step: int, most: int) -> Boundary:
        """The next boundary after a step, at most some steps away."""
        pause = -(-(step + most) // self.grain) * self.grain
        candidates = [self.total, pause, (step // self.steps_per_epoch + 1) * self.steps_per_epoch]
        for cadence in (self.log, self.validate, *self.checkpoint):
            due = cadence.next_after(step, self.steps_per_epoch)
            candidates += [due] if due is not None else []
        return self.at(min(candidates))

    def boundaries(self, start: int, most: int = 1 << 60) -> Iterator[Boundary]:
        """Every boundary after step `start`."""
        while start < self.total:
            boundary = self.next(start, most)
            yield boundary
            start = boundary.step
