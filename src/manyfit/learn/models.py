"""The model that `model:` in a config builds: a module, a compiled Keras model or an estimator."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from manyfit.config import Component
from manyfit.core.errors import ComponentFailed, ManyfitError, UsageError
from manyfit.core.redaction import redact
from manyfit.core.tracebacks import user_frame
from manyfit.data.randomness import seed_for

LIVE: ContextVar[Mapping[str, Any]] = ContextVar("live", default=MappingProxyType({}))
"""Objects of this process that a run uses instead of building them, by the keys of its config."""


@dataclass(frozen=True)
class Compiled:
    """A PyTorch module with its loss and optimizer, as `get_compiled_model` may return it.

    >>> Compiled(module, torch.nn.CrossEntropyLoss(), torch.optim.Adam(module.parameters()))  # doctest: +SKIP
    """

    module: Any
    loss: Callable[..., Any] | None = None
    optimizer: Any = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions of (output, target) of a batch that return one number per row."""


@dataclass(frozen=True)
class Made:
    """A model, with the training settings of its model builder."""

    model: Any
    callbacks: Sequence[Any] = ()
    class_weight: Mapping[int, float] | None = None
    compiled: Compiled | None = None
    builder: str = ""
    """The name of the model builder, if there is one."""


def make_model(component: Component) -> Made:
    """Build the model, directly or through a model builder."""
    from manyfit.learn.kind import is_claimed, kinds  # kind.py imports this module

    found = component.build()
    if not hasattr(found, "get_compiled_model"):
        return Made(found)
    model = _call_builder(component, found, "get_compiled_model")
    compiled = model if isinstance(model, Compiled) else None
    model = compiled.module if compiled is not None else model
    made = Made(
        model,
        _check_callbacks(component, found, _call_builder(component, found, "get_callbacks")),
        _class_weight(component, found),
        compiled,
        type(found).__name__,
    )
    if isinstance(model, type) or not any(is_claimed(kind, model) for kind in kinds()):
        raise UsageError(
            f"{component.origin}: {type(found).__name__}.get_compiled_model must return a compiled "
            f"keras.Model, a torch.nn.Module, manyfit.pipeline.Compiled or an estimator, not {model!r:.60}"
        )
    return made


def build_seeded(seed: int, build: Callable[[], Any]) -> Any:
    """Build an object with seeded random generators; again, if it has imported modules meanwhile.

    An import may draw random numbers, but only the first time in a process.
    """
    for _ in range(2):
        before = len(sys.modules)
        seed_everything(seed)
        made = build()
        if len(sys.modules) == before:
            break
    return made


def seed_everything(seed: int) -> None:
    """Seed every global generator that user code may use while it is built."""
    import torch

    seed_for(seed)
    if has_accelerator():
        torch.manual_seed(seed)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(seed & 0x7FFF_FFFF)


@functools.cache
def has_accelerator() -> bool:
    """Return whether there are generators of accelerators. Seeding missing ones is slow and never freed."""
    import torch

    return torch.accelerator.is_available()


def _class_weight(component: Component, builder: Any) -> dict[int, float] | None:
    """Return the class weights; keys from YAML may be strings and are converted to integers."""
    given = _call_builder(component, builder, "get_class_weight")
    if not given:
        return None
    try:
        return {int(key): float(weight) for key, weight in dict(given).items()}
    except (TypeError, ValueError) as error:
        name = f"{component.origin}: {type(builder).__name__}.get_class_weight"
        raise UsageError(f"{name} must return a number for each class, not {given!r:.80}") from error


def _check_callbacks(component: Component, builder: Any, found: Any) -> list[Any]:
    """Return the callbacks of a builder, after checking that they are a list."""
    if found is None or isinstance(found, list | tuple):
        return list(found or ())
    name = f"{type(builder).__name__}.get_callbacks"
    raise UsageError(
        f"{component.origin}: {name} must return a list of callbacks, not a {type(found).__name__}"
    )


def _call_builder(component: Component, builder: Any, method: str) -> Any:
    try:
        return getattr(builder, method)()
    except ManyfitError:
        raise
    except Exception as error:
        text = (
            f"{component.origin}: {type(builder).__name__}.{method} failed: {type(error).__name__}: {error}"
        )
        raise ComponentFailed(redact(f"{text}\n  at {user_frame(error)}")) from error
