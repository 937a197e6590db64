"""Keys that are required unless training is up to functions of the user's."""

from __future__ import annotations

import sys
from typing import Any, Final

from manyfit.config.schema.run import Run, Train
from manyfit.config.tree.nodes import Map, find
from manyfit.config.typed.checker import Checker
from manyfit.config.typed.roles import product_of, trains_itself
from manyfit.config.typed.signatures import signature_of
from manyfit.config.typed.wording import expectation

NEEDED: Final = (("model",), ("train", "loss"), ("train", "optimizer"))
"""Keys that only a trainer, or a model with functions of its own, makes optional."""


def _has_own_model(checker: Checker) -> bool:
    """Return whether the model has training functions of its own, in a config with other problems."""
    module, _, name = checker.classes.get(("model",), "").rpartition(".")
    return trains_itself(product_of(getattr(sys.modules.get(module), name, None)))


def check_needed(checker: Checker, run: Any) -> None:
    """Record keys that are missing, although there are no training functions that do without them."""
    tree = checker.root
    assert isinstance(tree, Map)
    if "trainer" in tree.items or (isinstance(run, Run) and run.model and run.has_own_functions()):
        return
    if not isinstance(run, Run) and _has_own_model(checker):
        return
    for path in NEEDED:
        above, owner = find(tree, path[:-1]), Run if len(path) == 1 else Train
        if isinstance(above, Map) and path[-1] not in above.items:
            expected = expectation(signature_of(owner).parameters[path[-1]].annotation)
            text = f"{owner.__name__} requires the parameter {path[-1]!r}"
            checker.problem(checker.locate(path[:-1]), path, text, expected, "nothing")
