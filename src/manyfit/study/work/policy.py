"""What follows from a failure, by its kind: a pure function of the trial and the failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from manyfit.study.work.records import TrialRecord
from manyfit.study.work.units import Failure

PREEMPTIONS: Final = 20
"""How often a trial may be preempted without getting further: schedulers do that, and so does broken code."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to the trial now."""

    state: Literal["waiting", "failed", "infeasible"]
    reason: str
    split: bool = False
    """Whether its batches are cut in halves from now on."""
    died: bool = False
    """Whether this counts as a death of its process."""


def verdict(trial: TrialRecord, failure: Failure, retries: int) -> Verdict:
    """Preempted: again. Infrastructure: again from the checkpoint, some times. Out of memory: once more, with
    half of each batch at a time. Everything else would only happen again."""
    if failure.kind in ("preempted", "infrastructure"):
        most = retries if failure.kind == "infrastructure" else max(retries, PREEMPTIONS)
        if trial.deaths < most:
            return Verdict("waiting", "goes on from its checkpoint", died=True)
        return Verdict("failed", f"{failure.kind} {most + 1} times without getting further", died=True)
    if failure.kind == "out of memory":
        if trial.split == 1:
            return Verdict("waiting", "once more, with batches cut in halves", split=True)
        return Verdict("infeasible", "memory ran out with halved batches, too")
    return Verdict("failed", failure.kind)
