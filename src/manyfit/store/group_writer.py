"""Writing of the checkpoints of runs that train in one pass: one folder for all of them, see `group_folder`.

A run gets files of its own when it leaves the group, and for a checkpoint that stays the best while those of
the others are pruned.
"""

from __future__ import annotations

import contextvars
import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.core.state import State
from manyfit.store import durable
from manyfit.store.buffers import Buffers, StackedCopy
from manyfit.store.checkpoint import (
    TENSORS,
    Checkpoint,
    Keep,
    check_state,
    check_tensors,
    discard_unfinished,
    name_checkpoint,
    save_checkpoint,
)
from manyfit.store.events import EventLog
from manyfit.store.group_folder import (
    MANIFESTS,
    REFERENCE,
    ROWS,
    Grouped,
    create_group,
    discard_unused,
    dump_manifest,
    dump_rows,
    join_lines,
    name_commit,
    refer,
)
from manyfit.store.lock import hold_lock
from manyfit.store.manifest import Manifest, Note
from manyfit.store.stacked_tensors import StackedFile, list_alike
from manyfit.store.writer import MOST_DUE, fail_to_write

log = logging.getLogger("manyfit")

SIDE_BY_SIDE: Final = 8
"""Runs whose own files are written at the same time."""
SPARE: Final = 2
"""Commits that stay only for the best checkpoints in them; for more, those get files of their own."""
MOST_CARRIED: Final = 1 << 20
"""Bytes of log rows that commits carry along until the logs themselves are flushed to disk."""


@dataclass(frozen=True)
class GroupRun:
    """A run that joins a group."""

    folder: Path
    """Its checkpoint folder."""
    keep: Keep
    log: EventLog
    notes: Sequence[Note]
    """The checkpoints in its folder."""


@dataclass(frozen=True)
class _Row:
    """A state in memory that is waiting to be written."""

    stack: StackedCopy
    row: int
    note: Note

    @property
    def state(self) -> State:
        return self.stack.state(self.row)


class GroupPart:
    """The writer of one run of a group. Nothing is copied or written before `GroupWriter.commit`."""

    def __init__(self, group: GroupWriter, number: int, run: GroupRun) -> None:
        self.group = group
        self.number = number
        self.folder = run.folder
        self.keep = run.keep
        self.log = run.log
        self.given: tuple[State, Note, bool] | None = None
        """The state that was handed over since the last commit, and whether it is due."""
        self.rows: dict[int, _Row] = {}
        """The states in memory by step, which are written with the next commit or when the run leaves."""
        self.own = {note.step: note for note in run.notes}
        """The checkpoints in the folder of the run, by step."""
        self.grouped: dict[int, Checkpoint] = {}
        """Those in the folder of the group."""
        self.begin = self.length = run.log.length
        """The length of the log that is on disk, and that a checkpoint has committed."""
        self.error: BaseException | None = None
        self.is_leaving = self.has_left = False
        """Whether it was asked to leave, and whether that is done."""

    def hold(self, state: State, note: Note) -> None:
        """Hold a state in memory, because it may be one of the best."""
        self.given = state, note, False

    def put(self, state: State, note: Note, wait: bool = False) -> None:
        """Write a state with the next commit."""
        self.done()
        self.given = state, note, True

    def put_held(self) -> None:
        """Do nothing: they are written when the run leaves."""

    def done(self) -> int:
        """Return the committed length of the log. Raise the error of writing, if any."""
        error = self.error or self.group.error
        if error is not None:
            raise fail_to_write(self.folder, error) from error
        return self.length

    def flush(self) -> None:
        """Wait until everything that was committed is on disk."""
        self.group.wait()
        self.done()

    def close(self) -> None:
        """End; the last run of a group waits until everything is written."""
        self.group.close(self)

    def select(self, notes: Sequence[Note]) -> set[int]:
        """Return the steps of the checkpoints to keep, of those on disk and these."""
        known = [*self.own.values(), *(each.note for each in self.grouped.values()), *notes]
        return {note.step for note in self.keep.select({note.step: note for note in known}.values())}


