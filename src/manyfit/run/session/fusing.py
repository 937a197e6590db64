"""Which runs of a session train in one group, whose steps are computed in one pass."""

from __future__ import annotations

import gc
import itertools
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from manyfit.data.dataset import DatasetSource, Limited
from manyfit.data.randomness import own_randomness
from manyfit.learn.fusing import Key, NotFusable, Refusal, Terms
from manyfit.learn.group import Part
from manyfit.learn.learner import Learner
from manyfit.run.build.builder import Built
from manyfit.run.session.session import Opened, read_together

log = logging.getLogger("manyfit")

Fuse: TypeAlias = Literal["off", "auto"] | int
"""Whether runs are fused: if it is faster, or always, up to a number of runs."""
PLAIN: Final = Terms()
COMPARED: Final = 3
"""Steps that are computed together and alone before a group trains."""
BEGUN_ALONE: Final = "it was begun alone, and goes on in the same way"
FUSED = "fused"
"""How a checkpoint names the learner of a run that was trained in a group."""


@dataclass(frozen=True)
class Fused:
    """The learner of some runs, or the reason why they are not trained in one pass."""

    learner: Learner | None
    text: str


def find_key(here: Opened, fuse: Fuse) -> Key | Refusal:
    """Return what runs that train in one pass have in common, or why this one cannot."""
    if fuse == "auto" and here.step and not was_fused(here):
        return Refusal(BEGUN_ALONE)
    found = find_built_key(here.built)
    if isinstance(found, Refusal):
        return found
    return Key((found.content, here.built.plan))


def find_built_key(built: Built) -> Key | Refusal:
    """Return the key of the objects of a run, or why it cannot be trained with others."""
    if reason := _refuse_source(built.train):
        return Refusal(reason)
    found = built.kind.group_key(built.learner)
    if isinstance(found, Refusal):
        return found
    sizes = built.order.batch_size, built.order.drop_remainder, built.evaluation_batch_size, len(built.train)
    return Key((found.content, sizes))


def _refuse_source(source: Any) -> str:
    """Return why the rows of a run cannot be read for several runs at once; empty if they can."""
    while type(source) is Limited:
        source = source.source
    declares: Any = next(
        (cls for cls in type(source).__mro__ if "is_constant" in vars(cls) or cls is DatasetSource), None
    )
    if declares is not None and type(source).batches is declares.batches:  # a subclass may draw
        return ""
    return f"rows of {type(source).__name__} may depend on random numbers of the run that reads them"


def was_fused(here: Opened) -> bool:
    """Return whether the last checkpoint of a run was written by a group."""
    return here.last is not None and here.last.values.get("learner") == FUSED


def fuse_runs(runs: Sequence[Opened], fuse: Fuse, terms: Terms = PLAIN) -> Fused:
    """Return the learner of runs with equal keys; it is compared with each run alone before it trains."""
    parts = [here.part or Part(here.built.learner) for here in runs]
    began = [was_fused(here) for here in runs]
    must_pay = fuse == "auto" and not any(began)
    try:
        with own_randomness(), warnings.catch_warnings():
            # Operations without a batching rule are slow, which the comparison measures.
            warnings.filterwarnings("ignore", "There is a performance drop")
            left = min(COMPARED, max(1, runs[0].built.plan.total - runs[0].step))
            first: list[Any] = list(itertools.islice(read_together(runs, as_group=True), left))
            if not first:
                return Fused(None, "alone: there are no rows")
            compiled = [here.last.values.get("compiled", "") for here in runs if here.last is not None]
            known = next(filter(None, compiled), "")
            terms = replace(terms, must_pay=must_pay, total=runs[0].built.plan.total, compiled=known)
            learner, measured = runs[0].built.kind.fuse(parts, first, terms)
    except NotFusable as error:
        if any(began):
            log.warning("a group that was trained in one pass goes on one run at a time: %s", error)
        return Fused(None, f"alone: {error}")
    return Fused(learner, f"in one pass; {measured}")


def launch_run(here: Opened, terms: Terms = PLAIN) -> Learner | None:
    """Return a learner that launches several steps of a single run at once, if it can, or None.

    A run goes on as it was begun, so that it has the same bits as without a pause.
    """
    if not here.built.kind.launches(here.built.learner):
        return None
    if here.step and not was_fused(here):
        fused = Fused(None, "the run goes on as it was begun")
    else:
        found = find_built_key(here.built)
        fused = Fused(None, found.reason) if isinstance(found, Refusal) else fuse_runs([here], 1, terms)
    if fused.learner is None:
        say = log.info if here.config.run.train.compile in ("auto", "off") else log.warning
        say("the operations of each step are launched one by one: %s", fused.text.removeprefix("alone: "))
    return fused.learner


def why_not_fused(built: Built) -> str:
    """Return why a run cannot be trained in one pass with others of its kind; empty if it can.

    It is compared with itself alone, on a few batches; nothing changes.
    """
    found = find_built_key(built)
    if isinstance(found, Refusal):
        return found.reason
    try:
        with own_randomness(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            first = [(batch,) for batch in itertools.islice(built.train.batches(built.order), COMPARED)]
            built.kind.fuse([Part(built.learner)], first, Terms())
    except NotFusable as error:
        return str(error)
    return ""


def release_memory() -> None:
    """Give back the memory of objects that are no longer used, on the GPU as well."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
