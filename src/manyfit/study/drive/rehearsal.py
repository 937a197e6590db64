"""The rehearsal: one point of each structure is built and tried on a few batches before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import ComponentFailed, Interrupted, UsageError
from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.plan import StudyPlan
from manyfit.study.work.points import Candidate
from manyfit.study.work.units import Outcome, Trial, Unit


@dataclass(frozen=True)
class Asking:
    """Whether a signal asks to end, and the file descriptor that wakes a waiting executor."""

    watch: Watch
    signals: int | None

    @property
    def wake(self) -> list[int]:
        """File descriptors that become readable when a signal arrives."""
        return [self.signals] if self.signals is not None else []


def rehearse_points(
    study: StudyConfig, found: StudyPlan, ledger: Ledger, engine: Executor, asking: Asking
) -> None:
    """Rehearse one point of each structure that is new; report all that cannot be trained in one error."""
    done = {*(ledger.get("rehearsed") or []), *(ledger.get("rehearsing") or [])}
    ledger.set("rehearsed", sorted(done))
    todo = {key: item for key, item in found.structures.items() if key not in done}
    # A rehearsal that crashed the process (no isolation) is not repeated at the next start: the failure
    # policy handles its trials.
    note = (lambda keys: ledger.set("rehearsing", keys)) if not engine.isolates else (lambda keys: None)
    failed = rehearsals(study, found, engine, todo, note, asking)
    if failed:
        lines = "\n".join(f"  {text}" for text in dict.fromkeys(failed.values()))
        count = (
            f"{len(failed)} of {len(found.structures)} structures"
            if len(found.structures) > 1
            else "the model"
        )
        raise ComponentFailed(f"{count} cannot be trained; nothing was started:\n{lines}")
    ledger.set("rehearsed", sorted({*done, *todo}))
    for name, shards in count_shards(study, found).items():
        ledger.set(name, shards)


def count_shards(study: StudyConfig, found: StudyPlan) -> dict[str, int]:
    """Return the number of shards of each kind, as rehearsals have found it; raise if trials cannot hop."""
    counts: dict[str, int] = {}
    for name in ("shards", "validation_shards") if found.facts else ():
        known = {int(facts.get(name, 0)) for facts in found.facts}
        if len(known) > 1:
            raise UsageError("the points of a study must have the same number of shards")
        counts[name] = known.pop()
    if study.execute.hop and counts:
        grain = max(int(facts.get("grain", 1)) for facts in found.facts)
        check_hop(counts["shards"], grain)
    return counts


def check_hop(shards: int, grain: int = 1) -> None:
    """Raise an error if trials cannot hop."""
    if not shards:
        raise UsageError(
            "execute.hop: the training rows are not divided into shards; set data.shards in the base config"
        )
    if grain > 1:
        raise UsageError(
            f"execute.hop: the model trains {grain} steps at once, but a visit to a shard is shorter; "
            "set hop: false"
        )


def rehearsals(
    study: StudyConfig,
    found: StudyPlan,
    engine: Executor,
    todo: Mapping[str, Candidate],
    note: Callable[[list[str]], None] = lambda keys: None,
    asking: Asking | None = None,
) -> dict[str, str]:
    """Rehearse one point of each structure; return the errors, by structure.

    `note` is called with the structures that are being rehearsed, before each one starts.
    """
    waiting, running, failed = dict(todo), dict[str, str](), dict[str, str]()
    while waiting or running:
        while waiting and len(running) < engine.slots:
            key, item = waiting.popitem()
            trial = Trial(
                f"rehearsal-{item.id}",
                str(study.folder / "trials" / ".rehearsal"),
                item.values,
                study.seeds[0],
            )
            running[trial.id] = key
            note(list(running.values()))
            engine.submit(Unit((trial,), purpose="rehearse"))
        if asking is not None and asking.watch.number:
            raise Interrupted("interrupted before anything was trained", asking.watch.number)
        for outcome in engine.wait(None, asking.wake if asking is not None else ()):
            key = running.pop(outcome.trial)
            if outcome.facts:
                found.facts.append(dict(outcome.facts))
            if reason := _mistake(outcome):
                values = todo[key].values
                failed[key] = f"{reason} (with {values})" if values else reason
    note([])
    return failed


def _mistake(outcome: Outcome) -> str:
    """Return the error in the user's code or data that a rehearsal found; the policy handles crashes."""
    failure = outcome.failure
    if failure is None or failure.kind not in ("user error", "data") or failure.process_died:
        return ""
    return failure.message
