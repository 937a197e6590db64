"""Progress of a run in training: a bar on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from manyfit.core.names import pluralize as times
from manyfit.core.redaction import redact
from manyfit.core.smoothing import MovingAverage
from manyfit.core.text import printable, printable_line
from manyfit.data import Batch
from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary

if TYPE_CHECKING:
    from rich.console import Console

OFTEN: Final = 5.0
"""Minimum number of seconds between lines within an epoch."""
WEIGHT: Final = 0.9
"""The weight of the past in a moving average."""
MOMENT: Final = 1.0
"""Seconds before an evaluation shows a bar."""


class Averages:
    """Moving averages of the training losses of runs that log more often than once per epoch."""

    def __init__(self, cohort: Cohort | None = None) -> None:
        self._within = False
        self._found: dict[str, MovingAverage] = {}
        for member in cohort.members if cohort is not None else ():
            average = self._found[member.folder.name] = MovingAverage(WEIGHT)
            for event in member.committed:
                average.add(event.values.get("train_loss", math.nan))

    def add(self, name: str, boundary: Boundary, row: Mapping[str, float]) -> str:
        """Add a row of a run and return the average in words; empty if each row is that of an epoch."""
        if "train_loss" not in row:
            return ""
        self._within = self._within or not boundary.ends_epoch
        average = self._found.setdefault(name, MovingAverage(WEIGHT)).add(row["train_loss"])
        return f"  (moving average of train_loss: {average:.4g})" if self._within else ""


class PlainProgress:
    """One line at the end of each epoch."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._is_gone = False
        self._said = -OFTEN
        self._latest: dict[str, dict[str, float]] = {}
        self._averages = Averages()

    def on_start(self, cohort: Cohort) -> None:
        """Print what is trained."""
        self._averages = Averages(cohort)
        names = ", ".join(member.folder.name for member in cohort.members)
        where = f" from step {cohort.step}" if cohort.step else ""
        epochs = times(cohort.plan.epochs, "epoch")
        self.line(f"training {names}{where}: {epochs} of {times(cohort.plan.steps_per_epoch, 'step')}")

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Print the latest metrics."""
        is_news = boundary.ends_epoch or boundary.validate or time.monotonic() - self._said > OFTEN
        pairs = list(zip(cohort.members, rows, strict=False))
        averages = [self._averages.add(member.folder.name, boundary, row) for member, row in pairs]
        if not rows or not is_news:
            for member, row in pairs:
                self._latest.setdefault(member.folder.name, {}).update(row)
            return
        self._said = time.monotonic()
        for (member, row), average in zip(pairs, averages, strict=True):
            name = f"{member.folder.name} " if len(cohort.members) > 1 else ""
            latest = self._latest.setdefault(member.folder.name, {})
            latest |= row
            self.line(
                f"{name}epoch {boundary.epoch:.4g}/{cohort.plan.epochs}  {format_values(latest)}{average}"
            )

    def on_end(self, cohort: Cohort) -> None:
        """Do nothing."""

    def line(self, text: str) -> None:
        """Print one line and flush."""
        if self._is_gone:
            return
        try:
            print(printable_line(text), file=self.stream, flush=True)
        except BrokenPipeError:
            self._is_gone = True  # the reader is gone, as with `| head`; the run continues


class BarProgress:
    """A progress bar with the remaining time and the latest metrics."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._averages = Averages()

    def on_start(self, cohort: Cohort) -> None:
        """Draw the bar."""
        self._averages = Averages(cohort)
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.fields[epoch]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[values]}", markup=False),
            console=console(),
        )
        names = printable_line(", ".join(member.folder.name for member in cohort.members))
        self._task = self._bar.add_task(
            names,
            total=cohort.plan.total,
            completed=cohort.step,
            values="",
            epoch=f"{cohort.step // cohort.plan.steps_per_epoch}/{cohort.plan.epochs}",
        )
        self._bar.start()

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Update the bar."""
        shown = {}
        if rows:
            average = self._averages.add(cohort.members[0].folder.name, boundary, rows[0])
            shown = {"values": printable_line(format_values(rows[0]) + average)}
        self._bar.update(
            self._task, completed=boundary.step, epoch=f"{boundary.epoch:.3g}/{cohort.plan.epochs}", **shown
        )

    def on_end(self, cohort: Cohort) -> None:
        """Leave the finished bar on the screen."""
        if self._bar is not None:
            self._bar.stop()


def show_progress(batches: Iterator[Batch], rows: int, name: str, shown: bool = True) -> Iterator[Batch]:
    """Yield batches, with a bar on a terminal if it takes longer than a moment."""
    if not shown or not sys.stderr.isatty():
        yield from batches
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
    )
    bar = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console(), transient=True)
    task, began = bar.add_task(name, total=rows), time.monotonic()
    try:
        for batch in batches:
            yield batch
            bar.update(task, advance=len(batch.index))
            if not bar.live.is_started and time.monotonic() - began > MOMENT:
                bar.start()
    finally:
        bar.stop()


def console() -> Console:
    """Return a console for bars and tables that redacts and escapes what user code prints meanwhile."""
    from rich.console import Console
    from rich.text import Text

    class Safe(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            cleaned = (Text(printable(redact(o.plain))) if isinstance(o, Text) else o for o in objects)
            super().print(*cleaned, **options)

    return Safe(stderr=True)


def progress_for(stream: TextIO) -> PlainProgress | BarProgress:
    """Return a bar for a terminal, lines otherwise."""
    return BarProgress() if stream.isatty() else PlainProgress(stream)


def format_values(row: Mapping[str, float]) -> str:
    """Format metrics for one line: `train_loss 0.2315  val_loss 0.2087`."""
    return "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name != "lr")
