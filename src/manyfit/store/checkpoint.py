"""Checkpoints: a folder with a manifest and safetensors, committed by one rename.

The last and the best checkpoint follow from the manifests, never from file times. A checkpoint is damaged,
and ignored, if its manifest cannot be read or its tensors do not match their checksums.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from manyfit.core.errors import FolderError, RunFailed
from manyfit.core.files import read_bytes
from manyfit.core.redaction import has_secrets, holds_value, redact_nested, without_values
from manyfit.core.state import State
from manyfit.store import durable
from manyfit.store.files import read_json, readable
from manyfit.store.group_folder import (
    ASIDE,
    MANIFESTS,
    REFERENCE,
    Grouped,
    find_grouped,
    read_grouped,
)
from manyfit.store.manifest import FIELDS, Manifest, NewerFormat, Note
from manyfit.store.stacked_tensors import cut_file

NAME: Final = "step-"
TENSORS: Final = "state.safetensors"
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint, by its manifest."""

    path: Path
    """Its folder. That of a run in a group does not exist: its files are those in `grouped`."""
    note: Note
    values: Mapping[str, Any]
    files: Mapping[str, str]
    grouped: Grouped | None = None
    """Where it is in the folder of a group."""

    @property
    def step(self) -> int:
        """The number of trained steps."""
        return self.note.step

    @property
    def epoch(self) -> float:
        """The number of trained epochs."""
        return self.note.epoch

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics at this step."""
        return self.note.metrics

    @property
    def log_length(self) -> int:
        """The length of the log in bytes."""
        return self.note.log_length

    @property
    def manifest_file(self) -> Path:
        """The file with the manifest."""
        return self.path / MANIFEST if self.grouped is None else self.grouped.commit / MANIFESTS

    def load(self) -> State:
        """Read the tensors, after verifying their checksums."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        data = self.read_files()
        try:
            return State(load(data[TENSORS]), self.values)
        except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
            raise FolderError(f"the checkpoint {self.path} is damaged: {error!r}") from error

    def read_files(self) -> dict[str, bytes]:
        """Return the files with the tensors, after verifying their checksums."""
        try:
            if self.grouped is not None:
                data = {TENSORS: cut_file(self.grouped.tensors, self.grouped.row)}
            else:
                data = {name: read_bytes(self.path / name) for name in self.files}
        except OSError as error:
            raise FolderError(f"the checkpoint {self.path} cannot be read: {error}") from error
        for name, digest in self.files.items():
            if hashlib.sha256(data.get(name, b"")).hexdigest() != digest:
                place = self.path if self.grouped is None else self.grouped.tensors
                raise FolderError(f"the checkpoint {place} is damaged: {name} does not match its checksum")
        return data

    def dump(self) -> dict[str, bytes]:
        """Return the files of its folder."""
        signed = Manifest(self.note, self.values, self.files).sign()
        return {**self.read_files(), MANIFEST: readable(signed).encode()}

    def copy_to(self, final: Path, sync: Callable[[], object] | None = None) -> Checkpoint:
        """Write it to another folder, and commit that by one rename; see `save_checkpoint`."""
        return _commit(final, Manifest(self.note, self.values, self.files), self.read_files(), sync)


