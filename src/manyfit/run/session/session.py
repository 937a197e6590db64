"""Opening and resuming runs, and training them together to their end or until some step."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from manyfit.config import Config, patch
from manyfit.config.dialects.table import dialect_of
from manyfit.config.typed.artifacts import seal_config
from manyfit.core.files import read_text
from manyfit.core.redaction import has_secrets
from manyfit.core.signals import Watch
from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.walk import Walk, walk_together
from manyfit.learn.fusing import GroupFailed
from manyfit.learn.group import GroupLearner, Part
from manyfit.learn.learner import Learner
from manyfit.run.build.builder import Built, build
from manyfit.run.build.modes import compute_as
from manyfit.run.build.shared_data import SharedData
from manyfit.run.build.user_code import evaluation_only, hash_imported, hash_main_classes
from manyfit.run.loop.cohort import Cohort, Member, keep_of
from manyfit.run.loop.journal import log_only_to
from manyfit.run.loop.stopping import Ending, ending
from manyfit.run.loop.trainer import Callback, train_cohort
from manyfit.run.session import resume_check
from manyfit.run.session.resume_check import Recorded
from manyfit.store import durable, provenance
from manyfit.store.checkpoint import Checkpoint, Keep, check_state, newest, set_aside
from manyfit.store.events import Event, EventLog, read_events
from manyfit.store.folder import COPIED, RunFolder
from manyfit.store.group_leaving import leave_group
from manyfit.store.group_writer import GroupRun, GroupWriter
from manyfit.store.manifest import Note

log = logging.getLogger("manyfit")

RESOLVED: Final = "# Written by manyfit. Edit config.yaml, not this file.\n"


@dataclass(frozen=True)
class Opened:
    """An open run: its config, the objects built from it, and the checkpoint that it resumes from."""

    config: Config
    run: RunFolder
    built: Built
    last: Checkpoint | None
    facts: Mapping[str, Any]
    watch: Watch = field(default_factory=Watch)
    """Whether this run alone was asked to stop."""
    part: Part | None = None
    """Its part in a group, if several runs are open."""
    puts_off: bool = False
    """Whether the measurement at the end of an epoch is left to others, who have the shards of its rows."""

    @property
    def step(self) -> int:
        """Steps that were trained and committed."""
        return self.last.step if self.last is not None else 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to train: the last epoch is complete, or the run has stopped early."""
        if self.last is None:
            return False
        if self.last.step >= self.built.plan.total:
            return self.last.note.measured
        return self.ending is not None

    @property
    def ending(self) -> Ending | None:
        """Why the run has stopped early, if it has."""
        if self.last is None:
            return None
        events = read_events(self.run.metrics, self.last.log_length)
        found = ending(self.config.run.train, events, self.built.plan.steps_per_epoch)
        own = self.built.learner.stop_reasons()[0]
        return found or (Ending(own) if own else None)

    def join(self, stack: ExitStack) -> Member:
        """Return the run as a member of a cohort; `stack` is closed after training."""
        run, built = self.run, self.built
        length = self.last.log_length if self.last is not None else 0
        events = stack.enter_context(EventLog(run.metrics, length))
        member = Member(
            self.config, run, events, committed=read_events(run.metrics, events.length),
            validation=built.validation, batch_size=built.evaluation_batch_size, whole=built.whole,
            watch=self.watch, order=built.row_order,
        )  # fmt: skip
        if self.part is not None:
            member.turn = partial(log_only_to, run)
        member.ended = self.ending
        return member


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of a run after it was trained up to a position."""

    step: int
    epoch: float
    trained: int
    """Steps that were trained this time."""
    over: bool
    reason: str
    events: Sequence[Event]
    how: str = ""
    """How it was trained: in one pass with other runs or alone, and why."""


@contextmanager
def open_run(
    config: Config, run: RunFolder, allowed: Collection[str] = (), shared: SharedData | None = None
) -> Iterator[Opened]:
    """Build a run and load its last checkpoint, after checking that it is still the same run.

    From here on, the global random states are those of the run: save your own first if you need them.
    """
    found, state = resumable(run, keep_of(config)) or (None, None)
    note = found.note if found is not None else None
    frozen = run.load_frozen() if found is not None else {}
    with build_again(config, run, state, frozen, note, allowed, shared) as made:
        config, built, facts = made
        yield Opened(config, run, built, found, facts)


@contextmanager
def build_again(
    config: Config,
    run: Recorded,
    state: State | None,
    frozen: Mapping[str, Any],
    note: Note | None,
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
) -> Iterator[tuple[Config, Built, dict[str, Any]]]:
    """Build a run and load its state, after checking that it is still the same run.

    Yield its config, its objects, and the facts about this start. Without a state, the run starts anew;
    `note` describes the state.
    """
    changed = set[str]()
    if state is not None:
        config = patch(config, frozen=frozen)
        changed = resume_check.check_config(config, run, allowed)
    train = config.run.train
    with compute_as(train) as thread_count:
        built = build(config, warm=state is None, shared=shared)
        data, source = built.fingerprints(), config.project / config.run.src_code_path
        code = {**hash_imported(source), **hash_main_classes(config)}
        if state is not None:
            resume_check.check_data(data, run, allowed)
            resume_check.check_run_code(code, run, source, allowed, evaluation_only(config, source))
            resume_check.check_backend(built.learner.backend, run, allowed)
            options = built.learner.options()
            built.learner.load([state])
            if any(key.startswith(dialect_of(config.tree).optimizer_keys) for key in changed):
                built.learner.set_options(options)
        facts = {
            "fingerprint": config.fingerprint,
            "data": data,
            "modules": code,
            "threads": thread_count,
            "device": built.learner.hardware(),
            "backend": built.learner.backend,
            "environment": dict(config.environment),
            "from_step": note.step if note is not None else 0,
            "allowed_changes": sorted(allowed),
        }
        if note is not None and built.order.layout is not None:
            built = follow(built, read_visits(note.position))
        yield config, built, facts


def read_visits(position: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return by epoch the shards that a run has visited, from the position of a checkpoint.

    Those of a closed epoch are left out if their order was cyclic.
    """
    closed = [tuple(shards) for shards in position.get("visits", ())]
    closed += [()] * (int(position.get("epoch", 0)) - len(closed))
    return [*closed, tuple(position.get("path", ()))]