class GroupWriter:
    """A background thread that commits the states of several runs by one rename."""

    def __init__(self, group: Path, runs: Sequence[GroupRun]) -> None:
        """`group` is the folder, which is created with the first commit."""
        self._group = group
        self.parts = [GroupPart(self, number, run) for number, run in enumerate(runs)]
        self.error: BaseException | None = None
        """Why no commit can be written any more."""
        self._buffers = Buffers()
        self._commits: list[Path] = []
        self._stack = ExitStack()
        self._is_created = False
        self._open = {part.number for part in self.parts}
        self._pending: list[Future[None]] = []
        self._room = threading.Semaphore(MOST_DUE)
        self._thread = ThreadPoolExecutor(1, "manyfit-group-writer")

    # -- called by training -----------------------------------------------------------------------

    def commit(self, leaving: Collection[GroupPart] = ()) -> None:
        """Copy the states that were handed over since the last commit, and write the due ones together.

        Those of runs that are `leaving` are written to their own folders by `leave`.
        """
        given = [(part, part.given) for part in self.parts if part.given is not None]
        due = [part for part, (_, _, is_due) in given if is_due and part not in leaving]
        for every in (due, [part for part, _ in given if part not in due]):
            for part, row in self._copy(every):
                part.rows[row.note.step] = row
                best = {
                    each.step
                    for each in part.keep.rank([r.note for r in part.rows.values()])[: part.keep.top]
                }
                part.rows = {
                    step: r for step, r in part.rows.items() if step in best or step == row.note.step
                }
        if due:
            rows = [(part, row) for part in due for row in part.rows.values()]
            for part in due:
                part.rows = {}
            self._room.acquire()
            self._begin(self._write_commit, max(row.note.step for _, row in rows), rows)

    def _copy(self, parts: Sequence[GroupPart]) -> list[tuple[GroupPart, _Row]]:
        states, notes = list[State](), list[Note]()
        for part in parts:
            assert part.given is not None
            states.append(part.given[0])
            notes.append(part.given[1])
            part.given = None
        found = []
        for numbers in list_alike(states):
            stack = self._buffers.stack([states[number] for number in numbers])
            found += [(parts[number], _Row(stack, i, notes[number])) for i, number in enumerate(numbers)]
        return found

    def leave(self, parts: Collection[GroupPart]) -> None:
        """Give runs files of their own, and end their references to the group."""
        leaving = [(part, list(part.rows.values())) for part in parts if not part.is_leaving]
        for part, _ in leaving:
            part.rows, part.is_leaving = {}, True
        if leaving:
            self._begin(self._leave, leaving)

    def wait(self) -> None:
        """Wait until everything is on disk, or has failed."""
        while self._pending:
            self._pending.pop().result()

    def close(self, part: GroupPart) -> None:
        """End for one run; after the last one, wait until everything is written."""
        self._open.discard(part.number)
        if not self._open:
            self._thread.shutdown()
            self._stack.close()

    def _begin(self, do: Callable[..., None], *args: Any) -> None:
        """Do something in the background, in the context of the run that asks for it."""
        self._pending = [each for each in self._pending if not each.done()]
        self._pending.append(self._thread.submit(contextvars.copy_context().run, do, *args))

    # -- in the background ------------------------------------------------------------------------

    def _write_commit(self, step: int, rows: Sequence[tuple[GroupPart, _Row]]) -> None:
        try:
            if self.error is None:
                self._create()
                self._write(step, rows)
                self._prune()
        except BaseException as error:
            self.error = error
        finally:
            self._room.release()

    def _create(self) -> None:
        """Create the folder of the group, then let its runs refer to it."""
        if self._is_created:
            return
        groups = self._group.parent
        groups.mkdir(exist_ok=True)
        self._stack.enter_context(hold_lock(self._group))
        durable.sync_folder(groups.parent)
        durable.sync_folder(groups)
        create_group(self._group, [part.folder for part in self.parts])

        def begin(part: GroupPart) -> None:
            part.folder.mkdir(exist_ok=True)
            refer(part.folder, self._group, part.number)

        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            list(pool.map(begin, [part for part in self.parts if not part.has_left]))
        self._is_created = True

    def _write(self, step: int, rows: Sequence[tuple[GroupPart, _Row]]) -> None:
        from safetensors.torch import save as serialize

        final = self._group / name_commit(step)
        temporary = final.with_name(f".{final.name}.tmp")
        durable.discard(temporary) if temporary.exists() else None
        temporary.mkdir()
        stacks = {id(row.stack): row.stack for _, row in rows}
        files, lines, found = dict[str, bytes](), list[str](), list[tuple[GroupPart, Checkpoint]]()
        for number, stack in enumerate(stacks.values()):
            used = [(part, row) for part, row in rows if row.stack is stack]
            name = f"states-{used[0][1].note.step:09d}-{number}.safetensors"
            files[name] = serialize(stack.select([row.row for _, row in used]))
            check_tensors(files[name])
            stacked = StackedFile.of(files[name])
            for i, (part, row) in enumerate(used):
                values = stack.values[row.row]
                check_state(State({}, values) if i else row.state)
                digest = hashlib.sha256(stacked.cut(i)).hexdigest()
                manifest = Manifest(row.note, values, {TENSORS: digest})
                lines.append(dump_manifest(part.number, i, name, manifest))
                path = part.folder / name_checkpoint(row.note.step)
                grouped = Grouped(final, i, name, manifest)
                found.append((part, Checkpoint(path, row.note, values, manifest.files, grouped)))
        files[MANIFESTS] = join_lines(lines)
        lengths = {part.number: row.note.log_length for part, row in rows}
        files[ROWS] = join_lines(self._list_rows(lengths))
        durable.write_new_all({temporary / name: data for name, data in files.items()})
        durable.commit_folder(temporary, final)
        log.debug("wrote the checkpoints of %d runs, step %d", len(lengths), step)
        self._commits.append(final)
        for part, checkpoint in found:
            part.grouped[checkpoint.step] = checkpoint
            part.length = max(part.length, checkpoint.log_length)

    def _list_rows(self, lengths: dict[int, int]) -> list[str]:
        """Return the rows of logs that may not be on disk yet."""
        carried = sum(length - self.parts[number].begin for number, length in lengths.items())
        found = []
        for number, length in lengths.items():
            part = self.parts[number]
            if carried > MOST_CARRIED:
                part.log.sync()
                part.begin = length
            text = part.log.read(part.begin, length)
            found.append(dump_rows(number, part.begin, text.decode()))
        return found

    def _prune(self) -> None:
        """Remove commits of which nothing is kept, and give the best in old ones files of their own."""
        selected = {part.number: part.select([]) for part in self.parts if not part.has_left}
        spare = []
        for commit in self._commits:
            inside = [
                part for part in self.parts if part.number in selected and _kept_in(part, commit, selected)
            ]
            last = {part.number for part in inside if _has_last(part, commit)}
            if last:
                continue
            if inside:
                spare.append((commit, inside))
            else:
                self._discard(commit)
        for commit, inside in spare[: max(0, len(spare) - SPARE)]:
            for part in inside:
                for step in sorted(selected[part.number]):
                    if (found := part.grouped.get(step)) is not None and _is_in(found, commit):
                        self._make_own(part, found)
            self._discard(commit)
        for part in self.parts:
            if part.number in selected:
                _prune_own(part, selected[part.number])

    def _discard(self, commit: Path) -> None:
        for part in self.parts:
            part.grouped = {step: each for step, each in part.grouped.items() if not _is_in(each, commit)}
        self._commits.remove(commit)
        durable.discard(commit)

    def _make_own(self, part: GroupPart, found: Checkpoint) -> None:
        found.copy_to(found.path, part.log.sync)
        part.own[found.step] = found.note

    def _leave(self, leaving: Sequence[tuple[GroupPart, Sequence[_Row]]]) -> None:
        if self.error is not None:
            return
        for part, _ in leaving:
            part.has_left = True
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            list(pool.map(self._leave_one, *zip(*leaving, strict=True)))
        if self._is_created and all(part.has_left and part.error is None for part in self.parts):
            self._stack.close()
            try:
                discard_unused(self._group)
            except OSError as error:
                log.warning(
                    "the folder %s is not needed any more, but cannot be removed: %s", self._group, error
                )

    def _leave_one(self, part: GroupPart, rows: Sequence[_Row]) -> None:
        try:
            selected = part.select([row.note for row in rows])
            found = {step: each for step, each in part.grouped.items() if step in selected}
            new = {row.note.step: row for row in rows if row.note.step in selected}
            for step in sorted({*found, *new}):
                if step in new:
                    save_checkpoint(part.folder, new[step].state, new[step].note, part.log.sync)
                    part.own[step] = new[step].note
                else:
                    self._make_own(part, found[step])
            _prune_own(part, selected)
            if part.own:
                discard_unfinished(part.folder)
            if self._is_created:
                durable.remove_file(part.folder / REFERENCE)
            part.length = max([part.length, *(row.note.log_length for row in rows)])
        except BaseException as error:
            part.error = error


def _is_in(found: Checkpoint, commit: Path) -> bool:
    return found.grouped is not None and found.grouped.commit == commit


def _kept_in(part: GroupPart, commit: Path, selected: dict[int, set[int]]) -> bool:
    """Return whether a run keeps a checkpoint of a commit."""
    return any(_is_in(each, commit) and step in selected[part.number] for step, each in part.grouped.items())


def _has_last(part: GroupPart, commit: Path) -> bool:
    """Return whether a commit has one of the last checkpoints of a run."""
    last = sorted({*part.own, *part.grouped})[-part.keep.last :]
    return any(_is_in(part.grouped[step], commit) for step in last if step in part.grouped)


def _prune_own(part: GroupPart, selected: set[int]) -> None:
    """Remove the files of a run's own checkpoints that are no longer kept."""
    for step in sorted(part.own.keys() - selected):
        durable.discard(part.folder / name_checkpoint(step))
        del part.own[step]
