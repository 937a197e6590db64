"""The user's code that a run has imported, and hashes of it that ignore comments."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from manyfit.config import Component, Config
from manyfit.core.code_hash import hash_code
from manyfit.core.installed import is_installed
from manyfit.core.source_code import hash_source, imports_of


def hash_imported(source: Path) -> dict[str, str]:
    """Return every module imported from a folder, with the hash of its syntax tree."""
    root = _root(source)
    state = (root, len(sys.modules), next(reversed(sys.modules), ""))
    if _last.get("state") != state:
        # Cached: there are thousands of modules, and a study asks for every trial.
        _last["state"], _last["files"] = state, _files(root)
    return {name: hash_source(file) for name, file in _last["files"].items()}


_last: dict[str, Any] = {}


@functools.lru_cache(maxsize=64)
def _root(source: Path) -> str:
    return f"{source.resolve()}{os.sep}"


def _files(root: str) -> dict[str, Path]:
    found = {}
    for name, module in sys.modules.copy().items():  # a thread may be importing
        file = getattr(module, "__file__", None)
        if file and file.startswith(root) and file.endswith(".py") and not is_installed(name, file):
            found[name] = Path(file)
    return dict(sorted(found.items()))


def evaluation_only(config: Config, source: Path) -> set[str]:
    """Return the user's modules that are used for evaluation only and cannot affect training."""
    run = config.run
    hash_imported(source)
    files: dict[str, Path] = _last["files"]
    evaluate = [run.evaluate.evaluator, *run.evaluate.functions.values()]
    trained = [run.data, run.model, run.trainer, *vars(run.train).values()]
    return _reach(_modules(evaluate), files) - _reach(_modules(trained), files)


def main_classes(config: Config) -> list[str]:
    """Return classes of the running script, which other processes cannot import."""
    return sorted({name for name in config.classes.values() if name.startswith("__main__.")})


def hash_main_classes(config: Config) -> dict[str, str]:
    """Return the classes of the running script that a run uses, with hashes of their code."""
    found = {}
    for path in main_classes(config):
        cls = functools.reduce(getattr, path.split(".")[1:], sys.modules["__main__"])
        found[path] = hash_code(cls, with_values=False)
    return found


def list_classes(config: Config) -> list[type]:
    """Return the classes of data, model, trainer and evaluator, and of their components."""
    run = config.run
    given = [run.data, run.model, run.trainer, run.evaluate.evaluator]
    found = [target for target in _targets(given) if isinstance(target, type)]
    return list(dict.fromkeys(found))


def misspelt(cls: type) -> Iterator[tuple[str, str]]:
    """Yield methods of a user's class with the similar name of a method that it does not override."""
    known: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("manyfit."):
            known |= {n: base for n, m in vars(base).items() if callable(m) and not n.startswith("_")}
        elif base.__module__ == "torch.nn.modules.module":
            known |= dict.fromkeys(("forward", "train_step", "configure_optimizers"), base)
    free = [n for n, base in known.items() if getattr(cls, n, None) is getattr(base, n, None)]
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("manyfit", "torch", "keras", "builtins", "abc"):
            continue
        own = [n for n, m in vars(base).items() if callable(m) and not n.startswith("_") and n not in known]
        for name in own:
            if near := difflib.get_close_matches(name, free, n=1, cutoff=0.88):
                yield name, near[0]


def _modules(values: Iterable[Any]) -> Iterator[str]:
    """Yield the modules of all classes and functions in some values."""
    for target in _targets(values):
        yield str(getattr(target, "__module__", ""))


def _targets(values: Iterable[Any]) -> Iterator[Any]:
    """Yield all classes and functions in some values."""
    for value in values:
        if isinstance(value, Component):
            yield value.target
            yield from _targets(value.params.values())
        elif isinstance(value, type):
            yield value
        elif isinstance(value, dict):
            yield from _targets(value.values())
        elif isinstance(value, list | tuple):
            yield from _targets(value)


def _reach(roots: Iterable[str], files: dict[str, Path]) -> set[str]:
    """Return modules and everything they import, transitively."""
    found: set[str] = set()
    waiting = [name for name in roots if name in files]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [other for other in imports_of(name, files[name]) if other in files]
    return found
