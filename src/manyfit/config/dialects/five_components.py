"""The flat layout of five components: `data_loader_class`, `preprocessor_class`, … and custom keys.

This dialect is a pure function from tree to tree. The result has the layout of a run but keeps the leaves of
the user's file, so that all later code sees one schema and errors still report the user's lines.
"""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import Any, Final

from manyfit.config.dialects.dialect import Dialect, Translation
from manyfit.config.schema.attributes import attributes_of, component_classes
from manyfit.config.schema.json_types import REFERENCE, describe_record, parameter
from manyfit.config.schema.run import Run
from manyfit.config.tree.nodes import Leaf, Map, Node, Path
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import Problem
from manyfit.core.names import nearest

CLASSES: Final = {
    "data_loader_class": ("data", "loader"),
    "augmentor_class": ("data", "augmentor"),
    "preprocessor_class": ("data", "preprocessor"),
    "model_builder_class": ("model", "builder"),
    "evaluator_class": ("evaluate", "evaluator", "evaluator"),
}
PLACES: Final[dict[str, tuple[str, ...]]] = {
    **CLASSES,
    "batch_size": ("data", "batch_size"),
    "data_dir": ("data", "data_dir"),
    "do_train_augmentation": ("data", "augment_training"),
    "do_validation_augmentation": ("data", "augment_validation"),
    "allow_overlap": ("data", "allow_overlap"),
    "unused": ("data", "unused"),
    "epochs": ("train", "epochs"),
}
"""The paths of the reserved keys in the layout of a run."""
SHARED: Final = ("project_name", "src_code_path", "seed", "train", "evaluate", "export", "track", "submit")
"""Keys that mean the same in both layouts."""
REQUIRED: Final = {
    "src_code_path": "the folder of your code, relative to the project root",
    "data_loader_class": "a class path such as dataset.DataLoader",
    "preprocessor_class": "a class path such as preprocessing.Preprocessor",
    "model_builder_class": "a class path such as models.ModelBuilder",
    "evaluator_class": "a class path such as evaluation.Evaluator",
    "epochs": "a whole number",
    "batch_size": "a whole number",
    "export": "{metric: val_loss, mode: min}",
    "project_name": "text",
}
MADE: Final = {
    "data": "manyfit.pipeline.ComponentData",
    "model": "manyfit.pipeline.model_builder",
    "evaluator": "manyfit.pipeline.evaluator",
}
RESERVED: Final = frozenset({*PLACES, *SHARED})
"""Keys with a meaning in this layout; all others are custom."""
KINDS: Final[dict[Path, Kind]] = {
    ("epochs",): Kind.BUDGET,
    ("project_name",): Kind.NEUTRAL,
    ("src_code_path",): Kind.NEUTRAL,
    ("data_dir",): Kind.NEUTRAL,
    ("allow_overlap",): Kind.NEUTRAL,
    ("unused",): Kind.NEUTRAL,
    ("evaluator_class",): Kind.NEUTRAL,
    ("evaluator",): Kind.NEUTRAL,
}


def is_flat(tree: Map) -> bool:
    """Return whether a config has this layout: one of its keys names a component."""
    return any(key in tree.items for key in CLASSES)


def translate_components(tree: Map, project: FilePath) -> Translation:
    """Translate a config to the layout of a run. Custom keys are passed on as written."""
    problems = [_missing(tree, key, wanted) for key, wanted in REQUIRED.items() if key not in tree.items]
    if "data_dir" not in tree.items:
        wanted = "--data-dir FOLDER, or the key data_dir"
        problems.append(Problem("data_dir", tree.origin, "this key is required", wanted, "nothing"))
    for name in ("train", "evaluate", "track"):
        if not isinstance(tree.items.get(name, Map()), Map):
            problems.append(Problem(name, tree.key_origin(name), "this is not a mapping"))
    data, model = (
        _make_section(tree, "data", "data_loader_class"),
        _make_section(tree, "model", "model_builder_class"),
    )
    evaluate, train, track = (_section(tree, name) for name in ("evaluate", "train", "track"))
    if "evaluator_class" in tree.items:
        made = _make_section(tree, "evaluator", "evaluator_class")
        evaluate = evaluate.with_item("evaluator", made, tree.key_origin("evaluator_class"))
    if "epochs" in train.items:
        where = train.key_origin("epochs")
        problems.append(
            Problem(
                "train.epochs", where, "in this layout, epochs is a top-level key", "epochs, at the top level"
            )
        )
    if "epochs" in tree.items:
        train = train.with_item("epochs", tree.items["epochs"], tree.key_origin("epochs"))
    for name in ("loss", "optimizer"):  # part of a compiled model
        train = train if name in train.items else train.with_item(name, Leaf(None, tree.origin))
    assumed: dict[Path, Any] = {}
    if "mlflow" not in track.items:
        track, assumed = track.with_item("mlflow", Leaf("auto", tree.origin)), {("track", "mlflow"): "auto"}
    items: dict[str, Node] = {key: tree.items[key] for key in SHARED if key in tree.items}
    items |= {"data": data, "model": model, "train": train, "evaluate": evaluate, "track": track}
    origins = {**tree.keys, "data": data.origin, "model": model.origin}
    places: dict[Path, Path] = {place: (key,) for key, place in PLACES.items()}
    return Translation(
        Map(items, tree.origin, origins), problems, places, dict(KINDS), assumed, foreign=_is_made
    )