def follow(built: Built, visits: Sequence[tuple[int, ...]]) -> Built:
    """Return the objects of a run with the shards that it visits first, by epoch, where they are known."""
    both = itertools.zip_longest(visits, built.order.visits, fillvalue=())
    order = replace(built.order, visits=tuple(known or given for known, given in both))
    return replace(built, order=order)


def resumable(run: RunFolder, keep: Keep) -> tuple[Checkpoint, State] | None:
    """Return the checkpoint to resume from; damaged ones are skipped with a warning.

    If it is in the folder of a group, whose process has died, the run takes it out.
    """
    found = newest(run.checkpoint_folder)
    if found is None:
        if run.metrics.is_file() and run.metrics.stat().st_size:
            log.warning("%s has a log, but no checkpoint: training starts from the beginning", run.path)
        leave_group(run.checkpoint_folder, run.metrics, keep)
        return None
    for reason in found.wrong.values():
        log.warning("%s; resuming from step %d", reason, found.checkpoint.step)
    leave_group(run.checkpoint_folder, run.metrics, keep)
    older = {path: why for path, why in run.find_damaged().items() if path not in found.wrong}
    for reason in older.values():
        log.warning("%s; it can no longer be selected as the best", reason)
    set_aside([*found.wrong, *older])
    return replace(found.checkpoint, grouped=None), found.state


def begin_run(opened: Opened, session: Mapping[str, Any], given: str = "") -> None:
    """Record the start of a run in its folder, before its first step."""
    if has_secrets():  # fail now, not when the first checkpoint is written
        for state in opened.built.learner.state():
            check_state(state)
    record_config(opened.config, opened.run, session, given)


