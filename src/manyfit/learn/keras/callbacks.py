"""Keras callbacks in a run: called as `fit` would call them, with their state in checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

EMPTY: Final[Mapping[str, Any]] = {}
OF_BATCHES: Final = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
OURS: Final = ("params", "model", "_model")


class Callbacks:
    """Callbacks, and the attributes that they have changed since training began.

    Only these attributes are stored: settings such as a patience may differ when the run is resumed.
    """

    def __init__(self, keras: Any, given: Iterable[Any], model: Any, epochs: int, steps: int) -> None:
        self._given = list(flatten_callbacks(given))
        self._model = model
        self._list: Any = None
        self._kind = keras.callbacks.CallbackList
        self._options = {"model": model, "epochs": epochs, "steps": steps, "verbose": 0}
        self._at_first: list[dict[str, Any]] = []
        self._loaded: Mapping[str, Any] = EMPTY
        self.sees_batches = any(_is_own(c, name) for c in self._given for name in OF_BATCHES)

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has requested that training stop."""
        return bool(getattr(self._model, "stop_training", False))

    def begin(self) -> Any:
        """Return the callback list; the first call runs `on_train_begin` and restores loaded state."""
        if self._list is None:
            self._list = self._kind(self._given, **self._options)
            self._model.stop_training = False
            self._list.on_train_begin()
            self._at_first = [_state(callback) for callback in self._given]
            for callback, key in zip(self._given, self._keys(), strict=True):
                for name, value in self._loaded.get(key, EMPTY).items():
                    setattr(callback, name, _numpy_of(value))
        return self._list

    def begun(self) -> Any:
        """Return the callback list if training has begun, else None."""
        return self._list

    def state(self) -> Mapping[str, Any]:
        """Return the changed attributes of each callback, by position and class name."""
        if self._list is None:
            return self._loaded
        return {
            key: {n: v for n, v in _state(callback).items() if n not in first or not _same(v, first[n])}
            for callback, key, first in zip(self._given, self._keys(), self._at_first, strict=True)
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state; it is restored when training begins."""
        self._loaded, self._list = state, None

    def _keys(self) -> list[str]:
        return [f"{i}/{type(callback).__name__}" for i, callback in enumerate(self._given)]


def flatten_callbacks(given: Iterable[Any]) -> Iterable[Any]:
    """Yield all callbacks of nested lists."""
    for each in given:
        yield from flatten_callbacks(each) if isinstance(each, list | tuple) else [each]


def _is_own(callback: Any, method: str) -> bool:
    """Return whether a callback overrides a method; Keras marks those of its base class."""
    return not getattr(getattr(callback, method), "_is_default", False)


def _state(callback: Any) -> dict[str, Any]:
    """Return the attributes that can be stored: numbers, strings, arrays, and lists and dicts of them."""
    own = {name: value for name, value in vars(callback).items() if name not in OURS}
    # Parameters of Keras' own callbacks are settings, not state, though Keras changes some of them at start.
    set_ = {
        name
        for base in type(callback).__mro__
        if base.__module__.partition(".")[0] == "keras" and "__init__" in vars(base)
        for name in inspect.signature(base).parameters
    }
    found = {name: value for name, value in own.items() if name not in set_}
    return {name: _storable(value) for name, value in found.items() if _is_storable(value)}


def _is_storable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_storable(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_storable(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str | np.number | np.ndarray)


def _storable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    return value.item() if isinstance(value, np.number) else value


def _numpy_of(value: Any) -> Any:
    if isinstance(value, list):
        return [_numpy_of(item) for item in value]
    if isinstance(value, dict):
        return {key: _numpy_of(item) for key, item in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
    return type(left) is type(right) and bool(left == right)


def expand_logs(logs: Mapping[str, Any], numpy: Any) -> dict[str, float]:
    """Return logs as numbers; a metric with several values becomes several entries."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        array: Sequence[float] = np.asarray(numpy(value), dtype=np.float64).reshape(-1).tolist()
        if len(array) == 1:
            found[name] = array[0]
        else:
            found |= {f"{name}_{i}": number for i, number in enumerate(array)}
    return found
