"""Evaluation on a worker that does not have the run folder: a copy travels, and the new files return."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from manyfit.config import Config
from manyfit.core.errors import FolderError
from manyfit.core.signals import Watch
from manyfit.run.build.shared_data import SharedData
from manyfit.run.loop.cohort import describe_model
from manyfit.run.trial import conclude_trial
from manyfit.store import durable
from manyfit.store.folder import RunFolder
from manyfit.store.group_folder import REFERENCE

LEFT: Final = ("tensorboard", "images", "texts")
"""Folders that stay: an evaluation does not read them."""
CARD: Final = "model.json"
EXPORTED: Final = "exported"
"""How the folders of exports begin."""


@dataclass(frozen=True)
class FolderCopy:
    """Files of a run folder, by their names relative to it."""

    files: Mapping[str, bytes]


def copy_folder(run: RunFolder) -> FolderCopy:
    """Return what an evaluation reads: the config, the log and the checkpoints."""
    files = {name: path.read_bytes() for name, path in _list_files(run.path, LEFT).items()}
    reference = f"{run.checkpoint_folder.name}/{REFERENCE}"
    if files.pop(reference, None) is not None:  # the copy has files of its own
        for found in run.checkpoints():
            if found.grouped is not None:
                files |= {
                    f"{run.checkpoint_folder.name}/{found.path.name}/{name}": data
                    for name, data in found.dump().items()
                }
    return FolderCopy(files)


def evaluate_copy(
    config: Config,
    copy: FolderCopy,
    watch: Watch,
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
) -> FolderCopy:
    """Export and evaluate a trained run from a copy of its folder; return the files that are new."""
    with tempfile.TemporaryDirectory(prefix="manyfit-") as place:
        run = RunFolder(Path(place) / "run")
        for name, data in copy.files.items():
            (run.path / name).parent.mkdir(parents=True, exist_ok=True)
            (run.path / name).write_bytes(data)
        before = {name: _digest(data) for name, data in copy.files.items()}
        conclude_trial(config, run, watch, allowed, shared)
        found = {name: path.read_bytes() for name, path in _list_files(run.path).items()}
        return FolderCopy({name: data for name, data in found.items() if before.get(name) != _digest(data)})


def take_files(config: Config, run: RunFolder, found: FolderCopy) -> None:
    """Write the files of an evaluation to the run folder; the summary, which makes it complete, is last."""
    files: dict[Path, bytes | str] = {}
    for name, data in found.files.items():
        path = run.path / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise FolderError(f"a worker returned a file that is not in {run.path}: {name}")
        is_card = path.name == CARD and name.startswith(EXPORTED)
        files[path] = _vouch(config, data) if is_card else data
    for folder in sorted({path.parent for path in files}):
        folder.mkdir(parents=True, exist_ok=True)
    last = [path for path in files if path.name == "summary.json"]
    durable.write_all({path: data for path, data in files.items() if path not in last})
    durable.write_all({path: files[path] for path in last})


def _vouch(config: Config, data: bytes) -> str:
    """Return the card of an exported model with the seal of this machine: that of a worker means nothing."""
    card = json.loads(data)
    return json.dumps({**card, "model": describe_model(config)}, indent=1) + "\n"


def _list_files(folder: Path, without: Collection[str] = ()) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not path.is_symlink() and parts[0] not in without and not is_hidden:
            found["/".join(parts)] = path
    return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
