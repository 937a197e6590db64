"""What follows from a failure, by its kind: a pure function of the trial and the failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from manyfit.study.records import TrialRecord
from manyfit.study.units import Failure


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
    if failure.kind == "preempted":
        return Verdict("waiting", "goes on from its checkpoint")
    if failure.kind == "infrastructure":
        if trial.deaths < retries:
            again = f"try {trial.deaths + 2} of {retries + 1}, from its checkpoint"
            return Verdict("waiting", again, died=True)
        return Verdict("failed", f"failed {retries + 1} times without getting further", died=True)
    if failure.kind == "out of memory":
        if trial.split == 1:
            return Verdict("waiting", "once more, with batches cut in halves", split=True)
        return Verdict("infeasible", "memory ran out with halved batches, too")
    return Verdict("failed", failure.kind)
