"""Checkpoints: a folder with a manifest and safetensors, committed by one rename.

Which one is the last and which the best follows from the manifests, never from file times.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from manyfit.core.errors import FolderError
from manyfit.core.numbers import as_json, from_json
from manyfit.core.state import State
from manyfit.store import durable
from manyfit.store.files import read_json

FORMAT = 1
MANIFEST: Final[Mapping[str, type]] = {
    "format": int,
    "step": int,
    "epoch": float,
    "metrics": dict,
    "log_length": int,
    "values": dict,
    "files": dict,
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint, by its manifest."""

    path: Path
    step: int
    epoch: float
    metrics: Mapping[str, float]
    log_length: int
    values: Mapping[str, Any]
    files: Mapping[str, str]

    def load(self) -> State:
        """Read the tensors, after checking that they are what was written."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            data = {name: (self.path / name).read_bytes() for name in self.files}
        except OSError as error:
            raise FolderError(f"the checkpoint {self.path} cannot be read: {error}") from error
        for name, digest in self.files.items():
            if hashlib.sha256(data[name]).hexdigest() != digest:
                raise FolderError(f"the checkpoint {self.path} is damaged: {name} is not what was written")
        try:
            return State(load(data["state.safetensors"]), self.values)
        except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
            raise FolderError(f"the checkpoint {self.path} is damaged: {error!r}") from error


def save(
    folder: Path, state: State, step: int, epoch: float, metrics: Mapping[str, float], log_length: int
) -> Checkpoint:
    """Write a checkpoint next to its final place and commit it by one rename."""
    from safetensors.torch import save as serialize

    final = folder / f"step-{step:09d}"
    temporary = folder / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    data = serialize(dict(state.tensors))
    durable.write(temporary / "state.safetensors", data)
    files = {"state.safetensors": hashlib.sha256(data).hexdigest()}
    manifest = {
        "format": FORMAT,
        "step": step,
        "epoch": epoch,
        "metrics": as_json(metrics),
        "log_length": log_length,
        "files": files,
        "values": state.values,
    }
    durable.write(temporary / "manifest.json", json.dumps(manifest, indent=1, allow_nan=False))
    durable.commit_folder(temporary, final)
    return Checkpoint(final, step, epoch, metrics, log_length, state.values, files)


def checkpoints(folder: Path) -> list[Checkpoint]:
    """All committed checkpoints, the oldest first."""
    return sorted(
        (read(path) for path in folder.glob("step-*") if (path / "manifest.json").is_file()),
        key=lambda c: c.step,
    )


def read(path: Path) -> Checkpoint:
    """Read one manifest."""
    file = path / "manifest.json"
    manifest = read_json(file, MANIFEST)
    if manifest["format"] != FORMAT:
        raise FolderError(
            f"the checkpoint {path} has format {manifest['format']}; this version reads {FORMAT}"
        )
    try:
        metrics = from_json(manifest["metrics"])
    except (ValueError, TypeError) as error:
        raise FolderError(f"{file} is damaged: {error}") from error
    return Checkpoint(
        path, manifest["step"], manifest["epoch"], metrics, manifest["log_length"], manifest["values"],
        manifest["files"],
    )  # fmt: skip


def best(found: Iterable[Checkpoint], metric: str, mode: Literal["min", "max"]) -> Checkpoint | None:
    """The checkpoint with the best value of a metric; the earlier one of equals. None if none has it."""
    sign = 1 if mode == "min" else -1
    scored = [c for c in found if math.isfinite(c.metrics.get(metric, math.nan))]
    return min(scored, key=lambda c: (sign * c.metrics[metric], c.step), default=None)


def prune(folder: Path, metric: str, mode: Literal["min", "max"]) -> None:
    """Keep the last and the best checkpoint, and sweep up what a crash left behind."""
    found = checkpoints(folder)
    keep = {c.path for c in (*found[-1:], best(found, metric, mode)) if c is not None}
    for entry in folder.iterdir():
        if entry not in keep:
            shutil.rmtree(entry, ignore_errors=True)
