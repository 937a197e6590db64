"""The rehearsal: one point of each structure is built and tried on a few batches before training."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import ComponentFailed, Interrupted, ManyfitError, RunFailed, UsageError
from manyfit.core.names import pluralize
from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.plan import StudyPlan
from manyfit.study.work.hops import place_shards
from manyfit.study.work.points import Candidate
from manyfit.study.work.units import Failure, Outcome, Trial, Unit


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
    if study.execute.hop and ledger.get("shards") is None:
        done = set()  # the number of shards must be known
    ledger.set("rehearsed", sorted(done))
    todo = {key: item for key, item in found.structures.items() if key not in done}
    # A rehearsal that crashed the process (no isolation) is not repeated at the next start: the failure
    # policy handles its trials.
    note = (lambda keys: ledger.set("rehearsing", keys)) if not engine.isolates else (lambda keys: None)
    failed = rehearsals(study, found, engine, todo, note, asking)
    if failed:
        raise explain_failed(failed, found.structures)
    ledger.set("rehearsed", sorted({*done, *todo}))
    for name, shards in count_shards(study, found).items():
        ledger.set(name, shards)


def explain_failed(failed: Mapping[str, Failure], structures: Mapping[str, Candidate]) -> ManyfitError:
    """Return the error that says what cannot be trained: one of usage, if the config is the only reason."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for key, failure in failed.items():
        alike.setdefault(failure.message, []).append(structures[key].values)
    lines = "\n".join(f"  {text}{_show_values(values)}" for text, values in alike.items())
    count = f"{len(failed)} of {len(structures)} structures" if len(structures) > 1 else "the model"
    error = UsageError if all(failure.is_usage for failure in failed.values()) else ComponentFailed
    return error(f"{count} cannot be trained; nothing was started:\n{lines}")


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
        if any(facts.get("reads_data") for facts in found.facts):
            raise UsageError("execute.hop: the model reads all rows at once and cannot hop; set hop: false")
    return counts


def check_hop(shards: int | None, grain: int = 1) -> None:
    """Raise an error if trials cannot hop."""
    if shards is None:
        raise RunFailed("the processes that tried out the model died: see output.log in the study folder")
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
) -> dict[str, Failure]:
    """Rehearse one point of each structure; return the errors, by structure.

    `note` is called with the structures that are being rehearsed, before each one starts.
    """
    waiting, running, failed = dict(todo), dict[str, str](), dict[str, Failure]()
    spots, deaths, last = Spots(study, engine), 0, ""
    while waiting or running:
        while waiting and (spot := spots.take()) is not None:
            key, item = waiting.popitem()
            trial = Trial(
                f"rehearsal-{item.id}",
                str(study.folder / "trials" / ".rehearsal"),
                item.values,
                study.seeds[0],
                spot.changes,
            )
            running[trial.id] = key
            spots.busy[trial.id] = spot
            note(list(running.values()))
            engine.submit(Unit((trial,), place=spot.place, purpose="rehearse"))
        if asking is not None and asking.watch.number:
            raise Interrupted("interrupted before anything was trained", asking.watch.number)
        for outcome in engine.wait(None, asking.wake if asking is not None else ()):
            key = running.pop(outcome.trial)
            spots.give_back(outcome)
            if outcome.facts:
                found.facts.append(dict(outcome.facts))
            died = outcome.failure is not None and outcome.failure.process_died
            if died and study.execute.hop and engine.isolates and deaths <= study.execute.retries:
                deaths += 1
                waiting[key] = todo[key]  # what it finds out about the shards is needed
            last = outcome.failure.message if outcome.failure is not None else last
            if (mistake := _mistake(outcome)) is not None:
                failed[key] = replace(mistake, message=name_origin(mistake.message, study))
    note([])
    if study.execute.hop and todo and not found.facts and not failed:
        raise RunFailed(f"the model could not be tried out: {last}")
    return failed


@dataclass(frozen=True)
class Spot:
    """Where a rehearsal takes place, and what is changed in its config for that."""

    place: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


class Spots:
    """The free workers. Trials that hop are rehearsed where the shard is that they begin with.

    How many shards there are is known after the first rehearsal, which takes place on the first worker.
    """

    def __init__(self, study: StudyConfig, engine: Executor) -> None:
        self._engine = engine
        self.busy: dict[str, Spot] = {}
        """By trial."""
        self._is_placed = bool(study.execute.hop and engine.places)
        self._free = [Spot(engine.places[0])] if self._is_placed else []
        self._waits = self._is_placed

    def take(self) -> Spot | None:
        """Return a free worker, if there is one."""
        if not self._is_placed:  # workers may come and go
            return Spot() if len(self.busy) < self._engine.slots else None
        here = [spot for spot in self._free if spot.place in self._engine.places]
        if not here and not self.busy and self._engine.places:  # all of them were lost
            self._waits, here = True, [Spot(self._engine.places[0])]
            self._free = list(here)
        if here:
            self._free.remove(here[0])
        return here[0] if here else None

    def give_back(self, outcome: Outcome) -> None:
        """Free the worker of a rehearsal that has ended."""
        spot, shards = self.busy.pop(outcome.trial), int(outcome.facts.get("shards", 0))
        if self._waits and shards:
            self._waits = False
            engine = self._engine
            workers = place_shards(list(engine.places), shards, engine.speeds, holds=engine.holds)
            self._free = [Spot(worker.name, {"data.first_shard": worker.shards[0]}) for worker in workers]
        elif self._is_placed:
            self._free.append(spot)


def _show_values(points: Sequence[Mapping[str, Any]]) -> str:
    """Return with which values something happened: of the first point."""
    if not points[0]:
        return ""
    others = f", and {pluralize(len(points) - 1, 'other')}" if len(points) > 1 else ""
    return f" (with {points[0]}{others})"


def _mistake(outcome: Outcome) -> Failure | None:
    """Return the error in the user's code or data that a rehearsal found; the policy handles crashes."""
    failure = outcome.failure
    if failure is None or failure.kind not in ("user error", "data") or failure.process_died:
        return None
    return failure


def name_origin(text: str, study: StudyConfig) -> str:
    """Return a message about the base config with where a value was written: workers read a copy of it."""

    def rename(match: re.Match[str]) -> str:
        origin = study.base.origin(match["key"])
        return f"{origin}: {match['key']}:" if origin is not None else match[0]

    return re.sub(r"(?m)^[^\n:]*\bbase/[0-9a-f]{12}\.yaml:\d+: (?P<key>[\w.]+):", rename, text)
