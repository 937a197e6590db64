"""Plain values in a checkpoint: numbers, text, tensors, arrays, and the usual containers of them."""

from __future__ import annotations

import enum
import io
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

LONG: Final = 64
"""Lists of more numbers than this are stored as a tensor."""
FACTORIES: Final = {"list": list, "dict": dict, "set": set, "int": int, "float": float, "deque": deque}
"""What the values of a `defaultdict` may be made by."""
DEEP: Final = 50
"""How deeply containers may be nested; more is taken as a container that contains itself."""


class NotPlain(Exception):
    """A value that a checkpoint cannot hold."""


def encode_value(value: Any, depth: int = 0) -> Any:
    """Return a value as scalars, lists, dicts and tensors; the tensors are not copy_tensors."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > DEEP:
        raise NotPlain("a container that contains itself")
    kind = type(value)
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise NotPlain("a tensor that is not strided")
        if depth and value.requires_grad and value.is_leaf:
            raise NotPlain("a tensor that is trained")
        place = {} if value.device.type == "cpu" else {"on": value.device.type}
        return {"tensor": value.detach(), **place}
    if isinstance(value, np.ndarray):
        return _encode_array(value)
    if isinstance(value, np.generic):
        return {"scalar": _encode_array(np.asarray(value))}
    if isinstance(value, enum.Enum):
        if depth:
            raise NotPlain("a member of an enum")
        return {"enum": value.name}
    if kind in (bytes, complex):
        return {kind.__name__: value.hex() if kind is bytes else [value.real, value.imag]}
    if kind is list and len(value) > LONG and {type(item) for item in value} == {float}:
        return {"floats": torch.tensor(value, dtype=torch.float64)}
    if kind is list or isinstance(value, tuple):
        name = "list" if kind is list else "tuple"
        return {name: [encode_value(item, depth + 1) for item in value]}
    if isinstance(value, deque):
        return {"deque": [encode_value(item, depth + 1) for item in value], "most": value.maxlen}
    if kind in (set, frozenset):
        return {kind.__name__: sorted((encode_value(item, depth + 1) for item in value), key=repr)}
    if isinstance(value, dict):
        items = [[encode_value(key, depth + 1), encode_value(item, depth + 1)] for key, item in value.items()]
        return {"dict": items, **({"type": name} if (name := _dict_type(value, depth)) else {})}
    raise NotPlain(f"a {kind.__name__}")


def _dict_type(value: dict[Any, Any], depth: int) -> str:
    """Return which of the usual dicts a value is; empty for a plain one, or one that is filled in place."""
    if type(value) in (dict, OrderedDict, Counter):
        return type(value).__name__ if type(value) is not dict else ""
    if type(value) is defaultdict and value.default_factory in FACTORIES.values():
        return next(
            f"defaultdict:{name}" for name, made in FACTORIES.items() if made is value.default_factory
        )
    if depth:
        raise NotPlain(f"a {type(value).__name__}")
    return ""


def _encode_array(array: Any) -> Any:
    if array.dtype.hasobject:
        raise NotPlain("an array of objects")
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return {"array": torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)}


def decode_value(coded: Any, like: Any = None) -> Any:
    """Return the value that `encode` was given. `like` is a value of the same type, where one is needed."""
    if not isinstance(coded, dict):
        return coded
    kind, inner = next(iter(coded.items()))
    if kind == "tensor":
        return inner.to(like.device if isinstance(like, Tensor) else _find_place(coded, inner), copy=True)
    if kind == "array":
        return np.load(io.BytesIO(inner.cpu().numpy().tobytes()), allow_pickle=False)
    if kind == "floats":
        return inner.tolist()
    if kind == "scalar":
        return decode_value(inner)[()]
    if kind == "enum":
        if not isinstance(like, enum.Enum):
            raise NotPlain("a member of an enum")
        return type(like)[inner]
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "complex":
        return complex(*inner)
    if kind == "deque":
        return deque((decode_value(item) for item in inner), coded["most"])
    if kind == "dict":
        return _make_dict(
            coded.get("type", ""), {decode_value(key): decode_value(item) for key, item in inner}
        )
    if kind == "tuple" and type(like) is not tuple and isinstance(like, tuple):
        parts = [decode_value(item) for item in inner]
        return type(like)._make(parts) if hasattr(like, "_make") else type(like)(parts)
    made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    return made(decode_value(item) for item in inner)


def _find_place(coded: Mapping[str, Any], tensor: Tensor) -> torch.device:
    """Return where a tensor was, or where it is if this machine has no such device."""
    kind = str(coded.get("on", ""))
    has_cuda = kind == "cuda" and torch.cuda.is_available()
    has_mps = kind == "mps" and torch.backends.mps.is_available()
    return torch.device(kind) if has_cuda or has_mps else tensor.device


def _make_dict(name: str, items: dict[Any, Any]) -> dict[Any, Any]:
    if name.startswith("defaultdict:"):
        return defaultdict(FACTORIES[name.partition(":")[2]], items)
    if name == "Counter":
        return Counter(items)
    return OrderedDict(items) if name == "OrderedDict" else items


def copy_tensors(coded: Any) -> Any:
    """Return an encoded value with tensors of its own."""
    if isinstance(coded, Tensor):
        return coded.detach().clone()
    if isinstance(coded, dict):
        return {key: copy_tensors(item) for key, item in coded.items()}
    return [copy_tensors(item) for item in coded] if isinstance(coded, list) else coded


def is_same(left: Any, right: Any) -> bool:
    """Return whether two encoded values are the same, bit for bit."""
    if isinstance(left, Tensor):
        return (
            isinstance(right, Tensor)
            and left.shape == right.shape
            and left.dtype == right.dtype
            and left.device == right.device
            and bool(((left == right) | ((left != left) & (right != right))).all())
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def put(old: Any, new: Any) -> Any:
    """Return `new`, or `old` with the contents of `new` where others may refer to it."""
    if isinstance(old, Tensor) and isinstance(new, Tensor) and old.requires_grad and old.is_leaf:
        with torch.no_grad():
            if old.shape != new.shape or old.dtype != new.dtype:
                old.data = new.to(old.device)
            else:
                old.copy_(new)
        return old
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if old.shape == new.shape and old.dtype == new.dtype and old.flags.writeable:
            old[...] = new
            return old
        return new
    if isinstance(old, list) and type(new) is list:
        old[:] = new
    elif (isinstance(old, dict) and isinstance(new, Mapping)) or (
        isinstance(old, set) and isinstance(new, set)
    ):
        old.clear()
        old.update(new)
    elif isinstance(old, deque) and isinstance(new, deque) and old.maxlen == new.maxlen:
        old.clear()
        old.extend(new)
    else:
        return new
    return old
