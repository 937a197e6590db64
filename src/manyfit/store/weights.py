"""The weights of a model, from a run, a checkpoint, an export or a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyfit.core.errors import FolderError
from manyfit.core.files import read_bytes
from manyfit.store import checkpoint
from manyfit.store.checkpoint import Checkpoint
from manyfit.store.folder import RunFolder


def read_weights(place: Path) -> dict[str, Any]:
    """Read weights by name; of a run, those of its best checkpoint, averaged if it averages. Runs no code."""
    if place.is_file():
        return read_tensors(place)
    if (place / "model.safetensors").is_file():
        return read_tensors(place / "model.safetensors")
    if checkpoint.is_checkpoint(place):
        return weights_of(checkpoint.read(place))
    if (place / "config.resolved.yaml").is_file():
        return weights_of(RunFolder(place).checkpoint("best"))
    raise FolderError(
        f"{place} holds no weights: it is not a run, a checkpoint, an export or a safetensors file"
    )


def weights_of(found: Checkpoint) -> dict[str, Any]:
    """Return the weights in a checkpoint: the average, if there is one, else those of the model."""
    state = found.load()
    if any(name.startswith("average/module.") for name in state.tensors):
        return _under(state.tensors, "average/module.")
    return _under(state.tensors, "model/")


def read_tensors(file: Path) -> dict[str, Any]:
    """Read the tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(read_bytes(file)))
    except OSError as error:
        raise FolderError(f"{file} cannot be read: {error.strerror}") from error
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise FolderError(f"{file} is not a valid safetensors file: {error}") from error


def _under(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
