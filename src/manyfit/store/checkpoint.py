"""Checkpoints: a folder with a manifest and safetensors, committed by one rename.

The last and the best checkpoint follow from the manifests, never from file times. A checkpoint is damaged,
and ignored, if its manifest cannot be read or its tensors do not match their checksums.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from manyfit.core.errors import FolderError, RunFailed
from manyfit.core.files import read_bytes
from manyfit.core.json_numbers import from_json, to_json
from manyfit.core.redaction import has_secrets, holds_value, redact_nested, without_values
from manyfit.core.state import State
from manyfit.store import durable
from manyfit.store.files import read_json, readable

FORMAT = 2
READABLE = (1, 2)
MANIFEST: Final[Mapping[str, type]] = {
    "format": int,
    "step": int,
    "epoch": float,
    "metrics": dict,
    "log_length": int,
    "values": dict,
    "files": dict,
}


class NewerFormat(FolderError):
    """A checkpoint that a newer version has written: it is not damaged, and must not be overwritten."""


@dataclass(frozen=True, slots=True)
class Note:
    """The contents of a manifest besides the state."""

    step: int
    epoch: float
    metrics: Mapping[str, float]
    log_length: int
    measured: bool = True
    """Whether everything due at this step (a row of the log, validation) has been done."""
    position: Mapping[str, Any] = field(default_factory=dict)
    """The position of the next batch in the data."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The model's import path and arguments."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint, by its manifest."""

    path: Path
    note: Note
    values: Mapping[str, Any]
    files: Mapping[str, str]

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

    def load(self) -> State:
        """Read the tensors, after verifying their checksums."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            data = {name: read_bytes(self.path / name) for name in self.files}
        except OSError as error:
            raise FolderError(f"the checkpoint {self.path} cannot be read: {error}") from error
        for name, digest in self.files.items():
            if hashlib.sha256(data[name]).hexdigest() != digest:
                raise FolderError(
                    f"the checkpoint {self.path} is damaged: {name} does not match its checksum"
                )
        try:
            return State(load(data["state.safetensors"]), self.values)
        except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
            raise FolderError(f"the checkpoint {self.path} is damaged: {error!r}") from error


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
    final = folder / f"step-{note.step:09d}"
    temporary = folder / f".{final.name}.tmp"
    try:
        temporary.mkdir()
    except FileNotFoundError:
        temporary.parent.mkdir(exist_ok=True)
        temporary.mkdir()
    except FileExistsError:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    data = serialize(dict(state.tensors))
    if holds_value(data):
        raise RunFailed(
            "a tensor of the model or its optimizer holds a secret, which a checkpoint would store"
        )
    files = {"state.safetensors": hashlib.sha256(data).hexdigest()}
    manifest = {
        "format": FORMAT,
        "step": note.step,
        "epoch": note.epoch,
        "measured": note.measured,
        "position": note.position,
        "metrics": to_json(note.metrics),
        "log_length": note.log_length,
        "model": redact_nested(note.model),
        "files": files,
        "values": state.values,
    }
    text = json.dumps(manifest, allow_nan=False)
    signed = {**manifest, "digest": hashlib.sha256(_canonical(json.loads(text))).hexdigest()}
    durable.write_new_all(
        {temporary / "state.safetensors": data, temporary / "manifest.json": readable(signed).encode()}
    )
    if sync is not None:
        sync()
    durable.commit_folder(temporary, final)
    return Checkpoint(final, note, state.values, files)


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all committed checkpoints with readable manifests, the oldest first."""
    found = []
    for path in list_committed(folder):
        try:
            found.append(read(path))
        except FolderError:  # `find_damaged` reports these
            continue
    return sorted(found, key=lambda c: c.step)


def find_damaged(folder: Path) -> dict[Path, str]:
    """Return the checkpoints whose manifests cannot be read, with the reasons."""
    found = {}
    for path in list_committed(folder):
        try:
            read(path)
        except FolderError as error:
            found[path] = str(error)
    return found


def list_committed(folder: Path) -> Iterator[Path]:
    """Yield every folder that was committed as a checkpoint, the oldest first."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("step-") and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return
    steps = {int(number): name for name in names if (number := name.removeprefix("step-")).isdecimal()}
    yield from (folder / steps[step] for step in sorted(steps))


def read(path: Path) -> Checkpoint:
    """Read one manifest."""
    file = path / "manifest.json"
    if not file.is_file():
        raise FolderError(f"the checkpoint {path} is damaged: it has no manifest.json")
    manifest = read_json(file, MANIFEST)
    if manifest["format"] not in READABLE:
        raise NewerFormat(
            f"the checkpoint {path} has format {manifest['format']}, but this version reads {READABLE}; "
            "use a newer version of manyfit"
        )
    if manifest["format"] > 1:
        given = manifest.pop("digest", None)
        if given != hashlib.sha256(_canonical(manifest)).hexdigest():
            raise FolderError(f"{file} is damaged: it does not match its checksum")
    if any(Path(name).name != name for name in manifest["files"]):
        raise FolderError(f"{file} is damaged: it names files outside of its folder")
    try:
        note = Note(
            manifest["step"], manifest["epoch"], from_json(manifest["metrics"]), manifest["log_length"],
            manifest.get("measured", True), manifest.get("position", {}), manifest.get("model", {}),
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise FolderError(f"{file} is damaged: {error}") from error
    return Checkpoint(path, note, manifest["values"], manifest["files"])


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
    wrong: dict[Path, str] = {}
    for path in reversed(list(list_committed(folder))):
        try:
            checkpoint = read(path)
            return Found(checkpoint, checkpoint.load(), wrong)
        except NewerFormat:
            raise
        except FolderError as error:
            wrong[path] = str(error)
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
        aside = path.with_name(f"damaged-{path.name}")
        durable.discard(aside) if aside.exists() else None
        path.rename(aside)


def prune_checkpoints(folder: Path, keep: Keep) -> None:
    """Remove all but the last and the best checkpoints, and leftovers of crashes. Other files stay."""
    if len(list(list_committed(folder))) > keep.last:  # else all of them are kept, whatever their metrics
        found = checkpoints(folder)
        kept = {c.path for c in keep.select(found)}
        for path in sorted(c.path for c in found if c.path not in kept):
            durable.discard(path)
    for name in sorted(name for name in os.listdir(folder) if name.startswith(".step-")):  # noqa: PTH208
        durable.discard(folder / name)


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
