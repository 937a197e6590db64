"""The schedule of a run: its boundaries are known before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from manyfit.config.schema.run import Every, Train
from manyfit.config.typed.cadence import Cadence, parse_cadences

AUTO, VALIDATION = "auto", "validation"
EPOCH = Cadence.parse("1ep")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A step at which training pauses, with the actions that are due there."""

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
    """The number of steps, and the actions that are due on the way, except for time-based ones."""

    steps_per_epoch: int
    epochs: int
    log: Cadence = EPOCH
    validate: Cadence = EPOCH
    checkpoint: tuple[Cadence, ...] = ()
    """A checkpoint is written when any of them is due."""
    auto: bool = True
    """Also once an epoch, but at most every 30 seconds (see `clock`)."""
    with_validation: bool = False
    """Also after every validation."""
    grain: int = 1
    """Steps that are trained as one block, without a boundary inside."""

    @staticmethod
    def of(train: Train, steps_per_epoch: int, grain: int = 1) -> Plan:
        """Return the plan that a config describes."""
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
        """The total number of steps."""
        return self.steps_per_epoch * self.epochs

    def at(self, step: int) -> Boundary:
        """Return the boundary at a step, with the actions that are due.

        Rows are due by their cadence alone, even at the end: a run that is extended later must not differ
        from one that was that long from the start. Time-based actions are also due at the end.
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
        """Return the next boundary after a step, at most `most` steps away, rounded up to the grain."""
        pause = -(-(step + most) // self.grain) * self.grain
        candidates = [self.total, pause, (step // self.steps_per_epoch + 1) * self.steps_per_epoch]
        for cadence in (self.log, self.validate, *self.checkpoint):
            due = cadence.next_after(step, self.steps_per_epoch)
            candidates += [due] if due is not None else []
        return self.at(min(candidates))

    def boundaries(self, start: int, most: int = 1 << 60) -> Iterator[Boundary]:
        """Yield every boundary after step `start`."""
        while start < self.total:
            boundary = self.next(start, most)
            yield boundary
            start = boundary.step
