"""Parameters that a class declares as annotated attributes, read from a section of a config."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, ClassVar, Final

from manyfit.config.schema.run import Run
from manyfit.config.tree.nodes import Map, Node, from_plain
from manyfit.config.typed.checker import Checker
from manyfit.config.typed.findings import INVALID
from manyfit.config.typed.signatures import REQUIRED, Parameter, Signature
from manyfit.core.errors import ConfigError

READER: Final = "_load_params"
"""A class that defines this method reads its parameters itself; its annotations are not parameters."""


@functools.lru_cache(maxsize=256)
def attributes_of(cls: type) -> Mapping[str, Parameter]:
    """Return the public annotated attributes of a class; empty if it reads the config itself."""
    base = next((b for b in cls.__mro__ if READER in vars(b)), None)
    if base is None or base.__module__ != "manyfit.pipeline.components":
        return {}
    own = [b for b in cls.__mro__ if b.__module__ != base.__module__ and b is not object]
    names = {name for b in own for name in inspect.get_annotations(b)}
    hints = _hints(cls)
    return {
        name: Parameter(name, hint, getattr(cls, name, REQUIRED))
        for name, hint in hints.items()
        if name in names
        and not name.startswith("_")
        and name not in ("config", "data_dir", "section")  # set by the base classes
        and typing.get_origin(hint) is not ClassVar
    }


def _hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class; one that cannot be evaluated accepts any value."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # such as a name that is imported only for type checkers
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            space = vars(sys.modules.get(base.__module__)) if base.__module__ in sys.modules else {}
            for name, hint in inspect.get_annotations(base).items():
                try:
                    found[name] = eval(hint, dict(space)) if isinstance(hint, str) else hint
                except Exception:
                    found[name] = Any
        return found


def component_classes(run: Run) -> list[Any]:
    """Return the component classes of a run that declare their parameters as attributes."""
    made = [each for each in (run.data, run.model, run.evaluate.evaluator) if each is not None]
    found: list[Any] = [v for component in made for v in component.params.values() if inspect.isclass(v)]
    return [cls for cls in found if attributes_of(cls)]


def check_attributes(checker: Checker, cls: type, tree: Map, section: str) -> Any:
    """Check a section against the attributes of a class: types, missing and unknown keys.

    A key missing in the section may be at the top level, where components share it.
    """
    known = attributes_of(cls)
    node = tree.items.get(section, Map({}, tree.origin))
    if not isinstance(node, Map):
        return checker.fail(node, (section,), "this is not a mapping")
    items: dict[str, Node] = dict(node.items)
    keys = dict(node.keys)
    for name in known:
        if name not in items and name in tree.items:
            items[name], keys[name] = tree.items[name], tree.key_origin(name)
    laid = Map(items, node.origin, keys)
    return checker.parameters(laid, Signature(dict(known)), (), (section,), cls.__qualname__)


def read_attributes(cls: type, section: str, config: Mapping[str, Any], project: FilePath) -> dict[str, Any]:
    """Return the values of a class's attributes in a config. Raises `ConfigError` with every problem."""
    tree = from_plain(config)
    assert isinstance(tree, Map)
    checker = Checker(tree, project, None, {})
    found = check_attributes(checker, cls, tree, section)
    if found is INVALID or checker.problems:
        raise ConfigError(checker.problems)
    return dict(found)
