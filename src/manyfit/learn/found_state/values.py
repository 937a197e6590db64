"""Plain values in a checkpoint: numbers, text, tensors, arrays, and the usual containers of them."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

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
        return {"tensor": value.detach()}
    if isinstance(value, np.ndarray):
        return _encode_array(value)
    if isinstance(value, np.generic):
        return {"scalar": _encode_array(np.asarray(value))}
    if isinstance(value, enum.Enum):
        return {"enum": value.name}
    if kind in (bytes, complex):
        return {kind.__name__: value.hex() if kind is bytes else [value.real, value.imag]}
    if kind in (list, tuple):
        return {kind.__name__: [encode_value(item, depth + 1) for item in value]}
    if isinstance(value, deque):
        return {"deque": [encode_value(item, depth + 1) for item in value], "most": value.maxlen}
    if kind in (set, frozenset):
        return {kind.__name__: sorted((encode_value(item, depth + 1) for item in value), key=repr)}
    if isinstance(value, dict):
        items = [[encode_value(key, depth + 1), encode_value(item, depth + 1)] for key, item in value.items()]
        return {"dict": items}
    raise NotPlain(f"a {kind.__name__}")


def _encode_array(array: Any) -> Any:
    if array.dtype.hasobject:
        raise NotPlain("an array of objects")
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), dtype=np.uint8).copy()
    return {"array": torch.from_numpy(data), "dtype": array.dtype.str, "shape": list(array.shape)}


def decode_value(coded: Any, like: Any = None) -> Any:
    """Return the value that `encode` was given. `like` is a value of the same type, where one is needed."""
    if not isinstance(coded, dict):
        return coded
    kind, inner = next(iter(coded.items()))
    if kind == "tensor":
        return inner.clone() if not isinstance(like, Tensor) else inner.to(like.device, copy=True)
    if kind == "array":
        data = inner.numpy().tobytes()
        return np.frombuffer(data, dtype=np.dtype(coded["dtype"])).reshape(coded["shape"]).copy()
    if kind == "scalar":
        return decode_value(inner)[()]
    if kind == "enum":
        return type(like)[inner]
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "complex":
        return complex(*inner)
    if kind == "deque":
        return deque((decode_value(item) for item in inner), coded["most"])
    if kind == "dict":
        return {decode_value(key): decode_value(item) for key, item in inner}
    made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    return made(decode_value(item) for item in inner)


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
