"""Where the time of a run goes, measured on a copy. Nothing is written to its folder."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from manyfit.config import load_config
from manyfit.config.tree.overrides import Overrides
from manyfit.core.errors import Interrupted, UsageError
from manyfit.core.signals import Watch, watch_signals
from manyfit.core.stopwatch import Span, Stopwatch, TimedCall, TimedIterator, timing
from manyfit.data import DatasetSource
from manyfit.data.dataset import Limited
from manyfit.data.randomness import own_randomness
from manyfit.data.walk import Walk
from manyfit.learn.learner import Learner
from manyfit.run.advice import Facts, advise
from manyfit.run.build.modes import threads
from manyfit.run.loop import trainer
from manyfit.run.loop.clock import Pace
from manyfit.run.loop.cohort import Cohort, Member
from manyfit.run.loop.plan import Boundary
from manyfit.run.session.batch_rehearsal import rehearse_batch
from manyfit.run.session.fusing import launch_run
from manyfit.run.session.session import Opened, open_run, read_together
from manyfit.store import durable
from manyfit.store.folder import RunFolder

DATA, LOOP, VALIDATION, LOG, CHECKPOINT = "waiting for data", "the loop", "validation", "log", "checkpoint"
AT_BOUNDARIES: Final = (VALIDATION, LOG, CHECKPOINT)
PLACES: Final = (
    TimedCall(trainer, "validate", VALIDATION, is_whole=True),
    TimedCall(trainer, "take_metrics", LOG, is_whole=True),
    TimedCall(Member, "record", LOG, is_whole=True),
    TimedCall(trainer, "keep_states", CHECKPOINT),
)
WARM: Final = 0.25
"""The share of the time in which nothing is measured yet, and of the steps at most."""
TRACED: Final = 0.3
"""Seconds of training that are traced."""
KEPT: Final = 20
"""The most steps of a short run that are kept for the trace."""


@dataclass(frozen=True)
class Phase:
    """What one part of a run takes."""

    name: str
    seconds: float
    """In one epoch."""
    share: float
    per_step: float | None
    """Seconds in one step; None for what is done between steps."""


@dataclass(frozen=True)
class Profile:
    """Where the time of a run goes."""

    phases: Sequence[Phase]
    """The longest first."""
    advice: str
    epoch: float
    """Seconds of an epoch, with what is done between steps."""
    steps_per_epoch: int
    steps_per_second: float
    rows_per_second: float
    """While training, without the timers."""
    slower: float | None
    """How much slower steps are with the timers; None if all steps were timed."""
    measured: int
    """Steps that were timed."""
    threads: int
    """The number of threads on the CPU."""
    with_one_thread: float | None
    """Steps per second with one thread; None if that was not tried."""
    end: str
    """Why the run ended before the time was over; empty if it did not."""
    is_extrapolated: bool
    """Whether less than an epoch was trained, so that the epoch is calculated from its parts."""
    busy: float | None
    """The share of the time of steps in which the GPU computes."""
    learner: str
    spans: Sequence[Span] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the spans."""
        found = {name: value for name, value in vars(self).items() if name != "spans"}
        return {**found, "phases": [vars(phase) for phase in self.phases]}


def profile(
    source: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    seconds: float = 10.0,
    trace: str | Path | None = None,
) -> Profile:
    """Train a copy of a run for some seconds, and return where the time goes.

    `trace` is a JSON file for a trace of a few steps, which opens in Perfetto and in Chrome.

    >>> profile("runs/digits-mlp").advice    # doctest: +SKIP
    """
    if not 0 < seconds < float("inf"):
        raise UsageError("seconds must be positive")
    file = Path(trace) if trace is not None else None
    if file is not None:
        _check_output(file)
    config = load_config(source, overrides)
    with (
        tempfile.TemporaryDirectory(prefix="manyfit-") as place,
        watch_signals() as watch,
        own_randomness(),
        ExitStack() as stack,
    ):
        here = stack.enter_context(open_run(config, RunFolder(Path(place) / "run")))
        durable.make_place(here.run.path)
        rehearse_batch(here.built, here.config)
        text = "ended by {name}; nothing was changed"
        try:
            with watch.translate(text):
                return _Profiler(here, watch, stack).run(seconds, file)
        except Interrupted:  # of the training, which could be resumed if it were no copy
            raise Interrupted(text.replace("{name}", watch.name), watch.number) from None


def _check_output(file: Path) -> None:
    """Raise an error if a file cannot be written; it stays as it is."""
    if not file.parent.is_dir():
        raise UsageError(f"the folder {file.parent} does not exist")
    is_new = not file.exists()
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        raise UsageError(f"the trace cannot be written to {file}: {error.strerror}") from None
    if is_new:
        file.unlink()


