"""The closing summary of a run, as text."""

from __future__ import annotations

import shlex

from manyfit.core.names import pluralize
from manyfit.run.callbacks.progress import format_values
from manyfit.run.result import RunResult
from manyfit.store.folder import RunFolder


def print_summary(result: RunResult) -> str:
    """Return the results of a run and where to find them."""
    folder = RunFolder(result.folder)
    summary = result.summary
    again = (
        "is already finished; it stopped early, and resumes if train.stop changes"
        if summary.get("stopped")
        else "is already finished; increase its epochs to train it further"
    )
    done = "finished" if result.trained_steps else again
    lines = [
        f"{folder.name} {done}",
        f"  trained  {pluralize(round(summary['epoch'], 4), 'epoch')}, {pluralize(result.step, 'step')}",
        f"  best     epoch {summary['best_epoch']:.4g}: {format_values(result.metrics)}",
    ]
    if summary.get("stopped"):
        lines.insert(2, f"  stopped  {summary['stopped']}")
    if summary.get("other_code"):
        changed = ", ".join(map(str, summary["other_code"]))
        lines.append(f"  note     the best weights were trained before {changed} changed")
    if result.test:
        lines.append(f"  test     {format_values(result.test)}  ({summary['test_rows']} rows)")
        lines.append(f"  rows     {folder.reports / 'test.csv'}")
    if not folder.path.exists():
        return "\n".join(
            [*(line for line in lines if not line.startswith("  rows ")), "  nothing was stored"]
        )
    if folder.tensorboard.is_dir():
        lines.append(f"  curves   tensorboard --logdir {shlex.quote(str(folder.tensorboard))}")
    return "\n".join(lines)
