"""The work that an executor does on a unit: train its trials, each in its own run folder."""

from __future__ import annotations

import functools
import math
import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from manyfit.config import Config, load_config
from manyfit.config.tree.nodes import plain
from manyfit.config.tree.reader import dump_parts
from manyfit.core.code_hash import CARRIED, class_path, hash_code
from manyfit.core.errors import FolderError
from manyfit.core.lazy import import_optional
from manyfit.core.redaction import redact
from manyfit.core.signals import Watch
from manyfit.store.checkpoint import list_committed
from manyfit.store.events import Event, read_events
from manyfit.store.folder import RunFolder
from manyfit.study.work.failures import failure_of
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.points import trial_config
from manyfit.study.work.records import Curve
from manyfit.study.work.unit_watch import Tell, UnitWatch
from manyfit.study.work.units import Failure, Outcome, Progress, Trial, Unit

if TYPE_CHECKING:
    from manyfit.run.build.shared_data import SharedData
    from manyfit.run.loop.cohort import Cohort
    from manyfit.run.loop.plan import Boundary

WRITTEN: Final = "# Written by manyfit: one trial of a study. Change the study, not this file."
STUDY_FILE: Final = "../../provenance.json"
"""Where the versions and the code of a study are recorded, from the folder of a trial."""
OURS: Final = ("train.accumulate", "train.warm_start")
"""Keys that the study may change in a trial: when memory runs out, and for the path of cloned weights."""
BETWEEN: Final = 0.2
"""Seconds between signs of life."""


