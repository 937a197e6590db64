"""One line of advice about a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FASTER: Final = 1.3
"""How much faster steps must be with one thread to be worth a word."""


@dataclass(frozen=True)
class Facts:
    """What is known about a run."""

    shares: Mapping[str, float]
    """By phase."""
    step: float
    """Seconds of a step."""
    busy: float | None
    """The share of the time of steps in which the GPU computes; None without a GPU."""
    batch_size: int
    evaluation_batch_size: int
    capture: str
    source: str
    """The class of the source of rows."""
    launches: bool
    """Whether several steps are launched at once."""
    workers: int = 0
    """How many processes read rows."""
    threads: int = 1
    faster_with_one_thread: float = 0.0
    """The speed with one thread, relative to that of the run; 0 if that was not measured."""


def advise(facts: Facts) -> str:
    """Return what would save most, or that nothing stands out."""
    if facts.faster_with_one_thread >= FASTER:
        return (
            f"steps are {facts.faster_with_one_thread:.2g} times faster with one thread than with "
            f"{facts.threads}: set train.threads: 1"
        )
    parts = (
        ("waiting for data", 0.25, _advise_data),
        ("validation", 0.25, _advise_validation),
        ("checkpoint", 0.1, lambda _: "is checkpoints: write fewer (train.every.checkpoint)"),
        ("log", 0.1, lambda _: "is the log: write fewer rows (train.every.log)"),
    )
    found = [(share, text) for name, least, text in parts if (share := facts.shares.get(name, 0.0)) >= least]
    if found:
        share, text = max(found, key=lambda each: each[0])
        return f"{share:.0%} of an epoch {text(facts)}"
    if facts.busy is not None and facts.busy < 0.6:
        return _advise_gpu(facts)
    around = facts.shares.get("the loop", 0.0) + facts.shares.get("optimizer", 0.0)
    if facts.busy is None and facts.step < 2e-3 and around >= 0.3:
        return (
            f"a step takes {facts.step * 1e3:.2g} ms, much of it outside of the model: use larger batches, "
            "or train several configurations in one pass (execute.fuse of a study)"
        )
    return "nothing stands out: the time goes into the steps of the model"


def _advise_data(facts: Facts) -> str:
    how = f"in more than {facts.workers} processes" if facts.workers else "in several processes"
    return (
        f"is spent waiting for data ({facts.source}): read rows as arrays into memory if they fit, or {how} "
        "(`workers` of the data)"
    )


def _advise_validation(facts: Facts) -> str:
    ways = []
    if facts.evaluation_batch_size <= 4 * facts.batch_size:
        ways.append(f"measure more than {facts.evaluation_batch_size} rows at once (evaluate.batch_size)")
    if facts.source == "DatasetSource":  # whose rows may take long to read
        ways.append("read its rows as arrays into memory or in several processes (`workers` of the data)")
    return f"is validation: {', or '.join([*ways, 'validate less often (train.every.validate)'])}"


def _advise_gpu(facts: Facts) -> str:
    begin = f"the GPU computes for {facts.busy:.0%} of the time of steps: "
    if facts.capture == "off":
        return begin + "let several steps be launched at once (train.capture: auto)"
    if not facts.launches:
        return begin + "steps are launched operation by operation (a message says why); use larger batches"
    return begin + "use larger batches, or train several configurations in one pass (execute.fuse of a study)"
