"""One line of advice about a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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


def advise(facts: Facts) -> str:
    """Return what would save most, or that nothing stands out."""
    share = facts.shares.get
    if share("waiting for data", 0.0) >= 0.25:
        return (
            f"{share('waiting for data', 0):.0%} of an epoch is spent waiting for data ({facts.source}): "
            "read rows as arrays into memory if they fit, or in several processes (`workers` of the data)"
        )
    if share("validation", 0.0) >= 0.25:
        text = "validate less often (train.every.validate)"
        if facts.evaluation_batch_size <= 4 * facts.batch_size:
            rows = facts.evaluation_batch_size
            text = f"measure more than {rows} rows at once (evaluate.batch_size), or {text}"
        return f"{share('validation', 0):.0%} of an epoch is validation: {text}"
    if share("checkpoint", 0.0) >= 0.1:
        return (
            f"{share('checkpoint', 0):.0%} of an epoch is checkpoints: write fewer (train.every.checkpoint)"
        )
    if share("log", 0.0) >= 0.1:
        return f"{share('log', 0):.0%} of an epoch is the log: write fewer rows (train.every.log)"
    if facts.busy is not None and facts.busy < 0.6:
        return _advise_gpu(facts)
    if facts.busy is None and facts.step < 2e-3 and share("the loop", 0.0) + share("optimizer", 0.0) >= 0.3:
        return (
            f"a step takes {facts.step * 1e3:.2g} ms, much of it outside of the model: use larger batches, "
            "or train several configurations in one pass (execute.fuse of a study)"
        )
    return "nothing stands out: the time goes into the steps of the model"


def _advise_gpu(facts: Facts) -> str:
    begin = f"the GPU computes for {facts.busy:.0%} of the time of steps: "
    if facts.capture == "off":
        return begin + "let several steps be launched at once (train.capture: auto)"
    if not facts.launches:
        return begin + "steps are launched operation by operation (a message says why); use larger batches"
    return begin + "use larger batches, or train several configurations in one pass (execute.fuse of a study)"
