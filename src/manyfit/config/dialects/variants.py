"""The layout of variants: `model.type` with its parameters, and feeders and cadences as keys of `train`.

A variant is found by its name: in a given folder, in the project, or among the shipped ones.
"""

from __future__ import annotations

import importlib.util
import logging
from decimal import Decimal
from pathlib import Path as FilePath
from typing import Any, Final

from manyfit.config.dialects.dialect import Dialect, Translation
from manyfit.config.dialects.variant_feeders import FEEDERS, items_of, translate_feeder, with_shipped
from manyfit.config.dialects.variant_files import (
    PACKAGE,
    find_project,
    find_variant,
    is_shipped_variant,
    variant_names,
)
from manyfit.config.schema.json_types import REFERENCE, describe_class, describe_record, parameter, value
from manyfit.config.schema.run import Run, Train
from manyfit.config.tree.nodes import Leaf, Map, Node, Path, Unresolved, class_word
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Kind
from manyfit.config.typed.roles import DATA, FEEDER
from manyfit.config.typed.signatures import signature_of
from manyfit.core.errors import Problem
from manyfit.core.names import listing, nearest, show_value

log = logging.getLogger("manyfit")

REGISTRY: Final = FilePath("models") / "registry"
CHECKPOINT: Final = {"save_checkpoint_steps": "ba", "save_checkpoint_secs": "s"}
VALIDATE: Final = {"validation_steps": "ba", "validation_secs": "s"}
SUMMARY: Final = {"save_summary_steps": "ba"}
NEUTRAL: Final = ("allow_overlap", "unused")
BESIDE: Final = (*NEUTRAL, "shards", "first_shard", "visits")
OWN: Final = (*FEEDERS, *CHECKPOINT, *VALIDATE, *SUMMARY, *BESIDE)
"""Keys of `train` that exist only in this layout."""
MADE: Final = "manyfit.feeders.Feeders"
STOPPING: Final = {
    "early_stopping_metric": "train: {stop: {metric: val_loss, patience: 100ba}}",
    "early_stopping_steps_without_decrease": "train: {stop: {patience: 100ba}}, in batches",
    "early_stopping_min_steps": "no key: train.stop.patience counts from the first validation",
    "early_stopping_hook_run_every_steps": "train: {validation_steps: 100}: every validation is considered",
}
"""Keys of `train` in later versions of this layout, and what to write instead."""
CLASS_TYPE, MODULE_PATH = "class_type", "module_path"
KINDS: Final[dict[Path, Kind]] = {
    ("model", "model_dir"): Kind.NEUTRAL,
    **{("train", key): Kind.NEUTRAL for key in (*CHECKPOINT, *SUMMARY, *NEUTRAL)},
}


# -- translation ----------------------------------------------------------------------------------


def is_variant(tree: Map) -> bool:
    """Return whether a config has this layout: feeders or cadences in `train`, or `model.model_dir`."""
    train, model = tree.items.get("train"), tree.items.get("model")
    if "data" in tree.items:
        return False
    by_train = isinstance(train, Map) and any(key in train.items for key in OWN)
    return by_train or (isinstance(model, Map) and "model_dir" in model.items)


def translate_variant(tree: Map, project: FilePath) -> Translation:
    """Translate a config to the layout of a run."""
    problems: list[Problem] = []
    train, model = _section(tree, "train", problems), _section(tree, "model", problems)
    _check_keys(train, problems)
    for at, node in (("model", tree.items.get("model")), ("train", tree.items.get("train"))):
        _check_classes(node, at, problems)
    feeders = {FEEDERS[key]: translate_feeder(train.items[key]) for key in FEEDERS if key in train.items}
    if "train" not in feeders:
        wanted = "{type: TFRecordExamplesFeeder, file_patterns: …}"
        where = tree.key_origin("train")
        problems.append(Problem("train.train_feeder", where, "this key is required", wanted, "nothing"))
    where = train.key_origin("train_feeder") if "train_feeder" in train.items else train.origin
    beside = {key: train.items[key] for key in BESIDE if key in train.items}
    data: dict[str, Node] = {"class": Leaf(MADE, where), **feeders, **beside}
    origins = {FEEDERS[key]: train.key_origin(key) for key in FEEDERS if key in train.items}
    origins |= {key: train.key_origin(key) for key in beside}
    items: dict[str, Node] = {k: v for k, v in tree.items.items() if k not in ("train", "model")}
    made, source = _model(tree, model, project, problems)
    if source is not None:
        items["src_code_path"] = Leaf(source, model.origin)
    items |= {"data": Map(data, where, origins), "train": _translate_train(train, problems)}
    if "model" in tree.items:
        items["model"] = made
    export, assumed = items.get("export", Map({}, tree.origin)), dict[Path, Any]()
    if isinstance(export, Map) and "formats" not in export.items:  # the model folder is also used for serving
        items["export"] = export.with_item("formats", Leaf("auto", tree.origin))
        assumed["export", "formats"] = "auto"
    keys = {**tree.keys, "data": where}
    places: dict[Path, Path] = {("data", split): ("train", key) for key, split in FEEDERS.items()}
    places |= {("data", key): ("train", key) for key in BESIDE}
    for at, names in (("checkpoint", CHECKPOINT), ("validate", VALIDATE), ("log", SUMMARY)):
        given = next((key for key in names if key in train.items), None)
        if given is not None:
            places["train", "every", at] = ("train", given)
    return Translation(
        Map(items, tree.origin, keys),
        problems,
        places,
        dict(KINDS),
        assumed,
        foreign=lambda path: not path or path in (("data",), ("data", "batch_size"), ("src_code_path",)),
        folder=_folder(model, problems),
        further={"model": ("model_dir",)},
    )


