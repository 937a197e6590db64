"""Descriptions of run folders, for `list` and `show`."""

from __future__ import annotations

from typing import Any

from manyfit.core.errors import ManyfitError
from manyfit.store.folder import RunFolder


def describe_run(run: RunFolder) -> dict[str, Any]:
    """Return state, progress and results; a damaged folder is described as far as it can be read."""
    facts: dict[str, Any] = {
        "name": run.name,
        "folder": str(run.path),
        "state": run.state(),
        "step": 0,
        "epoch": 0.0,
        "metrics": {},
        "test": {},
    }
    try:
        found, snapshot = run.checkpoints(), run.snapshot()
        if found and snapshot is not None:
            best = run.select_checkpoint(snapshot.values["export.metric"], snapshot.values["export.mode"])
            facts |= {"step": found[-1].step, "epoch": found[-1].epoch, "metrics": dict(best.metrics)}
        if found and not run.has_whole_log(found[-1].log_length):
            facts |= {"state": "damaged", "problem": f"{run.metrics} is damaged"}
        if facts["state"] == "failed":
            facts["failure"] = run.failure()
        if damaged := run.find_damaged():
            facts["damaged"] = list(damaged.values())
        if facts["state"] == "finished":
            summary = run.summary()
            facts |= {
                "metrics": summary["metrics"],
                "test": summary["test"],
                "best_epoch": summary["best_epoch"],
            }
    except (ManyfitError, KeyError) as error:
        facts |= {"state": "damaged", "problem": str(error)}
    return facts


def details(run: RunFolder) -> dict[str, Any]:
    """Return the values of `describe_run`, the config and the starts of a run."""
    sessions = run.sessions()
    snapshot = run.snapshot()
    return {
        **describe_run(run),
        "fingerprint": snapshot.fingerprint if snapshot else None,
        "config": dict(snapshot.values) if snapshot else {},
        "defaults": sorted(snapshot.defaults) if snapshot else [],
        "starts": [
            {
                "started": s["started"],
                "from_step": s.get("from_step", 0),
                "commit": s["code"].get("commit"),
                "device": s.get("device"),
                "threads": s.get("threads"),
                "versions": s["versions"],
            }
            for s in sessions
        ],
        "checkpoints": [str(c.path.relative_to(run.path)) for c in run.checkpoints()],
        "events": len(run.events()),
    }