def _is_made(path: Path) -> bool:
    """Return whether a path exists only in the layout of a run: the components created by the translation."""
    return not path or path[0] in ("data", "model") or path[:2] == ("evaluate", "evaluator")


def _missing(tree: Map, key: str, wanted: str) -> Problem:
    free = [name for name in tree.items if name not in PLACES and name not in SHARED]
    best = nearest(key, free)
    received = f"nothing; a similar key is {best}, at {tree.key_origin(best)}" if best else "nothing"
    return Problem(key, tree.origin, "this key is required", wanted, received)


def _section(tree: Map, name: str) -> Map:
    found = tree.items.get(name)
    return found if isinstance(found, Map) else Map({}, tree.key_origin(name))


def _make_section(tree: Map, name: str, key: str) -> Map:
    """Return a section in the layout of a run: a component that receives the user's whole config."""
    origin = tree.key_origin(key)
    items: dict[str, Node] = {"class": Leaf(MADE[name], origin), "settings": tree}
    origins = dict.fromkeys(items, origin)
    for own, place in PLACES.items():
        if place[-2] == name and own in tree.items:
            items[place[-1]] = _strip_key(own, tree.items[own]) if own in CLASSES else tree.items[own]
            origins[place[-1]] = tree.key_origin(own)
    return Map(items, origin, origins)


def _strip_key(key: str, node: Node) -> Node:
    """Remove a key that its value repeats, as in `'evaluator_class: evaluation.Evaluator'`."""
    if not (isinstance(node, Leaf) and isinstance(node.value, str)):
        return node
    return Leaf(re.sub(rf"^\s*{key}\s*:\s*", "", node.value), node.origin)


def component_schema(run: Any) -> dict[str, Any]:
    """Return the schema of five components: reserved keys, and sections of classes with attributes."""
    known = describe_record(Run, {})["properties"]
    properties = {key: known[key] for key in SHARED if key in known}
    properties |= {key: {"type": "string"} for key in (*CLASSES, "data_dir", "extend")}
    properties |= {
        key: {"type": "boolean"}
        for key in ("do_train_augmentation", "do_validation_augmentation", "allow_overlap")
    }
    properties |= {key: {"anyOf": [{"type": "integer"}, REFERENCE]} for key in ("epochs", "batch_size")}
    # A compiled model has its own loss and optimizer, so nothing is required here.
    properties["train"] = {k: v for k, v in properties["train"].items() if k != "required"}
    for cls in component_classes(run):
        fields = {name: parameter(p, {}, name) for name, p in attributes_of(cls).items()}
        properties[cls.section] = {"type": "object", "properties": fields, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manyfit config of five components",
        "type": "object",
        "properties": properties,
        "required": list(REQUIRED),
        "additionalProperties": True,
    }


def find_preprocessor(data: Component) -> str:
    """Return the class path of the preprocessor, else that of the data."""
    made = data.params.get("preprocessor")
    return f"{made.__module__}.{made.__qualname__}" if isinstance(made, type) else f"data: {data.path}"


FIVE_COMPONENTS: Final = Dialect(
    "five components",
    is_flat,
    translate_components,
    epochs=("epochs",),
    alone=True,
    reserved=RESERVED,
    path_keys=("data_dir",),
    optimizer_keys=("train.optimizer", "train.groups", "model_builder"),
    adapters=frozenset(MADE.values()),
    key_beside=lambda name: name,
    fed_by=find_preprocessor,
    schema=component_schema,
)