@dataclass(frozen=True)
class Training:
    """The work on the units of one study. It is created once and sent to every worker."""

    base: str
    """The file with the base config, as it was when the study was last started."""
    metric: str
    study: str = STUDY_FILE
    allowed: tuple[str, ...] = ()
    ready: dict[str, Config] = field(default_factory=dict, compare=False, repr=False)
    """Configs of trials that were already loaded in this process; each is used once."""
    shared: list[Any] = field(default_factory=list, compare=False, repr=False)
    """The `SharedData` of this process, once it exists."""

    fuse: Literal["off", "auto"] | int = "off"
    """Whether the trials of a unit train in one pass."""
    streams: int = 1
    """How many groups of a unit train side by side on a GPU."""
    carried: tuple[str, ...] = ()
    """Classes of the running script or notebook, which travel to other processes by value."""

    def __getstate__(self) -> dict[str, Any]:
        carried = self.carried, pack_classes(self.carried)
        return {**self.__dict__, "ready": {}, "shared": [], "carried": carried}

    def __setstate__(self, state: dict[str, Any]) -> None:
        names, packed = state["carried"]
        unpack_classes(packed)
        self.__dict__.update({**state, "carried": names})

    explains_fusing: ClassVar[bool] = False
    """Whether a rehearsal finds out if a trial can be fused, which its group finds out as well."""
    enters_scopes: ClassVar[bool] = True
    """It enters the scope of each trial itself, as several of them train side by side."""

    def __call__(self, unit: Unit, watch: UnitWatch, tell: Tell) -> Iterator[Outcome]:
        """Train the trials of a unit as one session; evaluate or rehearse them one after another."""
        if unit.purpose == "train" and not unit.luggage:
            yield from self._train(unit, watch, tell)
            return
        if unit.purpose == "train" and self.fuse != "off":
            yield from self._visit_together(unit, watch, tell)
            return
        from manyfit.run.loop.process_state import own_process

        for trial in unit.trials:
            with watch.scope(trial), own_process():
                do = self._visit if unit.purpose == "train" else self._try_out
                outcome = do(trial, unit, watch.of(trial.id), tell)
            yield outcome

    def config(self) -> Config:
        """Return the base config."""
        return base_config(self.base)

    def _config(self, trial: Trial) -> Config:
        config = self.ready.pop(trial.id, None)
        if config is None or trial.changes:
            return trial_config(self.config(), trial.values, trial.seed, trial.changes)
        return config

    def _train(self, unit: Unit, watch: UnitWatch, tell: Tell) -> Iterator[Outcome]:
        from manyfit.run.session.session import Reached
        from manyfit.run.trial import Request, train_until

        began, requests, before = time.perf_counter(), dict[int, Trial](), dict[str, int]()
        ready: list[Request] = []
        signs = Signs({Path(trial.folder): trial.id for trial in unit.trials}, self.metric, tell)
        for trial in unit.trials:
            run = RunFolder(Path(trial.folder))
            before[trial.id] = read_committed_step(run)
            scope = functools.partial(_show_life, signs, watch, trial)
            try:
                with scope():
                    config = self._config(trial)
                if not run.path.parent.is_dir():
                    raise FolderError(f"{run.path.parent} is missing: the study was moved while running")
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                yield self._fail_trial(trial, run, failure_of(error), before[trial.id], began)
                continue
            here = StudyFolder(run.path.parents[1])
            groups = here.groups if self.fuse != "off" else None
            text = text_of(config, trial)
            ready.append(Request(config, run, text, watch.of(trial.id), scope, groups, here.compiled))
            requests[id(ready[-1])] = trial
        alone: Watch = watch.of(unit.trials[0].id) if len(unit.trials) == 1 else watch
        for request, found in train_until(
            ready, unit.until, Beating(alone, signs), study=self.study, callbacks=[signs],
            allowed=(*self.allowed, *OURS), shared=self._share_data(), fuse=self.fuse, streams=self.streams,
        ):  # fmt: skip
            trial, now = requests[id(request)], time.perf_counter()
            signs.forget(trial.id)
            if isinstance(found, Reached):
                yield Outcome(
                    trial.id, found.step, found.epoch, found.trained, found.over, found.reason,
                    curve_of(found.events, self.metric), now - began, how=found.how,
                )  # fmt: skip
            else:
                yield self._fail_trial(trial, request.folder, failure_of(found), before[trial.id], began)

    def _visit(self, trial: Trial, unit: Unit, watch: Watch, tell: Tell) -> Outcome:
        """Train one trial without its folder."""
        from manyfit.run.travel.visit import VisitFailed, train_visit

        began, luggage = time.perf_counter(), unit.luggage[trial.id]
        signs = Signs({luggage.path: trial.id}, self.metric, tell)
        deliver = functools.partial(signs.deliver, trial.id)
        try:
            parcel = train_visit(
                self._config(trial), luggage, unit.until, Beating(watch, signs), callbacks=[signs],
                allowed=(*self.allowed, *OURS), shared=self._share_data(), deliver=deliver,
            )  # fmt: skip
        except KeyboardInterrupt:
            raise
        except VisitFailed as failed:
            seconds, failure = time.perf_counter() - began, failure_of(failed.error)
            return Outcome(trial.id, seconds=seconds, failure=failure, parcel=failed.parcel)
        except BaseException as error:
            return Outcome(trial.id, seconds=time.perf_counter() - began, failure=failure_of(error))
        return Outcome(trial.id, seconds=time.perf_counter() - began, parcel=parcel)

    def _visit_together(self, unit: Unit, watch: UnitWatch, tell: Tell) -> Iterator[Outcome]:
        """Train trials without their folders as one session."""
        from manyfit.run.travel.group_visit import VisitRequest, train_visits
        from manyfit.run.travel.visit import VisitFailed

        began, requests, ready = time.perf_counter(), dict[int, Trial](), list[VisitRequest]()
        signs = Signs({unit.luggage[each.id].path: each.id for each in unit.trials}, self.metric, tell)
        for trial in unit.trials:
            scope = functools.partial(_show_life, signs, watch, trial)
            try:
                with scope():
                    config = self._config(trial)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                yield Outcome(trial.id, seconds=time.perf_counter() - began, failure=failure_of(error))
                continue
            deliver = functools.partial(signs.deliver, trial.id)
            ready.append(VisitRequest(config, unit.luggage[trial.id], watch.of(trial.id), deliver, scope))
            requests[id(ready[-1])] = trial
        alone: Watch = watch.of(unit.trials[0].id) if len(unit.trials) == 1 else watch
        for request, found, how in train_visits(
            ready, unit.until, Beating(alone, signs), callbacks=[signs], allowed=(*self.allowed, *OURS),
            shared=self._share_data(), fuse=self.fuse,
        ):  # fmt: skip
            trial, seconds = requests[id(request)], time.perf_counter() - began
            signs.forget(trial.id)
            if isinstance(found, VisitFailed):
                failure = failure_of(found.error)
                yield Outcome(trial.id, seconds=seconds, failure=failure, parcel=found.parcel, how=how)
            else:
                yield Outcome(trial.id, seconds=seconds, parcel=found, how=how)

    def _try_out(self, trial: Trial, unit: Unit, watch: Watch, tell: Tell) -> Outcome:
        from manyfit.run.check import rehearse_run
        from manyfit.run.folder_copy import evaluate_copy
        from manyfit.run.trial import conclude_trial

        began, run = time.perf_counter(), RunFolder(Path(trial.folder))
        before = read_committed_step(run)
        try:
            config = self._config(trial)
            if unit.purpose == "rehearse":
                fuses = self.explains_fusing and self.fuse != "off"
                return Outcome(trial.id, facts=rehearse_run(config, shared=self._share_data(), fuses=fuses))
            watch = Beating(watch, Signs({run.path: trial.id}, self.metric, tell))
            allowed = (*self.allowed, *OURS)
            if unit.luggage:
                found = evaluate_copy(config, unit.luggage[trial.id], watch, allowed, self._share_data())
                return Outcome(trial.id, seconds=time.perf_counter() - began, parcel=found)
            if not run.path.parent.is_dir():
                raise FolderError(f"{run.path.parent} is missing: the study was moved while running")
            conclude_trial(config, run, watch, allowed, self._share_data())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._fail_trial(trial, run, failure_of(error), before, began)
        return Outcome(trial.id, seconds=time.perf_counter() - began)

    def _share_data(self) -> SharedData:
        from manyfit.run.build.shared_data import SharedData

        if not self.shared:
            self.shared.append(SharedData())
        found: SharedData = self.shared[0]
        return found

    def _fail_trial(
        self, trial: Trial, run: RunFolder, failure: Failure, before: int, began: float
    ) -> Outcome:
        """Return the outcome of a failure, with the steps that were committed before it."""
        seconds = time.perf_counter() - began
        try:
            step, epoch, curve = read_committed_progress(run, self.metric)
        except FolderError as error:
            return Outcome(
                trial.id, failure=Failure("infrastructure", str(error), group="damaged"), seconds=seconds
            )
        return Outcome(
            trial.id, step, epoch, max(0, step - before), curve=curve, seconds=seconds, failure=failure
        )


