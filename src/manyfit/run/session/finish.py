"""The end of a run: export and evaluation of the best checkpoint, and the summary."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from manyfit.config import Config
from manyfit.core.errors import FolderError
from manyfit.core.json_numbers import as_json_tree, to_json
from manyfit.core.lazy import call_later
from manyfit.core.signals import Watch
from manyfit.data import once
from manyfit.data.randomness import own_randomness
from manyfit.run.build.builder import Built
from manyfit.run.build.user_code import evaluation_only, hash_imported, hash_main_classes
from manyfit.run.evaluation.export import export_best, export_others
from manyfit.run.evaluation.row_report import Mode, Report, evaluate_rows, format_csv
from manyfit.run.session.resume_check import find_changed_code
from manyfit.store import durable
from manyfit.store.checkpoint import Checkpoint, Keep
from manyfit.store.events import read_events
from manyfit.store.folder import RunFolder
from manyfit.store.manifest import Note

log = logging.getLogger("manyfit")


def finish(
    config: Config, run: RunFolder, built: Built, watch: Watch, reason: str = "", shown: bool = True
) -> None:
    """Export and evaluate the best checkpoint; write the reports and the summary."""
    best, last = load_best(config, run, built), run.checkpoints()[-1]
    export_best(config, run, built, best.step)
    export_others(config, run, built, best)
    reports: dict[str, Report] = {}
    for split in ("validation", "test"):
        report = write_report(config, run, built, split, watch, shown)
        if report is not None:
            reports[split] = report
        else:  # reports of a split that no longer exists
            gone = {"validation": "validation_report*", "test": "eval_report*"}[split]
            for old in (*run.reports.glob(f"{split}.*"), *run.reports.glob(gone)):
                old.unlink()
    durable.write_file(run.metrics_table, metrics_table(run))
    write_summary(config, run, best, last, reason, reports)


def metrics_table(run: RunFolder) -> str:
    """Return the log as CSV: one line for each step at which something was measured."""
    events = read_events(run.metrics)
    names = list(dict.fromkeys(name for event in events for name in event.values))
    head = {"step": [e.step for e in events], "epoch": [e.epoch for e in events]}
    return format_csv({**head, **{name: [e.values.get(name, "") for e in events] for name in names}})


def write_summary(
    config: Config,
    run: RunFolder,
    best: Checkpoint | Note,
    last: Checkpoint | Note,
    reason: str,
    reports: Mapping[str, Report],
) -> None:
    """Write how the run ended: from now on it counts as finished."""
    test = reports.get("test")
    run.write_summary(
        {
            "step": last.step,
            "epoch": last.epoch,
            "best_step": best.step,
            "best_epoch": best.epoch,
            "fingerprint": config.fingerprint,
            "stopped": reason,
            "other_code": other_code(config, run, best.step),
            "metrics": to_json(best.metrics),
            "test": to_json(test.values if test is not None else {}),
            "test_rows": len(test) if test is not None else 0,
            "splits": {
                name: as_json_tree(r.summary(config.run.evaluate.worst)) for name, r in reports.items()
            },
        }
    )


def other_code(config: Config, run: RunFolder, step: int) -> list[str]:
    """Return the modules that have changed since a checkpoint was trained; log a warning about them."""
    found = []
    for source in config.sources:
        evaluating = evaluation_only(config, source)
        changed = find_changed_code({**hash_imported(source), **hash_main_classes(config)}, run, step)
        found += [name for name in changed if name not in evaluating]
    if found:
        log.warning(
            "the weights of step %d are evaluated with different code than they were trained with: see %s",
            step, ", ".join(found),
        )  # fmt: skip
    return found


def write_report(
    config: Config,
    run: RunFolder,
    built: Built,
    split: str,
    watch: Watch | None = None,
    shown: bool = True,
) -> Report | None:
    """Evaluate one split and write its row report; return None if it has no rows."""
    report = report_of(built, split, watch, shown, config.run.evaluate.outputs)
    if report is None:
        return None
    report.write(run.reports / f"{split}.csv")
    if built.evaluator.points:
        report.write_points(run.reports, split, built.evaluator.points)
    if config.run.evaluate.parquet:
        report.write_parquet(run.reports / f"{split}.parquet")
    if config.run.evaluate.figures:
        call_later(
            "manyfit.report.row_figures.write_row_figure", report.columns, run.reports / f"{split}.png"
        )
        draw_images(report, built, split, run.reports / f"{split}.images.png")
    if report.failed:
        first, text = next(iter(report.failed.items()))
        log.error("%d rows of the %s split failed, such as %s: %s", len(report.failed), split, first, text)
    log.info("evaluated %d rows of the %s split", len(report), split)
    return report


def draw_images(report: Report, built: Built, split: str, file: Path) -> None:
    """Draw inputs, targets and outputs of the first rows if the outputs are images."""
    source = built.split(split)
    if report.first is None or source is None:
        return
    batches = once(source, built.evaluation_batch_size)
    with own_randomness():
        call_later("manyfit.report.image_grid.write_image_grid", batches, report.first, file)


def report_of(
    built: Built,
    split: str,
    watch: Watch | None = None,
    shown: bool = True,
    mode: Mode = "summary",
) -> Report | None:
    """Evaluate one split; return None if it has no rows."""
    source = built.split(split)
    if source is None:
        return None
    return evaluate_rows(
        built.learner,
        source,
        built.evaluation_batch_size,
        evaluator=built.evaluator,
        whole=built.whole,
        watch=watch,
        shown=f"evaluating {split}" if shown else "",
        mode=mode,
    )


def load_best(config: Config, run: RunFolder, built: Built) -> Checkpoint:
    """Load the best intact checkpoint; log a warning if a better one is damaged."""
    export = config.run.export
    found = run.checkpoints()
    ranked = Keep(export.metric, export.mode).rank(found)
    candidates = [*ranked, *(c for c in reversed(found) if c not in ranked)]
    for checkpoint in candidates:
        try:
            built.learner.load([checkpoint.load()])
        except FolderError as error:
            log.warning("%s; using the next best one", error)
            continue
        return checkpoint
    raise FolderError(f"{run.path} has no readable checkpoint")
