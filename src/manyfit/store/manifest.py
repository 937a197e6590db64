"""The manifest of a checkpoint: everything about it besides its tensors, with a checksum of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import FolderError
from manyfit.core.json_numbers import from_json, to_json
from manyfit.core.redaction import redact_nested

FORMAT: Final = 2
READABLE: Final = (1, 2)
FIELDS: Final[Mapping[str, type]] = {
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
class Manifest:
    """A note, the values of the state, and the checksums of the files with its tensors."""

    note: Note
    values: Mapping[str, Any]
    files: Mapping[str, str]

    def sign(self, **more: Any) -> dict[str, Any]:
        """Return it as JSON with its checksum; `more` is covered by it as well."""
        note = self.note
        tree = {
            "format": FORMAT,
            "step": note.step,
            "epoch": note.epoch,
            "measured": note.measured,
            "position": note.position,
            "metrics": to_json(note.metrics),
            "log_length": note.log_length,
            "model": redact_nested(note.model),
            "files": self.files,
            "values": self.values,
            **more,
        }
        text = json.dumps(tree, allow_nan=False)
        return {**tree, "digest": _digest(json.loads(text))}

    @staticmethod
    def parse(tree: dict[str, Any], file: Path) -> Manifest:
        """Parse the JSON of a manifest, and check it; `file` is named in errors."""
        if tree["format"] not in READABLE:
            raise NewerFormat(
                f"the checkpoint {file.parent} has format {tree['format']}, "
                f"but this version reads {READABLE}; use a newer version of manyfit"
            )
        if tree["format"] > 1:
            given = tree.pop("digest", None)
            if given != _digest(tree):
                raise FolderError(f"{file} is damaged: it does not match its checksum")
        if any(Path(name).name != name for name in tree["files"]):
            raise FolderError(f"{file} is damaged: it names files outside of its folder")
        try:
            note = Note(
                tree["step"], tree["epoch"], from_json(tree["metrics"]), tree["log_length"],
                tree.get("measured", True), tree.get("position", {}), tree.get("model", {}),
            )  # fmt: skip
        except (ValueError, TypeError) as error:
            raise FolderError(f"{file} is damaged: {error}") from error
        return Manifest(note, tree["values"], tree["files"])


def _digest(tree: Mapping[str, Any]) -> str:
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