def pack_classes(paths: Sequence[str]) -> bytes:
    """Return classes of `__main__` with everything that they refer to, for another process."""
    if not paths:
        return b""
    cloudpickle = import_optional("cloudpickle", "etl")
    main, names = sys.modules["__main__"], {path.split(".")[1] for path in paths}
    classes = {name: getattr(main, name) for name in sorted(names)}
    hashes = {class_path(cls): hash_code(cls, with_values=False) for cls in classes.values()}
    packed: bytes = cloudpickle.dumps((classes, hashes))
    return packed


def unpack_classes(packed: bytes) -> None:
    """Put the classes of another process where configs look for them."""
    if packed:
        classes, hashes = pickle.loads(packed)
        vars(sys.modules["__main__"]).update(classes)
        CARRIED.update(hashes)


class Signs:
    """A callback that reports signs of life and progress of trials."""

    def __init__(self, trials: Mapping[Path, str], metric: str, tell: Tell) -> None:
        """`trials` maps each run folder to the ID of its trial."""
        self._trials = trials
        self._metric = metric
        self._tell = tell
        self._last = 0.0
        self._at = dict.fromkeys(trials.values(), (0, 0.0))

    def on_start(self, cohort: Cohort) -> None:
        """Do nothing."""

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Report the progress of the trials."""
        here = [self._trials[member.folder.path] for member in cohort.members]
        self._at |= dict.fromkeys(here, (boundary.step, boundary.epoch))
        self.beat(
            {trial: row[self._metric] for trial, row in zip(here, rows, strict=False) if self._metric in row}
        )

    def beat(self, values: Mapping[str, float] | None = None) -> None:
        """Send a sign of life, at a limited rate."""
        now = time.monotonic()
        if now - self._last >= BETWEEN:
            self._last = now
            for trial, at in self._at.items():
                self._tell(Progress(trial, *at, (values or {}).get(trial)))

    def deliver(self, trial: str, parcel: Any) -> None:
        """Send what a trial has trained so far, as a sign of life."""
        self._tell(Progress(trial, *self._at.get(trial, (0, 0.0)), parcel=parcel))

    def on_end(self, cohort: Cohort) -> None:
        """Do nothing: the trials may go on in another cohort."""

    def forget(self, trial: str) -> None:
        """Send no more signs of a trial that has ended; others of its unit may train on."""
        self._at.pop(trial, None)


@contextmanager
def _show_life(signs: Signs, watch: UnitWatch, trial: Trial) -> Iterator[None]:
    """Enter the scope of a trial. Each turn is a sign of life: several trials share the time between two."""
    signs.beat()
    with watch.scope(trial):
        yield


class Beating(Watch):
    """A watch that sends a sign of life whenever it is checked, as validation does with every batch."""

    def __init__(self, watch: Watch, signs: Signs) -> None:
        self._watch = watch
        self._signs = signs

    @property
    def number(self) -> int:  # type: ignore[override]
        """The received signal."""
        return self._watch.number

    def check(self) -> None:
        """Send a sign of life, then check for a stop request."""
        self._signs.beat()
        super().check()


@functools.lru_cache(maxsize=4)
def base_config(file: str) -> Config:
    """Return the base config, read once per process."""
    return load_config(file, trust=True)


def text_of(config: Config, trial: Trial) -> str:
    """Return the text of the trial's `config.yaml`: the base config with its values, references included."""
    values = ", ".join(f"{key}: {value!r}" for key, value in trial.values.items())
    return f"{WRITTEN}\n# {redact(values)}\n{dump_parts(plain(config.given.tree))}"


def read_committed_step(run: RunFolder) -> int:
    """Return the step of the newest checkpoint, from its name."""
    if not run.checkpoint_folder.is_dir():
        return 0
    return max(
        (int(path.name.removeprefix("step-")) for path in list_committed(run.checkpoint_folder)), default=0
    )


def read_committed_progress(run: RunFolder, metric: str) -> tuple[int, float, Curve]:
    """Return the step, the epoch and the objective by epoch of a run, as of its newest checkpoint."""
    found = run.checkpoints()[-1:]
    if not found:
        return 0, 0.0, ()
    # An epoch that was interrupted while measuring is not complete.
    epoch = found[0].epoch if found[0].note.measured else math.nextafter(found[0].epoch, 0.0)
    return found[0].step, epoch, curve_of(read_events(run.metrics, found[0].log_length), metric)


def curve_of(events: Sequence[Event], metric: str) -> Curve:
    """Return the objective by epoch."""
    return tuple((event.epoch, event.values[metric]) for event in events if metric in event.values)


def describe_point(values: Mapping[str, Any]) -> str:
    """Return the values of a point on one line, with the last part of each key."""
    return "  ".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return str(value.get("class", value))
    return str(value)