def name_checkpoint(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"{NAME}{step:09d}"


class Scored(Protocol):
    """Anything with a step and metrics."""

    @property
    def step(self) -> int:
        """The step of the metrics."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics by name."""
        ...


S = TypeVar("S", bound=Scored)


@dataclass(frozen=True, slots=True)
class Keep:
    """The rule for keeping checkpoints: the last ones, and the best ones by a metric."""

    metric: str
    mode: Literal["min", "max"]
    last: int = 2
    top: int = 1

    def rank(self, found: Iterable[S]) -> list[S]:
        """Sort those with a finite value of the metric, the best first; of equal ones, the earlier first."""
        sign = 1 if self.mode == "min" else -1
        scored = [c for c in found if math.isfinite(c.metrics.get(self.metric, math.nan))]
        return sorted(scored, key=lambda c: (sign * c.metrics[self.metric], c.step))

    def best(self, found: Iterable[S]) -> S | None:
        """Return the best one, or None if none has the metric."""
        return next(iter(self.rank(found)), None)

    def select(self, found: Iterable[S]) -> list[S]:
        """Return those to keep."""
        every = sorted(found, key=lambda c: c.step)
        steps = {c.step for c in (*every[-self.last :], *self.rank(every)[: self.top])}
        return [c for c in every if c.step in steps]


def check_state(state: State) -> None:
    """Raise if a state holds a secret: a checkpoint would store it, or else be a different state."""
    if not has_secrets():
        return
    for name in state.tensors:
        if without_values(name) != name:
            raise RunFailed(f"the name of a tensor of the run contains a secret: {without_values(name)}")
    for name, value in state.values.items():
        if redact_nested({name: value}) != {name: value}:
            raise RunFailed(
                f"the state {without_values(name)!r} of the run holds a secret, which is never stored"
            )


def save_checkpoint(
    folder: Path, state: State, note: Note, sync: Callable[[], object] | None = None
) -> Checkpoint:
    """Write a checkpoint next to its final place and commit it by one rename.

    `sync` flushes the log up to `note.log_length`. It is called before the rename, so that a committed
    checkpoint never refers to rows of the log that a crash could lose.
    """
    from safetensors.torch import save as serialize

    check_state(state)
    data = serialize(dict(state.tensors))
    check_tensors(data)
    files = {TENSORS: hashlib.sha256(data).hexdigest()}
    return _commit(
        folder / name_checkpoint(note.step), Manifest(note, state.values, files), {TENSORS: data}, sync
    )


def check_tensors(data: bytes) -> None:
    """Raise if serialized tensors hold a secret."""
    if holds_value(data):
        raise RunFailed(
            "a tensor of the model or its optimizer holds a secret, which a checkpoint would store"
        )


def _commit(
    final: Path, manifest: Manifest, data: Mapping[str, bytes], sync: Callable[[], object] | None
) -> Checkpoint:
    temporary = final.with_name(f".{final.name}.tmp")
    try:
        temporary.mkdir()
    except FileNotFoundError:
        temporary.parent.mkdir(exist_ok=True)
        temporary.mkdir()
    except FileExistsError:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    files = {name: data[name] for name in manifest.files}
    durable.write_new_all(
        {
            **{temporary / name: content for name, content in files.items()},
            temporary / MANIFEST: readable(manifest.sign()).encode(),
        }
    )
    if sync is not None:
        sync()
    durable.commit_folder(temporary, final)
    return Checkpoint(final, manifest.note, manifest.values, manifest.files)


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all committed checkpoints with readable manifests, the oldest first."""
    own, grouped, _ = _find_all(folder)
    found = []
    for step, path in own.items():
        try:
            found.append(read(path))
        except FolderError:  # `find_damaged` reports these
            continue
        grouped.pop(step, None)
    found += [_of_group(folder, each) for each in grouped.values()]
    return sorted(found, key=lambda c: c.step)


def find_damaged(folder: Path) -> dict[Path, str]:
    """Return the checkpoints whose manifests cannot be read, with the reasons.

    If those in the folder of a group cannot, the reference to it is among them.
    """
    own, _, damage = _find_all(folder)
    found = {folder / REFERENCE: damage} if damage else {}
    for path in own.values():
        try:
            read(path)
        except FolderError as error:
            found[path] = str(error)
    return found


def list_committed(folder: Path) -> Iterator[Path]:
    """Yield every folder that was committed as a checkpoint, the oldest first.

    Those of a run in a group do not exist, but can be read in the same way; see `Checkpoint.path`.
    """
    own, grouped, _ = _find_all(folder)
    yield from (
        folder / name_checkpoint(step) if step not in own else own[step] for step in sorted({*own, *grouped})
    )


def _find_all(folder: Path) -> tuple[dict[int, Path], dict[int, Grouped], str]:
    """Return by step the folders of checkpoints and those in a group, and the damage of the latter."""
    own, refers = _list_own(folder)
    if not refers:
        return own, {}, ""
    grouped, damage = find_grouped(folder)
    # Again: a checkpoint is written to the folder of the run before it is removed from that of the group.
    return _list_own(folder)[0], grouped, damage


def _list_own(folder: Path) -> tuple[dict[int, Path], bool]:
    """Return by step the folders of checkpoints, and whether there is a reference to a group."""
    try:
        with os.scandir(folder) as entries:
            every = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return {}, False
    names = [entry.name for entry in every if entry.name.startswith(NAME) and entry.is_dir()]
    steps = {int(number): name for name in names if (number := name.removeprefix(NAME)).isdecimal()}
    found = {step: folder / steps[step] for step in sorted(steps)}
    return found, any(entry.name == REFERENCE for entry in every)


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is that of a checkpoint."""
    if (path / MANIFEST).is_file():
        return True
    return (path.parent / REFERENCE).is_file() and path in list_committed(path.parent)


def read(path: Path) -> Checkpoint:
    """Read one manifest."""
    file = path / MANIFEST
    if not path.is_dir() and (path.parent / REFERENCE).is_file():
        number = path.name.removeprefix(NAME)
        found = read_grouped(path.parent).get(int(number) if number.isdecimal() else -1)
        if found is not None:
            return _of_group(path.parent, found)
    if not file.is_file():
        raise FolderError(f"the checkpoint {path} is damaged: it has no manifest.json")
    manifest = Manifest.parse(read_json(file, FIELDS), file)
    return Checkpoint(path, manifest.note, manifest.values, manifest.files)


def _of_group(folder: Path, found: Grouped) -> Checkpoint:
    manifest = found.manifest
    path = folder / name_checkpoint(manifest.note.step)
    return Checkpoint(path, manifest.note, manifest.values, manifest.files, found)


@dataclass(frozen=True, slots=True)
class Found:
    """The newest intact checkpoint, its state, and the damage of newer ones."""

    checkpoint: Checkpoint
    state: State
    wrong: Mapping[Path, str]


def newest(folder: Path) -> Found | None:
    """Find the checkpoint to resume from; None if there are no checkpoints.

    If there are checkpoints and none is intact, raise: training from the start would lose them.
    """
    own, grouped, damage = _find_all(folder)
    wrong = {folder / REFERENCE: damage} if damage else dict[Path, str]()
    for step in sorted({*own, *grouped}, reverse=True):
        try:
            checkpoint = read(own[step]) if step in own else _of_group(folder, grouped[step])
            return Found(checkpoint, checkpoint.load(), wrong)
        except NewerFormat:
            raise
        except FolderError as error:
            wrong[own.get(step, folder / REFERENCE)] = str(error)
    if wrong:
        listed = "\n  ".join(wrong.values())
        raise FolderError(
            f"no checkpoint in {folder} can be read:\n  {listed}\n"
            f"restore one, or move {folder} away to train from the start"
        )
    return None


def set_aside(paths: Iterable[Path]) -> None:
    """Rename damaged checkpoints, so that they are neither used nor lost."""
    for path in paths:
        aside = path.with_name(ASIDE if path.name == REFERENCE else f"damaged-{path.name}")
        durable.discard(aside) if aside.exists() else None
        path.rename(aside)


def prune_checkpoints(folder: Path, keep: Keep) -> None:
    """Remove all but the last and the best checkpoints, and leftovers of crashes. Other files stay."""
    if len(_list_own(folder)[0]) > keep.last:  # else all of them are kept, whatever their metrics
        found = checkpoints(folder)
        kept = {c.path for c in keep.select(found)}
        for path in sorted(c.path for c in found if c.path not in kept and c.grouped is None):
            durable.discard(path)
    discard_unfinished(folder)


def discard_unfinished(folder: Path) -> None:
    """Remove what a killed process has begun to write into a folder of checkpoints."""
    begun = (f".{NAME}", f".{REFERENCE}")
    for name in sorted(name for name in os.listdir(folder) if name.startswith(begun)):  # noqa: PTH208
        durable.discard(folder / name)
