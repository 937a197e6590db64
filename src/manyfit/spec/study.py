"""The study of an experiment: a minibatch spec and a grid, as a study file has them."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from manyfit.config.tree.project import project_root
from manyfit.core.code_hash import hash_code
from manyfit.core.errors import UsageError
from manyfit.core.installed import is_installed
from manyfit.data.etl.run import digest_folder
from manyfit.data.prepared import digest_layout
from manyfit.spec.minibatch import GIVEN

BATCH_SIZE: Final = 32
HIGHER: Final = re.compile("accuracy|acc|auc|auroc|f1|precision|recall|iou|dice|bleu|rouge|r2|map|ap|score")
LOWER: Final = re.compile(
    "loss|errors?|err|mse|mae|rmse|mape|perplexity|ppl|nll|distance|divergence|brier|fid|wer|cer"
)


def describe_study(
    spec: Any,
    grid: Mapping[str, Any],
    etl: Path,
    misc_path: str,
    folder: Path,
    *,
    epochs: int,
    seed: int,
    metric: str,
    mode: Literal["min", "max"] | None,
) -> dict[str, Any]:
    """Return the base, the objective and the space of a study over a grid of hyperparameters."""
    if not isinstance(grid, Mapping) or not grid:
        raise UsageError("param_grid must have at least one hyperparameter with its values")
    check_grid(grid)
    mode = mode or find_mode(metric)
    fixed = {name: value for name, value in grid.items() if not is_axis(value)}
    axes = {name: value for name, value in grid.items() if is_axis(value)}
    first = {name: first_of(value) for name, value in axes.items()}
    hyperparams = {"batch_size": BATCH_SIZE, **fixed, **first}
    if not axes:
        name = next(iter(grid))
        axes = {name: [grid[name]]}
    root = project_root(folder)
    trainer: dict[str, Any] = {
        "class": "manyfit.spec.SpecTrainer",
        "spec": {"class": name_spec(spec), **arguments_of(spec)},
        "hyperparams": hyperparams,
    }
    if misc_path:
        trainer |= {"misc_path": relative(Path(misc_path), root), "misc_digest": digest_folder(misc_path)}
    base: dict[str, Any] = {
        "seed": seed,
        **find_source(type(spec), root),
        "data": {
            "class": "manyfit.spec.EtlData",
            "etl_dir": relative(etl, root),
            "layout": digest_layout(etl, ("train", "val")),
            "batch_size": "${trainer.hyperparams.batch_size}",
        },
        "trainer": trainer,
        "train": {"epochs": epochs},
        "export": {"metric": metric, "mode": mode},
    }
    return {
        "base": base,
        "objective": {"metric": metric, "mode": mode},
        "space": {f"trainer.hyperparams.{name}": value for name, value in axes.items()},
    }


def check_grid(grid: Mapping[str, Any]) -> None:
    """Raise an error for names and values that mean something else in a config."""
    for name, value in grid.items():
        if not isinstance(name, str) or not name or "." in name:
            raise UsageError(f"param_grid: {name!r} is not a name of a hyperparameter: text without a dot")
        if "${" in str(value):
            raise UsageError(f"param_grid: {name}: text with ${{ is a reference in a config: {value!r}")


def find_mode(metric: str) -> Literal["min", "max"]:
    """Return the direction of a metric by its name; raise if the name does not tell.

    >>> find_mode("val_accuracy"), find_mode("val_loss")
    ('max', 'min')
    """
    words = re.findall("[a-z]+[0-9]*", metric.lower())
    is_higher, is_lower = (any(map(pattern.fullmatch, words)) for pattern in (HIGHER, LOWER))
    if is_higher != is_lower:
        return "max" if is_higher else "min"
    raise UsageError(f"metric: is a higher or a lower {metric!r} better? Say mode='max' or mode='min'")


def is_axis(value: Any) -> bool:
    """Return whether a value of the grid is to be varied."""
    return isinstance(value, list | tuple | Mapping)


def first_of(value: Any) -> Any:
    """Return a value of an axis, for the base."""
    if isinstance(value, Mapping):
        inner = next(iter(value.values()), None)
        return first_of(inner) if isinstance(inner, list | tuple) else inner
    if not value:
        raise UsageError("param_grid: a hyperparameter has no values")
    return value[0]


def name_spec(spec: Any) -> str:
    """Return the class path of a spec."""
    cls = type(spec)
    if "<locals>" in cls.__qualname__:
        raise UsageError(f"{cls.__name__} is defined inside a function; define it at the top of the script")
    return f"{cls.__module__}.{cls.__qualname__}"


def arguments_of(spec: Any) -> dict[str, Any]:
    """Return the arguments that a spec was created with, which a config can hold."""
    name, (args, kwargs) = type(spec).__name__, GIVEN.get(spec, ((), {}))
    found = inspect.signature(type(spec)).bind(*args, **kwargs).arguments
    kinds = inspect.signature(type(spec)).parameters
    given: dict[str, Any] = {}
    for key, value in found.items():
        if kinds[key].kind is inspect.Parameter.VAR_POSITIONAL:
            raise UsageError(f"{name}: arguments without a name cannot be passed to other processes: {value}")
        given |= value if kinds[key].kind is inspect.Parameter.VAR_KEYWORD else {key: value}
    for key, value in given.items():
        if not is_writable(value):
            raise UsageError(
                f"{name}: the argument {key!r} must consist of numbers, text, lists and dicts, so that other "
                f"processes can make the spec again, not {type(value).__name__}; use read_misc for arrays"
            )
    again = type(spec)(**given)
    changed = {
        k for k in {**vars(spec), **vars(again)} if hash_attribute(spec, k) != hash_attribute(again, k)
    }
    if changed:
        raise UsageError(
            f"{name}: {', '.join(sorted(changed))} was changed after the spec was created, which other "
            "processes do not see: pass it as an argument, or as a hyperparameter"
        )
    return given


def hash_attribute(spec: Any, name: str) -> str:
    """Return a hash of an attribute, which changes with its value."""
    return hash_code(getattr(spec, name)) if hasattr(spec, name) else ""


def is_writable(value: Any) -> bool:
    """Return whether a config can hold a value."""
    if isinstance(value, list | tuple):
        return all(map(is_writable, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_writable(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def find_source(cls: type, root: Path) -> dict[str, Any]:
    """Return the folder of the user's code, as a config has it."""
    if cls.__module__ == "__main__" or (source := find_code(cls)) is None:
        return {}
    return {"src_code_path": relative(source, root)}


def find_code(cls: type) -> Path | None:
    """Return the folder from which the module of a class was imported; None if it has no file."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:
        return None
    return Path(file).resolve().parents[cls.__module__.count(".") + (Path(file).name == "__init__.py")]


def find_own_code(cls: type) -> Path | None:
    """Return the folder of the user's code; None for a class that is typed in, or of an installed package."""
    found = find_code(cls)
    return None if found is None or is_installed(cls.__module__, f"{found}/") else found


def relative(path: Path, root: Path) -> str:
    """Return a path as configs have it: relative to the project, if it is inside."""
    path, root = path.resolve(), root.resolve()
    found = os.path.relpath(path, root) if path.is_relative_to(root) else str(path)
    return found