def record_config(config: Config, run: RunFolder, session: Mapping[str, Any], given: str = "") -> None:
    """Write the config, the resolved config and the provenance; `given` is the text of config.yaml."""
    files: dict[Path, bytes | str] = {}
    before = read_text(run.config) if run.config.exists() else ""
    if not given and (not before or before.startswith(COPIED)):
        is_whole = config.file in (None, run.config) and not config.environment
        text = config.dump_given() if is_whole else config.dump()
        given = f"{COPIED}{'' if is_whole else ', with every reference filled in'}.\n{text}"
    if given and given != before:
        files[run.config] = given
    files[run.resolved] = seal_resolved(config, run)
    files[run.provenance] = provenance.append_start(run, session)
    durable.write_all(files)


def advance(
    runs: Sequence[Opened],
    callbacks: Sequence[Callback],
    watch: Watch,
    until: int | None = None,
    learner: Learner | None = None,
    group: Path | None = None,
) -> Iterator[tuple[int, Member] | None]:
    """Train runs that are at the same step to the end, or until step `until`, and commit the result.

    `learner` trains all of them, or a single one; by default, their own learners do. If `group` is given,
    their checkpoints are written to that folder together, until they leave.

    Yield the number of each run and what became of it, as soon as it is known, and None where other groups
    can have a turn. A single run raises its error. In a group, a run that fails has an `error`, and the
    others continue; a signal ends those that are left.
    """
    first, is_group = runs[0], runs[0].part is not None
    measured = first.last.note.measured if first.last is not None else True
    with ExitStack() as stack:
        members = [here.join(stack) for here in runs]
        cohort = Cohort(
            list(members), learner or _learner(runs), first.built.plan,
            read_together(runs, learner is not None), first.step, measured,
            is_group,
            writer=_write_together(members, group) if group is not None else None,
            puts_off=first.puts_off,
        )  # fmt: skip
        left = []
        try:
            for member in train_cohort(cohort, callbacks, watch, until=until):
                if member is None:
                    yield None
                    continue
                left.append(member)
                yield _index(members, _settle(member, must_raise=not is_group)), member
        except GeneratorExit:
            raise
        except GroupFailed as error:
            if not is_group:
                raise error.__cause__ or error from None
            for member in cohort.members:
                member.error = member.error or error
        except BaseException as error:
            if not is_group:
                raise
            for member in cohort.members:
                member.error = member.error or error
    for number, member in enumerate(members):
        if not any(member is each for each in left):
            yield number, _settle(member, must_raise=not is_group)


def _index(members: Sequence[Member], wanted: Member) -> int:
    return next(number for number, member in enumerate(members) if member is wanted)


def _settle(member: Member, must_raise: bool) -> Member:
    if member.ended is not None:
        member.error = member.error or member.ended.error
    if member.error is not None and must_raise:
        raise member.error
    return member


def _write_together(members: Sequence[Member], group: Path) -> GroupWriter:
    """Return a writer that commits the checkpoints of all runs together."""
    runs = []
    for member in members:
        assert isinstance(member.log, EventLog)
        runs.append(GroupRun(member.folder.checkpoint_folder, member.keep, member.log, list(member.kept)))
    writer = GroupWriter(group, runs)
    for member, part in zip(members, writer.parts, strict=True):
        member.writer = part
    return writer


def _learner(runs: Sequence[Opened]) -> Learner:
    parts = [here.part for here in runs if here.part is not None]
    return GroupLearner(parts) if parts else runs[0].built.learner


def read_together(runs: Sequence[Opened], as_group: bool = False) -> Iterator[Batch] | Walk:
    """Return the next batches of runs; of several, or of a group of one, in one walk."""
    sources, orders = [here.built.train for here in runs], [here.built.order for here in runs]
    if as_group or runs[0].part is not None:
        return walk_together(sources, orders, runs[0].step)
    return sources[0].batches(orders[0], runs[0].step)


def write_resolved(config: Config, run: RunFolder) -> None:
    """Write the resolved config."""
    durable.write_file(run.resolved, seal_resolved(config, run))


def seal_resolved(config: Config, run: RunFolder) -> str:
    """Return the text of `config.resolved.yaml`, sealed, so that the run is recognized later."""
    return seal_config(RESOLVED + config.to_resolved_yaml(), config.project, run.path)