def _section(tree: Map, name: str, problems: list[Problem]) -> Map:
    found = tree.items.get(name)
    if isinstance(found, Map):
        return found
    if found is not None:
        problems.append(Problem(name, tree.key_origin(name), "this is not a mapping"))
    return Map({}, tree.key_origin(name))


def _check_keys(train: Map, problems: list[Problem]) -> None:
    known = [*OWN, *signature_of(Train).parameters]
    for key in train.items:
        if key in STOPPING:
            told = "early stopping is configured in train.stop"
            problems.append(Problem(f"train.{key}", train.key_origin(key), told, STOPPING[key], key))
        elif key not in known:
            expected = f"one of {listing(known, 40)}"
            where = train.key_origin(key)
            problems.append(
                Problem(f"train.{key}", where, "unknown key for train", expected, key, nearest(key, known))
            )


def _check_classes(node: Node | None, at: str, problems: list[Problem]) -> None:
    """Record classes named by two keys, as in later versions of this layout."""
    if not isinstance(node, Map):
        return
    key = next((key for key in (CLASS_TYPE, MODULE_PATH) if key in node.items), None)
    if key is not None and not class_word(node):  # otherwise it is a parameter of the class
        name, module = (
            str(found.value) if isinstance(found := node.items.get(key), Leaf) else ""
            for key in (CLASS_TYPE, MODULE_PATH)
        )
        told = "a class is named by the single key `type`"
        wanted = f"{module.rpartition('.')[2]}:{name}" if at == "model" and module else name
        expected = f"type: '{wanted}'" if name else "no key: features are found by their `type`"
        problems.append(Problem(f"{at}.{key}", node.key_origin(key), told, expected, name or module))
    for key, item in node.items.items():
        _check_classes(item, f"{at}.{key}", problems)


def _translate_train(train: Map, problems: list[Problem]) -> Map:
    """Return `train` in the layout of a run: cadences are keys of `every`."""
    known = signature_of(Train).parameters
    items = {key: item for key, item in train.items.items() if key in known}
    keys = dict(train.keys)
    every = items.get("every", Map({}, train.origin))
    if not isinstance(every, Map):
        return Map(items, train.origin, keys)
    checkpoint = _cadences(train, CHECKPOINT, problems)
    validate = _cadences(train, VALIDATE, problems)
    if len(validate) > 1:
        where = train.key_origin("validation_secs")
        problems.append(
            Problem("train.validation_secs", where, "validation_steps is also set", "only one of them")
        )
    cadences = {
        # Whichever is due first; every validated state gets a checkpoint.
        "checkpoint": _join_cadences([*(checkpoint or ["auto"]), "validation"], train, CHECKPOINT),
        "validate": _join_cadences(validate[:1], train, VALIDATE),
        "log": _join_cadences(_cadences(train, SUMMARY, problems), train, SUMMARY),
    }
    for (at, leaf), names in zip(cadences.items(), (CHECKPOINT, VALIDATE, SUMMARY), strict=True):
        if leaf is not None and at not in every.items:
            every = every.with_item(at, leaf, leaf.origin)
        written = items_of(items.get("every")).get(at)
        for key in (key for key in names if key in train.items):
            if written is not None and written.origin.line:  # otherwise an override, which wins
                where, expected = train.key_origin(key), f"one of train.{key} and train.every.{at}"
                problems.append(Problem(f"train.{key}", where, f"train.every.{at} is also set", expected))
    items["every"] = every
    if "validation_secs" in train.items and "time_dependent" not in items:
        items["time_dependent"] = Leaf(True, train.key_origin("validation_secs"))
    for name in ("loss", "optimizer"):  # a model of a registry defines them by default
        items.setdefault(name, Leaf(None, train.origin))
    return Map(items, train.origin, keys)


def _cadences(train: Map, names: dict[str, str], problems: list[Problem]) -> list[str]:
    found: list[str] = []
    for key, unit in names.items():
        node = train.items.get(key)
        if node is None or (isinstance(node, Leaf) and node.value is None):
            continue
        number = node.value if isinstance(node, Leaf) else None
        if isinstance(number, Unresolved):
            continue
        if not _is_amount(number, whole=unit == "ba"):
            wanted = "a whole number above 0" if unit == "ba" else "a number of seconds above 0"
            problems.append(Problem(f"train.{key}", node.origin, "invalid value", wanted, show_value(number)))
            continue
        found.append(f"{Decimal(str(number)):f}{unit}")
    return found


