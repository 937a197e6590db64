"""`train`: from a config to a trained and evaluated run, in one call that can be repeated."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit.config import Config, load_config, patch
from manyfit.config.load import config_file
from manyfit.config.override import Overrides
from manyfit.config.project import project_root
from manyfit.core.errors import Interrupted, ManyfitError, RunConflict, RunFailed, UsageError
from manyfit.core.numbers import as_json
from manyfit.core.secrets import redact
from manyfit.core.trace import user_frame
from manyfit.data import once
from manyfit.run import guard
from manyfit.run.result import RunResult
from manyfit.run.trainer import Callback
from manyfit.store import durable, provenance
from manyfit.store.events import EventLog, read_events
from manyfit.store.folder import RunFolder
from manyfit.store.lock import owned

if TYPE_CHECKING:
    from manyfit.run.build import Built

log = logging.getLogger("manyfit")

COPIED = "# Copied by manyfit from a config that lies elsewhere"


def train(
    source: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    folder: str | Path | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> RunResult:
    """Train what a config describes, evaluate it, and return the result.

    `source` is a run folder, a YAML file, or the config itself as a dict; then `folder` says where it lies.
    A run that was cut short goes on from its last checkpoint; a finished one is not trained again unless its
    epochs were raised.

    >>> manyfit.train("runs/digits-mlp", ["train.epochs=30"])    # doctest: +SKIP
    """
    project = project_root(place(source, folder)) if isinstance(source, Mapping) else None
    config = load_config(source, overrides, project=project)
    run = RunFolder(place(source, folder))
    check_place(config, run)
    with owned(run.path), logged(run.path / "run.log"):
        resumed = bool(run.checkpoints())
        if resumed:
            config = patch(config, frozen=run.frozen())
            guard.check_config(config, run)
        with failures(run):
            return _train(config, run, resumed, callbacks)


def place(source: str | Path | Mapping[str, Any], folder: str | Path | None) -> Path:
    """Where a run lies: as said, the folder of its config.yaml, or runs/<name of the file>."""
    if folder is not None:
        return Path(folder)
    if isinstance(source, Mapping):
        raise UsageError("say where the run shall lie: train(config, folder='runs/<name>')")
    file = config_file(Path(source))
    if file.name in ("config.yaml", "config.resolved.yaml"):
        return file.parent
    return project_root(file) / "runs" / file.stem


def _train(config: Config, run: RunFolder, resumed: bool, callbacks: Sequence[Callback] | None) -> RunResult:
    from manyfit.run.build import build, device_name, own_randomness, threads
    from manyfit.run.cohort import Cohort, Member
    from manyfit.run.mirror import TensorBoardCallback
    from manyfit.run.progress import progress_for
    from manyfit.run.trainer import fit

    with own_randomness(), threads(config.run.train.threads) as thread_count:
        built = build(config)
        data = built.fingerprints()
        last = run.checkpoints()[-1] if resumed else None
        if last is not None:
            guard.check_data(data, run)
            if last.step >= built.plan.total and run.summary().get("step") == last.step:
                return result(run)
            built.learner.load([last.load()])
        rehearse(built)
        start, length = (last.step, last.log_length) if last else (0, 0)
        write_start(
            config,
            run,
            {
                "data": data,
                "threads": thread_count,
                "device": device_name(built.learner.device),
                "environment": dict(config.environment),
                "from_step": start,
            },
        )
        with EventLog(run.metrics, length) as events:
            member = Member(config, run, events, committed=read_events(run.metrics, length))
            batches = built.train.batches(built.order, start)
            cohort = Cohort(
                [member], built.learner, built.plan, batches, built.validation, built.order.batch_size, start
            )
            shown = callbacks if callbacks is not None else [progress_for(sys.stderr)]
            fit(cohort, [TensorBoardCallback(), *shown])
        return finish(config, run, built, trained=cohort.step - start)


def rehearse(built: Built) -> None:
    """Evaluate one batch before the first step, so that a mistake in a metric does not cost an epoch."""
    source = built.train if built.validation is None or not len(built.validation) else built.validation
    next(built.learner.evaluate(itertools.islice(once(source, built.order.batch_size), 1)))


def finish(config: Config, run: RunFolder, built: Built, trained: int) -> RunResult:
    """Evaluate the best checkpoint on the test split, write the report and the closing summary."""
    from manyfit.run.evaluate import evaluate

    export = config.run.export
    best = run.chosen(export.metric, export.mode)
    last = run.checkpoints()[-1]
    built.learner.load([best.load()])
    test: Mapping[str, float] = {}
    if built.test is not None and len(built.test):
        report = evaluate(built.learner, built.test, built.order.batch_size)
        report.write(run.reports / "test.csv")
        test = report.means
        log.info("evaluated %d rows of the test split", len(report))
    run.write_summary(
        {
            "step": last.step,
            "epoch": last.epoch,
            "best_step": best.step,
            "best_epoch": best.epoch,
            "fingerprint": config.fingerprint,
            "metrics": as_json(best.metrics),
            "test": as_json(test),
            "test_rows": len(built.test) if built.test is not None else 0,
        }
    )
    return result(run, trained)


def result(run: RunFolder, trained: int = 0) -> RunResult:
    """Read a finished run."""
    summary = run.summary()
    return RunResult(
        run.path, summary["step"], summary["best_step"], summary["metrics"], summary["test"], trained
    )


def check_place(config: Config, run: RunFolder) -> None:
    """A config from elsewhere is copied into the run folder, but never over one that a person wrote there."""
    if config.file is not None and config.file.resolve() in (run.config.resolve(), run.resolved.resolve()):
        return
    if run.config.exists() and not run.config.read_text(errors="replace").startswith(COPIED):
        raise RunConflict(f"{run.config} is a config of its own; train it, or choose another folder")


def write_start(config: Config, run: RunFolder, facts: Mapping[str, Any]) -> None:
    """Keep what was given, what it means, and where it comes from."""
    if not run.config.exists() or run.config.read_text(errors="replace").startswith(COPIED):
        durable.write(run.config, f"{COPIED}, with every reference filled in.\n{config.dump()}")
    durable.write(
        run.resolved, "# Written by manyfit. Edit config.yaml, not this file.\n" + config.resolved()
    )
    provenance.record(run, config.project, {"fingerprint": config.fingerprint, **facts})


@contextmanager
def failures(run: RunFolder) -> Iterator[None]:
    """Turn what user code raises, and a Ctrl-C, into one clear message; the traceback goes to run.log."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; the same command goes on from the last checkpoint in {run.path}", 2
        ) from None
    except ManyfitError as error:
        log.info("%s", error, exc_info=error)
        raise
    except Exception as error:
        log.info("the run failed", exc_info=error)
        text = f"the run failed with {type(error).__name__}: {error}\n  at {user_frame(error)}\n"
        raise RunFailed(redact(f"{text}  the whole traceback is in {run.path / 'run.log'}")) from error


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Keep manyfit's own log beside the run, without secrets."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    level = log.level
    log.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()


class Redacting(logging.Formatter):
    """A formatter that hides secrets, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record without the secrets that were read."""
        return redact(super().format(record))