class _Profiler:
    """A run that is trained as usual, and timed."""

    def __init__(self, here: Opened, watch: Watch, stack: ExitStack) -> None:
        self._here, self._watch, built = here, watch, here.built
        launched = launch_run(here)
        self._learner: Learner = launched or built.learner
        batches = read_together([here], launched is not None)
        if not isinstance(batches, Walk):
            batches = TimedIterator(batches, DATA)
        self._batches = batches
        self._member = here.join(stack)
        stack.callback(self._member.writer.close)
        self._cohort = Cohort([self._member], self._learner, built.plan, batches, 0, True)
        self._tracing = built.kind.trace(built.learner)
        wait = self._tracing.wait if self._tracing is not None else lambda: None
        self._stopwatch = Stopwatch(wait)
        self._steps = {False: 0, True: 0}
        """Steps that were trained without and with the timers."""
        self._took = {False: 0.0, True: 0.0}
        self._epochs, self._end = 0, built.plan.total
        self._reached = Counter[str]()
        """How often something was done between steps."""
        with threads(None) as count:
            self._threads = count

    def run(self, seconds: float, file: Path | None) -> Profile:
        """Measure, and return the result."""
        plan, pace = self._cohort.plan, Pace(self._cohort.plan)
        is_traced = self._tracing is not None and (file is not None or self._tracing.sees_gpu)
        kept = plan.total // 4 if self._could_use_one_thread() else 0
        self._end = plan.total - kept - (min(KEPT, plan.total // 4) if is_traced else 0)
        self._train(pace, time.perf_counter() + WARM * seconds, int(WARM * plan.total))
        if self._cohort.active and self._cohort.step < self._end:
            self._steps, self._took, self._epochs = {False: 0, True: 0}, {False: 0.0, True: 0.0}, 0
            self._reached.clear()
            self._stopwatch = Stopwatch(self._stopwatch.wait)
            self._train(pace, time.perf_counter() + (1 - WARM) * seconds)
        member = self._member
        if error := member.error or (member.ended.error if member.ended is not None else None):
            raise error
        is_extrapolated = not self._epochs
        if is_extrapolated:
            boundary = replace(plan.at(self._cohort.step), log=True, validate=True, checkpoint=True)
            self._reach(boundary)
        end = member.end_reason or ("" if self._cohort.step < self._end else "it has no more steps")
        found = replace(self._summarize(is_extrapolated), end=end)
        if member.ended is None and kept:
            self._end += kept
            found = replace(found, with_one_thread=self._try_one_thread(pace, WARM * seconds))
        busy = self._trace(found.steps_per_second, file)
        return self._add_advice(replace(found, busy=busy))

    def _could_use_one_thread(self) -> bool:
        """Return whether steps are computed by several threads of this process."""
        is_cpu = self._tracing is not None and not self._tracing.sees_gpu
        return is_cpu and self._threads > 1 and self._cohort.plan.grain == 1

    def _try_one_thread(self, pace: Pace, seconds: float) -> float | None:
        """Return the steps per second with one thread."""
        before, self._steps, self._took = (
            (self._steps, self._took),
            {False: 0, True: 0},
            {False: 0.0, True: 0.0},
        )
        with threads(1):
            self._train(pace, time.perf_counter() + seconds, times=False)
        steps, took = self._steps[False], self._took[False]
        self._steps, self._took = before
        return steps / took if steps else None

    def _train(self, pace: Pace, until: float, most: int | None = None, times: bool = True) -> None:
        """Train until a moment, at most until a step; with `times`, every other stretch is timed."""
        cohort, is_timed = self._cohort, times
        end = self._end if most is None else most
        while cohort.step < end and time.perf_counter() < until and cohort.active:
            boundary = cohort.plan.next(cohort.step, min(pace.most, end - cohort.step))
            steps = boundary.step - cohort.step
            pace.begin()
            began = time.perf_counter()
            with self._time(LOOP) if is_timed else ExitStack():
                trainer.train_to(cohort, boundary, self._watch, is_exact=False)
                self._stopwatch.wait()
            self._took[is_timed] += time.perf_counter() - began
            self._steps[is_timed] += steps
            boundary = pace.pause(boundary, steps)
            cohort.step = boundary.step
            self._reach(boundary, times)
            is_timed = times and not is_timed
            self._watch.check()

    def _reach(self, boundary: Boundary, is_timed: bool = True) -> None:
        """Do what is due at a boundary, and count it."""
        with self._time() if is_timed else ExitStack():
            trainer.reach_boundary(self._cohort, boundary, (), self._watch)
        if is_timed:
            self._epochs += boundary.ends_epoch
            self._reached += _list_due(boundary)

    @contextmanager
    def _time(self, phase: str = "") -> Iterator[None]:
        """Time what is done inside."""
        watch, batches = self._stopwatch, self._batches
        with timing([*PLACES, *self._here.built.kind.list_places()], watch), ExitStack() as stack:
            if isinstance(batches, TimedIterator):
                batches.watch = watch
                stack.callback(setattr, batches, "watch", None)
            if phase:
                stack.enter_context(watch.measure(phase))
            yield

    def _summarize(self, is_extrapolated: bool) -> Profile:
        plan, steps = self._cohort.plan, max(1, self._steps[True])
        per_step = {n: t / steps for n, t in self._stopwatch.seconds.items() if n not in AT_BOUNDARIES}
        each = {n: t * plan.steps_per_epoch for n, t in per_step.items()}
        for name in AT_BOUNDARIES:
            took = self._stopwatch.seconds[name]
            if is_extrapolated:
                each[name] = took / max(1, self._reached[name]) * self._count_due(name)
            else:
                each[name] = took / self._epochs
        total = sum(each.values()) or 1.0
        phases = [
            Phase(n, t, t / total, per_step.get(n))
            for n, t in sorted(each.items(), key=lambda item: -item[1]) if t > 0
        ]  # fmt: skip
        plain = self._took[False] / max(1, self._steps[False])
        speed = 1 / plain if plain else steps / max(self._took[True], 1e-9)
        between = sum(each[name] for name in AT_BOUNDARIES)
        slower = self._took[True] / steps * speed - 1 if self._steps[True] and plain else None
        return Profile(
            phases, "", plan.steps_per_epoch / speed + between, plan.steps_per_epoch, speed,
            speed * self._here.built.order.batch_size, slower, self._steps[True], self._threads, None, "",
            is_extrapolated, None, type(self._learner).__name__, self._stopwatch.spans,
        )  # fmt: skip

    def _count_due(self, name: str) -> int:
        """Return how often something is done in an epoch, at least once: a cadence may be a time."""
        plan = self._cohort.plan
        first = itertools.takewhile(lambda each: each.step <= plan.steps_per_epoch, plan.boundaries(0))
        return max(1, sum(_list_due(each)[name] for each in first))

    def _trace(self, speed: float, file: Path | None) -> float | None:
        """Trace some steps; return the share of their time in which the GPU computes."""
        cohort, tracing = self._cohort, self._tracing
        left = cohort.plan.total - cohort.step
        if tracing is None or not left or not (file is not None or tracing.sees_gpu):
            if file is not None:
                _write_trace(file, json.dumps(_describe_spans(self._stopwatch.spans)))
            return None
        steps = max(1, min(left, int(TRACED * speed), cohort.plan.next(cohort.step, left).step - cohort.step))
        steps = -(-steps // cohort.plan.grain) * cohort.plan.grain
        self._stopwatch = Stopwatch(tracing.wait, tracing.mark)
        boundary = cohort.plan.at(cohort.step + steps)
        with tracing, self._time(LOOP):
            trainer.train_to(cohort, boundary, self._watch, is_exact=False)
        if file is not None:
            here = self._here.run.path / "trace.json"
            tracing.write(here)
            _write_trace(file, here.read_text())
        return min(1.0, tracing.busy() * speed / steps) if tracing.sees_gpu else None

    def _add_advice(self, found: Profile) -> Profile:
        here, config = self._here, self._here.config.run
        facts = Facts(
            {phase.name: phase.share for phase in found.phases},
            1 / found.steps_per_second, found.busy, here.built.order.batch_size,
            here.built.evaluation_batch_size, config.train.capture, type(here.built.train).__name__,
            launches="launched steps" in {phase.name for phase in found.phases},
            workers=_count_workers(here.built.train), threads=found.threads,
            faster_with_one_thread=(found.with_one_thread or 0.0) / found.steps_per_second,
        )  # fmt: skip
        return replace(found, advice=advise(facts))


def _count_workers(source: Any) -> int:
    """Return the number of processes that read the rows of a source."""
    while type(source) is Limited:
        source = source.source
    return source.workers if isinstance(source, DatasetSource) else 0


def _list_due(boundary: Boundary) -> Counter[str]:
    """Return what is done at a boundary."""
    due = {VALIDATION: boundary.validate, LOG: boundary.log, CHECKPOINT: boundary.checkpoint}
    return Counter(name for name, is_due in due.items() if is_due)


def _write_trace(file: Path, text: str) -> None:
    """Write to a file, or to what a link leads to."""
    try:
        file.write_text(text)
    except OSError as error:
        raise UsageError(f"the trace cannot be written to {file}: {error.strerror}") from None


def _describe_spans(spans: Sequence[Span]) -> dict[str, Any]:
    """Return spans in the format of Chrome's trace viewer."""
    begin = min((span.begin for span in spans), default=0.0)
    events = [
        {"name": s.phase, "ph": "X", "pid": 0, "tid": s.thread, "ts": 1e6 * (s.begin - begin),
         "dur": 1e6 * (s.end - s.begin)}
        for s in sorted(spans, key=lambda each: each.begin)
    ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
