"""Descriptions of annotations and roles for messages."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal

from manyfit.config.typed.cadence import PATTERN, SEVERAL
from manyfit.config.typed.roles import Role
from manyfit.core.names import listing

MISPLACED: Final = {
    **{key: f"train.optimizer.{key}" for key in ("lr", "weight_decay", "momentum", "betas")},
    **{key: f"train.every.{key}" for key in ("validate", "checkpoint", "log")},
    "learning_rate": "train.optimizer.lr",
    "max_epochs": "train.epochs",
    "batch_size": "data.batch_size",
    "workers": "data.workers",
    "num_workers": "data.workers",
    "patience": "train.stop.patience",
    "early_stopping": "train.stop",
    "gradient_clip_val": "train.clip_norm",
    "accumulate_grad_batches": "train.accumulate",
    "gpus": "train.device",
}
"""The right place of keys that are often written at the top level or in `train`."""

SEQUENCES: Final = {
    list,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.MutableSequence,
}
SETS: Final = {set, frozenset, collections.abc.Set}
MAPPINGS: Final = {
    dict,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
    collections.OrderedDict,
}
PATTERNS: Final = {
    PATTERN: "an interval such as 3ep, 0.5ep, 500ba or 90s (epochs, batches or seconds)",
    SEVERAL: "auto, validation, or an interval such as 3ep, 0.5ep, 500ba or 90s (epochs, batches or "
    "seconds); or several: 100ba, 600s",
}
SCALARS: Final = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    None: "null",
}


def expectation(annotation: Any) -> str:
    """Describe what an annotation accepts."""
    if annotation is Any:
        return "any value"
    if annotation is None or (inspect.isclass(annotation) and annotation in SCALARS):
        return SCALARS[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        role = next((mark for mark in annotation.__metadata__ if isinstance(mark, Role)), None)
        return role.wanted + short_names(role) if role else expectation(args[0])
    if origin in (typing.Union, types.UnionType):
        return expectation_of_any(args)
    if origin is Literal:
        return f"one of {listing(map(repr, args))}"
    if origin is tuple or origin in SEQUENCES or origin in SETS:
        inner = [expectation(option) for option in args if option is not Ellipsis]
        return f"a list of {', '.join(inner)}" if inner else "a list"
    if origin in MAPPINGS or annotation in MAPPINGS:
        return "a mapping"
    if annotation in SEQUENCES or annotation in SETS or annotation is tuple:
        return "a list"
    if inspect.isclass(annotation):
        return expectation_of_class(annotation)
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def expectation_of_class(wanted: type) -> str:
    """Describe what a class accepts."""
    if issubclass(wanted, Enum):
        return f"one of {listing(wanted.__members__)}"
    article = "an" if wanted.__qualname__[0] in "AEIOU" else "a"
    return "a path" if issubclass(wanted, Path) else f"{article} {wanted.__qualname__}"


def expectation_of_any(options: Iterable[Any]) -> str:
    """Describe a choice of annotations."""
    return " or ".join(dict.fromkeys(expectation(option) for option in options))


def short_names(role: Role) -> str:
    """Return the short names of a role as the end of a sentence."""
    return f", or one of {listing(sorted(role.short))}" if role.short else ""
