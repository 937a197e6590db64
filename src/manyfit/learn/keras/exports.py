"""Keras models as `.keras` files and SavedModels, and the safe loading of `.keras` files."""

from __future__ import annotations

import json
import logging
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

from manyfit.config.tree.project import project_root
from manyfit.config.typed.allowed_classes import KERAS_CLASSES, KERAS_DATA, KERAS_PARTS
from manyfit.config.typed.class_paths import resolve
from manyfit.config.typed.roles import ANY
from manyfit.core.errors import FolderError, UsageError
from manyfit.core.lazy import import_optional
from manyfit.data import Batch
from manyfit.data.nested import map_arrays
from manyfit.learn.exporting import compare_outputs
from manyfit.learn.keras.learner import KerasLearner

log = logging.getLogger("manyfit")


def write_keras(learner: KerasLearner, batch: Batch, file: Path) -> None:
    """Write `model.keras`, and check that it can be loaded without running code that it contains."""
    learner.model.save(file)
    carried = find_carried_code(file)
    if carried:
        log.warning(
            "model.keras contains code (%s): load_model refuses it unless it is allowed, allow=%s",
            ", ".join(carried),
            carried,
        )
    else:
        compare_outputs(learner.predict(batch), learner.predict(batch, load_keras(file)), "model.keras")


def write_saved_model(learner: KerasLearner, batch: Batch, folder: Path) -> None:
    """Write a SavedModel for TensorFlow Serving, and compare its outputs."""
    if learner.backend != "tensorflow":
        raise UsageError(f"a SavedModel needs Keras on tensorflow, not on {learner.backend}")
    tensorflow: Any = import_optional("tensorflow", "tensorflow")
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner.model.export(str(folder), verbose=False)
        loaded = tensorflow.saved_model.load(str(folder))  # must stay referenced while it is called
        found = _call_saved_model(loaded, _cast(tensorflow, learner.inputs(batch), learner.model))
    compare_outputs(learner.predict(batch), map_arrays(learner.numpy, found), "the SavedModel", loose=True)


def _call_saved_model(loaded: Any, given: Any) -> Any:
    """Call a SavedModel, trying its inputs as one structure and as separate arguments."""
    ways: list[Callable[[], Any]] = [lambda: loaded.serve(given)]
    if isinstance(given, tuple | list):
        ways += [lambda: loaded.serve(list(given)), lambda: loaded.serve(*given)]
    elif isinstance(given, dict):
        ways += [lambda: loaded.serve(**given), lambda: loaded.serve(*given.values())]
    for way in ways[:-1]:
        try:
            return way()
        except (TypeError, ValueError):
            continue
    return ways[-1]()


def _cast(tensorflow: Any, given: Any, model: Any) -> Any:
    """Cast inputs to the dtypes that a model declares: Keras does so itself, a SavedModel does not."""
    flat, declared = tensorflow.nest.flatten(given), list(getattr(model, "inputs", None) or ())
    if len(flat) != len(declared):
        return given
    made = [tensorflow.cast(tensor, each.dtype) for tensor, each in zip(flat, declared, strict=True)]
    return tensorflow.nest.pack_sequence_as(given, made)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the standard output of exporters."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123
        yield


def _custom_objects(file: Path, allow: Collection[str]) -> dict[str, Any]:
    """Import the allowed custom classes of a `.keras` file from the project."""
    found: dict[str, Any] = {}
    for name in allow:
        module, _, attribute = name.rpartition(".")
        if module:
            source = project_root(file) / "src"
            found[attribute] = resolve(name, ANY, source if source.is_dir() else None)
    return found


UNREADABLE: Final = (
    OSError, KeyError, ValueError, RuntimeError, NotImplementedError, RecursionError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
"""Errors of reading a file that is not an archive, or not one that Keras wrote."""


def find_carried_code(file: Path) -> list[str]:
    """Return the parts of a `.keras` file that are not on the list of safe classes and may run code."""
    if not file.is_file():
        raise FolderError(f"there is no file {file}")
    try:
        with zipfile.ZipFile(file) as archive:
            config = json.loads(archive.read("config.json"))
    except UNREADABLE as error:
        raise FolderError(f"{file} is not a model that Keras has written: {error!r:.200}") from error
    found: dict[str, None] = {}

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if "class_name" in value and not _is_listed(value):
                found[_name_of(value)] = None
            for item in value.values():
                look(item)
        elif isinstance(value, list):
            for item in value:
                look(item)

    look(config)
    return list(found)


def _is_listed(part: Mapping[str, Any]) -> bool:
    """Return whether a part of a Keras config is a class on the list of safe ones."""
    name, module = part["class_name"], part.get("module") or "keras.layers"
    if name in KERAS_DATA:
        return part.get("module") is None
    if (
        part.get("registered_name") not in (None, name)
        or not isinstance(name, str)
        or not name.isidentifier()
    ):
        return False
    is_part = any(module == each or str(module).startswith(f"{each}.") for each in KERAS_PARTS)
    return f"{module}.{name}" in KERAS_CLASSES or (is_part and name[:1].isupper() and name.isidentifier())


def _name_of(part: Mapping[str, Any]) -> str:
    """Return the name of a part in error messages and in `allow`."""
    name, module = str(part["class_name"]), part.get("module")
    own = isinstance(module, str) and module.partition(".")[0] not in ("keras", "builtins")
    return f"{module}.{name}" if own else name


def load_keras(file: Path, allow: Collection[str] = ()) -> Any:
    """Load a `.keras` file. Code that it contains or refers to is refused unless named in `allow`."""
    keras: Any = import_optional("keras", "keras")
    refused = [name for name in find_carried_code(file) if name not in allow]
    if refused:
        raise UsageError(
            f"{file} contains code ({', '.join(refused)}), which is not run; if you trust it: allow={refused}"
        )
    named = any(name in ("Lambda", "__lambda__") for name in allow)
    try:
        found = _custom_objects(file, allow)
        return keras.saving.load_model(file, custom_objects=found, safe_mode=not named)
    except Exception as error:  # Keras and h5py raise many types on files that they did not write
        reason = " ".join(str(error).split())[:400]
        raise FolderError(f"{file} cannot be loaded: {type(error).__name__}: {reason}") from error
