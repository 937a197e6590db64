"""The progress of a study: a live table on a terminal, one line per event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from manyfit.config.study.study import StudyConfig
from manyfit.core.redaction import redact
from manyfit.core.text import printable, printable_line
from manyfit.run.callbacks.progress import console
from manyfit.study.work.records import PointRecord, TrialRecord
from manyfit.study.work.training import describe_point
from manyfit.study.work.units import Outcome, Progress

if TYPE_CHECKING:
    from rich.console import RenderableType


class Display:
    """Receives events. The base class shows nothing."""

    def show_started(self, point: PointRecord, trial: TrialRecord) -> None:
        """Show that a trial has started."""

    def progress(self, progress: Progress) -> None:
        """Show the progress of a trial."""

    def show_ended(self, point: PointRecord, trial: TrialRecord, outcome: Outcome) -> None:
        """Show that a unit has ended for a trial."""

    def show_stopped(self, point: PointRecord) -> None:
        """Show that a point was stopped."""

    def show_added(self, point: PointRecord) -> None:
        """Show that a point was added that the search did not propose."""

    def say(self, text: str) -> None:
        """Show a message that belongs to no event."""

    def close(self) -> None:
        """Close the display."""


class Silent(Display):
    """A display that shows nothing."""


class LineDisplay(Display):
    """A display that prints one line per event."""

    def __init__(self, stream: TextIO, study: StudyConfig, points: Sequence[PointRecord]) -> None:
        self._stream = stream
        self._study = study
        self._points = points
        self._clock = Clock(study, points)

    def show_ended(self, point: PointRecord, trial: TrialRecord, outcome: Outcome) -> None:
        """Print how a unit ended, and how much is left."""
        is_visit = trial.state == "waiting" and outcome.failure is None
        if is_visit and trial.epoch % 1:  # one of many visits to shards
            return
        value = f"{self._study.objective.metric} {trial.value:.4g}" if trial.value is not None else ""
        what = "trained" if is_visit else trial.state if trial.state != "waiting" else "requeued"
        failure = f"{outcome.failure.kind}: {first_line(outcome.failure.message)}" if outcome.failure else ""
        count, total = self._clock.trials()
        left, which = self._clock.estimate_left(), self._study.name_replicate(trial.seed)
        self._line(
            f"[{count}/{total}] {what:<8} point {point.number} {which}  epoch {trial.epoch:g}  "
            f"{'  '.join(filter(None, (value, failure)))}  {describe_point(point.values)}"
            + (f"  (left {left})" if left else "")
        )

    def show_stopped(self, point: PointRecord) -> None:
        """Print why a point was stopped."""
        self._line(f"stopped  point {point.number}  {point.reason}  {describe_point(point.values)}")

    def show_added(self, point: PointRecord) -> None:
        """Print which point was added."""
        self._line(f"added    point {point.number} ({point.origin})  {describe_point(point.values)}")

    def say(self, text: str) -> None:
        """Print a message."""
        self._line(text)

    def _line(self, text: str) -> None:
        print(printable(redact(text.rstrip())), file=self._stream, flush=True)


class TableDisplay(Display):
    """A live table: the running trials, the best points, and the remaining time."""

    def __init__(self, study: StudyConfig, points: Sequence[PointRecord], best: int = 5) -> None:
        from rich.live import Live

        self._study = study
        self._points = points
        self._best = best
        self._clock = Clock(study, points)
        self._running: dict[str, tuple[PointRecord, TrialRecord]] = {}
        self._signs: dict[str, Progress] = {}
        self._failed = 0
        self._live = Live(
            get_renderable=self._render, console=console(), refresh_per_second=4, transient=True
        )
        self._live.start()

    def show_started(self, point: PointRecord, trial: TrialRecord) -> None:
        """Add a trial to the table."""
        self._running[trial.id] = (point, trial)

    def progress(self, progress: Progress) -> None:
        """Update the epoch and the value of a trial."""
        self._signs[progress.trial] = progress

    def show_ended(self, point: PointRecord, trial: TrialRecord, outcome: Outcome) -> None:
        """Remove a trial from the table."""
        self._running.pop(trial.id, None)
        self._signs.pop(trial.id, None)
        self._failed += trial.state in ("failed", "infeasible")

    def say(self, text: str) -> None:
        """Print a message above the table."""
        self._live.console.print(printable(redact(text)), highlight=False, markup=False)

    def close(self) -> None:
        """Remove the table; the results are printed after it."""
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table as Grid

        objective, epochs = self._study.objective, self._study.base.run.train.epochs
        done, total = self._clock.trials()
        failed = f", {self._failed} failed" if self._failed else ""
        left = self._clock.estimate_left()
        head = f"{done} of {total} trials{failed}" + (f", left {left}" if left else "")
        now = Grid(
            "training",
            "seed",
            "epoch",
            _escape_markup(objective.metric),
            "values",
            box=box.SIMPLE,
            title=head,
        )
        for id, (point, trial) in list(self._running.items()):
            sign = self._signs.get(id)
            epoch = sign.epoch if sign is not None else trial.epoch
            value = sign.value if sign is not None and sign.value is not None else trial.value
            shown = f"{value:.4g}" if value is not None else ""
            now.add_row(
                f"{point.number}",
                self._study.name_replicate(trial.seed).removeprefix("seed "),
                f"{epoch:.3g}/{epochs}",
                shown,
                _format_values(point.values),
            )
        best = Grid("best", "seeds", "epoch", _escape_markup(objective.metric), "values", box=box.SIMPLE)
        sign_ = objective.sign
        scored = [
            (value, p) for p in list(self._points) if (value := p.value(sign_)) is not None and p.current
        ]
        for value, point in sorted(scored, key=lambda found: (sign_ * found[0], found[1].id))[: self._best]:
            epoch = min(point.epoch, epochs)
            best.add_row(
                f"{point.number}",
                f"{len(point.trials)}",
                f"{epoch:g}",
                f"{value:.4g}",
                _format_values(point.values),
            )
        return Group(now, best)


def _format_values(values: Mapping[str, Any]) -> str:
    return _escape_markup(describe_point(values))


def _escape_markup(text: str) -> str:
    """Escape the text of a cell, in which Rich would read brackets as markup."""
    from rich.markup import escape

    return escape(printable_line(redact(text)))


class Clock:
    """The progress of a study, and the time that the rest will take."""

    def __init__(
        self,
        study: StudyConfig,
        points: Sequence[PointRecord],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        self._points = points
        self._clock = clock
        self._began = clock()
        self._start = self._epochs_done()
        self._cached: tuple[float, tuple[int, int], str] | None = None

    def _epochs_done(self) -> float:
        return sum(trial.epoch for point in self._points for trial in point.trials)

    def trials(self) -> tuple[int, int]:
        """Return the number of trials that are done, and of all trials."""
        return self._refresh()[1]

    def estimate_left(self) -> str:
        """Return the estimated remaining time as text; empty while it is unknown."""
        return self._refresh()[2]

    def _refresh(self) -> tuple[float, tuple[int, int], str]:
        """Return the time, counts and estimate, cached for a second: counting thousands of trials is slow."""
        now = self._clock()
        if self._cached is None or now - self._cached[0] > 1.0 or len(self._points) < 200:
            self._cached = (now, self._count(), self._estimate(now))
        return self._cached

    def _count(self) -> tuple[int, int]:
        current = [point for point in self._points if point.current]
        done = sum(t.is_done or p.state == "stopped" for p in current for t in p.trials)
        asked = sum(point.origin == "asked" for point in current)
        planned = 0 if self._study.is_grid else max(0, (self._study.search.trials or 0) - asked)
        return done, sum(len(p.trials) for p in current) + planned * len(self._study.seeds)

    def _estimate(self, now: float) -> str:
        done = self._epochs_done() - self._start
        took = now - self._began
        if done <= 0 or took < 1.0:
            return ""
        epochs = self._study.base.run.train.epochs
        rest = sum(
            max(0.0, (p.granted if p.granted is not None else epochs) - t.epoch)
            for p in self._points
            if p.current and p.state == "open"
            for t in p.trials
            if not t.is_done and not t.over
        )
        until = " until the next decision" if self._study.search.stop is not None else ""
        return duration(rest * took / done) + until


def duration(seconds: float) -> str:
    """Format seconds: 40s, 12m 5s, 3h 20m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"


def first_line(text: str) -> str:
    """Return the first line of a message, truncated."""
    return text.strip().partition("\n")[0][:160]


def choose_display(stream: TextIO, study: StudyConfig, points: Sequence[Any]) -> Display:
    """Return a table for a terminal, and lines otherwise."""
    return TableDisplay(study, points) if stream.isatty() else LineDisplay(stream, study, points)