def _is_amount(number: object, whole: bool) -> bool:
    """Return whether a value is a valid interval in steps or seconds."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    return 1e-6 <= number < 1e12 and (isinstance(number, int) or not whole)


def _join_cadences(cadences: list[str], train: Map, names: dict[str, str]) -> Leaf | None:
    where = next((train.key_origin(key) for key in names if key in train.items), train.origin)
    return Leaf(",".join(cadences), where) if cadences else None


def _model(tree: Map, model: Map, project: FilePath, problems: list[Problem]) -> tuple[Map, str | None]:
    """Return the model with an importable class, and the folder of the user's code, if known."""
    made, word = model.without("model_dir") if "model_dir" in model.items else model, class_word(model)
    named = model.items.get(word)
    if not (isinstance(named, Leaf) and isinstance(named.value, str)):
        return made, None
    text, source = _find_registered(tree, named, project, problems)
    return made.with_item(word, Leaf(text, named.origin), model.key_origin(word)), source


def _find_registered(
    tree: Map, named: Leaf, project: FilePath, problems: list[Problem]
) -> tuple[str, str | None]:
    """Return the class path of `file:Class`: from the project's registry, the shipped one, or a module.

    The second value is the source folder, if the class requires another one than the default.
    """
    text = str(named.value)
    file, colon, name = text.partition(":")
    if not colon or not file.isidentifier():
        return text, None
    given = tree.items.get("src_code_path")
    src = str(given.value) if isinstance(given, Leaf) and isinstance(given.value, str) else "src"
    if (project / src / REGISTRY / f"{file}.py").is_file():
        return f"models.registry.{file}:{name}", None
    if given is None and (project / REGISTRY / f"{file}.py").is_file():
        return text, str(REGISTRY)
    if (PACKAGE / "registry" / f"{file}.py").is_file():
        return f"manyfit.feeders.registry.{file}:{name}", None
    if not _is_module(file, project / src):
        where = REGISTRY if given is None else f"{src}/{REGISTRY} (src_code_path is set)"
        places = [
            *([project / REGISTRY] if given is None else []),
            project / src / REGISTRY,
            PACKAGE / "registry",
        ]
        known = [found.stem for place in places for found in sorted(place.glob("[!_]*.py"))]
        best = nearest(file, known)
        problems.append(
            Problem(
                "model.type",
                named.origin,
                f"there is no {file}.py in {where}/, and no module of that name",
                f"a file in {where}/ and its class, such as {known[0] if known else 'net'}:Net",
                repr(text),
                f"{best}:{name}" if best else "",
            )
        )
    return text, None


def _is_module(name: str, source: FilePath) -> bool:
    if (source / f"{name}.py").is_file() or (source / name).is_dir():
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _folder(model: Map, problems: list[Problem]) -> str | None:
    node = model.items.get("model_dir")
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    if isinstance(node, Leaf) and isinstance(node.value, str) and node.value:
        return node.value
    origin = node.origin if isinstance(node, Leaf) else model.key_origin("model_dir")
    problems.append(Problem("model.model_dir", origin, "wrong type", "the path of a folder"))
    return None


# -- schema ---------------------------------------------------------------------------------------


def variant_schema(run: Any) -> dict[str, Any]:
    """Return the schema of a variant: a model with its parameters, and feeders and cadences in `train`."""
    known = describe_record(Run, {})["properties"]
    train, number = known["train"], {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, REFERENCE]}
    feeders: dict[str, Any] = {}
    for key, split in FEEDERS.items():
        feeder = run.data.params.get(split)
        found: Any = describe_class(feeder.path, FEEDER) if isinstance(feeder, Component) else None
        feeders[key] = {**found, "required": []} if found is not None else {"type": "object"}
        feeders[key].setdefault("properties", {})["type"] = {"type": "string"}
    cadences = dict.fromkeys((*CHECKPOINT, *VALIDATE, *SUMMARY), number)
    beside = {name: value(annotation, {}, name) for name, annotation in DATA.beside.items()}
    signature = signature_of(run.subject.target)
    model = {name: parameter(p, {}, name) for name, p in signature.parameters.items()}
    text = {"type": "string"}
    properties = {
        **{key: value for key, value in known.items() if key != "data"},
        "model": {
            "type": "object",
            "properties": {"type": text, "class": text, "model_dir": text, **model},
            "additionalProperties": signature.open,
        },
        "train": {
            **train,
            "required": [],
            "properties": {**train["properties"], **feeders, **cadences, **beside},
        },
        "extend": {"anyOf": [text, {"type": "array", "items": text}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manyfit variant",
        "type": "object",
        "properties": properties,
        "additionalProperties": True,
    }


VARIANTS: Final = Dialect(
    "variants",
    is_variant,
    translate_variant,
    folder_key="model.model_dir",
    key_beside=lambda name: f"train.{name}",
    fed_by=lambda data: "train.train_feeder",
    schema=variant_schema,
    find=find_variant,
    names=variant_names,
    root_of=find_project,
    is_shipped=is_shipped_variant,
    adopt=with_shipped,
)
