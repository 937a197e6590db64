"""Operations on a trained run: reopen it, evaluate it, predict with it, export it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyfit.config import Config, load_config
from manyfit.config.dialects.table import dialect_of
from manyfit.config.tree.overrides import Overrides
from manyfit.core.errors import UsageError
from manyfit.core.json_numbers import as_json_tree, to_json
from manyfit.data import once
from manyfit.data.randomness import own_randomness
from manyfit.run.build.builder import SPLITS, Built, build
from manyfit.run.build.modes import compute_as
from manyfit.run.build.user_code import evaluation_only, hash_imported
from manyfit.run.callbacks.tracking import mirror_evaluation
from manyfit.run.evaluation.export import check_formats, export_format, export_weights
from manyfit.run.evaluation.new_data import read_rows
from manyfit.run.evaluation.predictions import collect_predictions, example_of, predict_batches
from manyfit.run.evaluation.row_report import Report
from manyfit.run.loop.journal import translate_failures
from manyfit.run.session.finish import other_code, report_of, write_report
from manyfit.run.session.resume_check import check_backend, check_data, check_run_code
from manyfit.store.checkpoint import Checkpoint
from manyfit.store.folder import RunFolder
from manyfit.store.lock import hold_lock

log = logging.getLogger("manyfit")


@contextmanager
def reopen_run(
    place: Path,
    which: str = "best",
    overrides: Overrides = (),
    allowed: Collection[str] = (),
    trust: bool = False,
) -> Iterator[tuple[Config, RunFolder, Built, Checkpoint]]:
    """Open a run as it was trained, with the weights of a checkpoint. Overrides may change its data."""
    run = RunFolder(place)
    run.load_trained()
    config = load_config(run.resolved, overrides, trust=trust)
    found = run.checkpoint(which)
    with translate_failures(run, "this"), own_randomness(), compute_as(config.run.train):
        built = build(config)
        for source in config.sources:
            check_run_code(hash_imported(source), run, source, allowed, evaluation_only(config, source))
        check_backend(built.learner.backend, run, allowed)
        built.learner.load([found.load()])
        yield config, run, built, found


def evaluate(
    place: str | Path,
    split: str = "test",
    which: str = "best",
    overrides: Overrides = (),
    allow_change: Collection[str] = (),
    trust: bool = False,
) -> Report:
    """Evaluate a run again, and rewrite the row report of the split.

    A run that was not trained here is restricted unless you `trust` it, also in `predict` and `export`.
    """
    check_split(split)
    RunFolder(Path(place)).load_trained()
    with (
        hold_lock(Path(place)),
        reopen_run(Path(place), which, overrides, allow_change, trust) as (
            config,
            run,
            built,
            found,
        ),
    ):
        run.check_links()
        changed = (
            {each.path for each in load_config(run.resolved, trust=trust).diff(config)}
            if overrides
            else set()
        )
        is_same = changed <= set(dialect_of(config.tree).path_keys)  # the data may have moved
        if is_same and which == "best":
            other = "validation" if split == "test" else "test"
            both = bool(built.evaluator.points) and split != "train"  # their reports belong together
            written = [split, other] if both else [split]
            now = {
                name: source.fingerprint() for name in written if (source := built.split(name)) is not None
            }
            check_data(now, run, allow_change, written)
            report = write_report(config, run, built, split)
            if report is not None:
                _amend(config, run, split, report)
            second = write_report(config, run, built, other) if both else None
            if second is not None:
                _amend(config, run, other, second)
            mirror_evaluation(config, run)
        else:
            report = report_of(built, split, mode=config.run.evaluate.outputs)
            if report is not None:
                name = f"{split}-step-{found.step}" if is_same else f"{split}-changed"
                report.write(run.reports / f"{name}.csv")
    if report is None:
        raise UsageError(f"{place} has no rows in the split {split!r}")
    return report


def _amend(config: Config, run: RunFolder, split: str, report: Report) -> None:
    """Update the closing summary with a report, if the run has one."""
    summary = run.summary()
    if not summary:
        return
    splits = {**summary.get("splits", {}), split: report.summary(config.run.evaluate.worst)}
    summary |= {"splits": as_json_tree(splits), "metrics": to_json(summary["metrics"])}
    summary["other_code"] = other_code(config, run, summary["best_step"])
    test = report.values if split == "test" else summary["test"]
    summary |= {"test": to_json(test)}
    run.write_summary(summary | ({"test_rows": len(report)} if split == "test" else {}))


def predict(
    place: str | Path,
    split: str = "test",
    data: str | Path | None = None,
    which: str = "best",
    overrides: Overrides = (),
    allow_change: Collection[str] = (),
    trust: bool = False,
) -> dict[str, Any]:
    """Predict every row of a split or of a file with new data; return columns by name, first the ID.

    >>> manyfit.predict("runs/digits-mlp", data="new.npz")["prediction"]    # doctest: +SKIP
    """
    check_split(split)
    with reopen_run(Path(place), which, overrides, allow_change, trust) as (_, run, built, _found):
        example = next(once(built.split("validation") or built.train, 1))
        kind = example_of(example.target)
        source = (
            read_rows(Path(data), example.inputs, built.splits.data)
            if data is not None
            else built.split(split)
        )
        if source is None or not len(source):
            raise UsageError(f"there are no rows in {data or f'the split {split!r} of {run.path}'}")
        found = predict_batches(built.learner, source, built.order.batch_size, kind)
        return collect_predictions(found, source)


def export(
    place: str | Path,
    formats: Sequence[str] = ("safetensors",),
    which: str = "best",
    allow_change: Collection[str] = (),
    trust: bool = False,
) -> list[Path]:
    """Export the model of a run to its folder `exported/`, each format checked before it is committed."""
    written = []
    RunFolder(Path(place)).load_trained()
    with (
        hold_lock(Path(place)),
        reopen_run(Path(place), which, (), allow_change, trust) as (config, run, built, found),
    ):
        run.check_links()
        check_formats(formats)
        for name in formats:
            if name == "safetensors":
                written.append(export_weights(config, run, built, found.step))
            else:
                written.append(export_format(built, run, name))
    return written


def check_split(split: str) -> None:
    """Raise an error for a split that does not exist."""
    if split not in SPLITS:
        raise UsageError(f"there is no split {split!r}; there are {', '.join(SPLITS)}")
