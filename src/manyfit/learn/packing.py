"""Conversion of nested state, as `state_dict` returns it, to named tensors and JSON, and back.

safetensors stores tensors by name, and JSON has neither tuples nor numeric keys, so both are encoded
explicitly. No code is stored: unpacking creates only dicts, lists, tuples, scalars and tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyfit.core.errors import FolderError, RunFailed
from manyfit.core.state import State


def pack(parts: Mapping[str, Any]) -> State:
    """Split nested state into tensors and plain values. The tensors are not copied."""
    tensors: dict[str, Tensor] = {}
    return State(tensors, {name: _pack(part, name, tensors) for name, part in parts.items()})


def unpack(state: State) -> dict[str, Any]:
    """Reassemble nested state."""
    try:
        return {name: _unpack(value, state.tensors) for name, value in state.values.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FolderError(f"the state of a checkpoint was not written by manyfit: {error!r:.200}") from error


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise RunFailed(f"the state at {path!r} is a sparse tensor, which a checkpoint cannot hold")
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, Mapping):
        return {
            "dict": [[_key(key, path), _pack(item, f"{path}/{key}", tensors)] for key, item in value.items()]
        }
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    raise RunFailed(
        f"the state at {path!r} holds a {type(value).__name__}, which a checkpoint cannot hold: "
        "only tensors, numbers, strings, lists, tuples and dicts"
    )


def _key(key: Any, path: str) -> Any:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise RunFailed(f"the state at {path!r} has the key {key!r}; keys must be strings or integers")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return torch.clone(tensors[inner])
    if kind == "float":
        return float.fromhex(inner)
    if kind == "tuple":
        return tuple(_unpack(item, tensors) for item in inner)
    return {key: _unpack(item, tensors) for key, item in inner}
