"""The parameters of a trainer: capture, checks, and where a config sets them."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

from manyfit.config.typed.keyword_reads import find_reads
from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest

NAMES: Final = ("LOAD_FAST", "LOAD_DEREF", "STORE_FAST_LOAD_FAST")
"""How the names of instructions begin that load a local variable."""
ELSEWHERE: Final[Mapping[str, str]] = {
    "train_dataset": "data", "val_dataset": "data", "test_dataset": "data",
    "train_loader": "data", "val_loader": "data", "test_loader": "data",
    "num_epochs": "train.epochs", "start_epoch": "nothing: a run goes on where it was",
    "batch_size": "data.batch_size", "val_batch_size": "evaluate.batch_size",
    "test_batch_size": "evaluate.batch_size", "shuffle": "data", "num_workers": "data", "drop_last": "data",
    "loss_function": "train.loss", "optim_function": "train.optimizer",
    "learning_rate": "train.optimizer.lr", "momentum": "train.optimizer.momentum",
    "weight_decay": "train.optimizer.weight_decay", "metrics": "train.metrics",
    "scheduler": "train.scheduler", "precision": "train.precision", "accumulate": "train.accumulate",
    "clip_norm": "train.clip_norm", "device": "train.device", "device_id": "train.device", "seed": "seed",
    "save_every": "train.every.checkpoint", "print_every": "train.every.log", "save_best": "export",
    "stop_when_acc": "train.stop", "early_stop": "train.stop", "folder": "the run folder",
    "checkpoint_dir": "the run folder", "checkpoint_name": "the run folder", "verbose": "--quiet, -v",
}  # fmt: skip
"""The parameters of a trainer in Python that have a place of their own in a config."""


def own_classes(cls: type) -> Iterator[type]:
    """Yield the classes of the user, from a subclass of `Trainer` up to it."""
    for base in cls.__mro__:
        if base.__module__.startswith("manyfit."):
            return
        yield base


def functions_in(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions that the user's classes define."""
    for base in own_classes(cls):
        for value in vars(base).values():
            function = inspect.unwrap(value) if inspect.isroutine(value) else value
            function = getattr(value, "fget", None) or function
            if isinstance(function, types.FunctionType):
                yield function


def named_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the parameters that the user's `__init__` methods name."""
    found: dict[str, inspect.Parameter] = {}
    for base in own_classes(cls):
        init = vars(base).get("__init__")
        if isinstance(init, types.FunctionType):
            for parameter in list(inspect.signature(init).parameters.values())[1:]:
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                    found.setdefault(parameter.name, parameter)
    return found


def read_keywords(cls: type) -> set[str]:
    """Return the names that the user's `__init__` methods read from `**kwargs`, as `kwargs.pop("name")`."""
    inits = [vars(base).get("__init__") for base in own_classes(cls)]
    return {name for init in inits if isinstance(init, types.FunctionType) for name in find_reads(init)}


def supplied_parameters(cls: type) -> tuple[str, ...]:
    """Return the parameters that manyfit supplies in a run with a config, rather than the config."""
    own = {*named_parameters(cls), *read_keywords(cls)} - {"model"}
    return ("model", *(name for name in ELSEWHERE if name not in own))


def bind_arguments(
    cls: type, known: Mapping[str, Any], args: Any, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a trainer by name; unknown ones are errors with the nearest name."""
    own = named_parameters(cls)
    names: list[str] = []
    is_open = True
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if isinstance(init, types.FunctionType) and is_open:
            parameters = list(inspect.signature(init).parameters.values())[1:]
            names += [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(args) > len(names):
        raise UsageError(f"{cls.__name__} accepts {len(names)} positional arguments, but got {len(args)}")
    found = {**dict(zip(names, args, strict=False)), **kwargs}
    allowed = {*known, *names, *own, *read_keywords(cls)}
    for name in found:
        if name not in allowed:
            best = nearest(name, allowed)
            hint = f"did you mean {best!r}?" if best else f"there are {listing(sorted(allowed))}"
            raise UsageError(f"{cls.__name__} has no parameter {name!r}; {hint}")
    return found


def find_unread(cls: type, given: Mapping[str, Any] | Any) -> list[str]:
    """Return the given parameters that no code of the user's classes reads."""
    named = named_parameters(cls)
    used: set[str] = set()
    for function in functions_in(cls):
        used |= set(_names_in(function.__code__, is_init=function.__name__ == "__init__"))
    return [name for name in given if name in named and name not in used and name != "model"]


def iterate_self_attributes(code: types.CodeType) -> Iterator[str]:
    """Yield the attributes of `self` that the code of a method, or a function in it, reads."""
    before: Any = ""
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and before == "self":
            yield str(each.argval)
        before = each.argval if each.opname.startswith(NAMES) else ""
        before = before[-1] if isinstance(before, tuple) else before  # two names in one instruction
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from iterate_self_attributes(inner)


def _names_in(code: types.CodeType, is_init: bool) -> Iterator[str]:
    """Yield the attributes, text constants and, in `__init__`, the arguments that code reads."""
    yield from code.co_names
    yield from (each for each in code.co_consts if isinstance(each, str))
    if is_init:
        yield from (i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD") and i.argval)
        for each in dis.get_instructions(code):
            if isinstance(each.argval, tuple):  # two variables in one instruction
                yield from each.argval
        if not any(i.opname.startswith("LOAD_FAST") for i in dis.get_instructions(code)):
            # Only a docstring: every argument is an attribute.
            return
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner, is_init)
