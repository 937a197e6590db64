"""The consequence of a failure, by its kind: a pure function of the trial and the failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from manyfit.study.work.records import TrialRecord
from manyfit.study.work.units import Failure

PREEMPTIONS: Final = 20
"""How often a trial may be preempted without progress: by a scheduler, or by its own broken code."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequence of a failure for its trial."""

    state: Literal["waiting", "failed", "infeasible"]
    reason: str
    split: bool = False
    """Whether its batches are split in halves from now on."""
    died: bool = False
    """Whether this counts as a death of its process."""


def verdict(trial: TrialRecord, failure: Failure, retries: int) -> Verdict:
    """Return the consequence of a failure.

    Preempted trials and infrastructure failures are retried from the checkpoint, up to a limit. A trial that
    ran out of memory is retried once, with half of each batch at a time. Any other failure would only recur.
    """
    if failure.kind in ("preempted", "infrastructure"):
        most = retries if failure.kind == "infrastructure" else max(retries, PREEMPTIONS)
        if trial.deaths < most:
            return Verdict("waiting", "resumes from its checkpoint", died=True)
        return Verdict("failed", f"{failure.kind} {most + 1} times without progress", died=True)
    if failure.kind == "out of memory":
        if trial.split == 1:
            return Verdict("waiting", "retried with half of each batch at a time", split=True)
        return Verdict("infeasible", "out of memory even with half of each batch at a time")
    return Verdict("failed", failure.kind)
