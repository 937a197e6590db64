"""The study of an experiment: a minibatch spec and a grid, as a study file has them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from manyfit.config.tree.project import project_root
from manyfit.core.errors import UsageError

BATCH_SIZE: Final = 32
HIGHER: Final = ("acc", "auc", "f1", "precision", "recall", "iou", "bleu", "r2", "map", "score")
LOWER: Final = ("loss", "error", "mse", "mae", "rmse", "perplexity", "nll")


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
        trainer["misc_path"] = relative(Path(misc_path), root)
    base: dict[str, Any] = {
        "seed": seed,
        **find_source(type(spec), root),
        "data": {
            "class": "manyfit.spec.EtlData",
            "etl_dir": relative(etl, root),
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


def find_mode(metric: str) -> Literal["min", "max"]:
    """Return the direction of a metric by its name; raise if the name does not tell.

    >>> find_mode("val_accuracy"), find_mode("val_loss")
    ('max', 'min')
    """
    name = metric.lower()
    if any(word in name for word in LOWER):
        return "min"
    if any(word in name for word in HIGHER):
        return "max"
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
    """Return the arguments of a spec, from its attributes of the same names."""
    found: dict[str, Any] = {}
    for parameter in list(inspect.signature(type(spec).__init__).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(spec, parameter.name, parameter.default)
        if value is parameter.empty:
            raise UsageError(
                f"{type(spec).__name__} has a parameter {parameter.name!r}, but no attribute of this name, "
                "from which a worker could make it again"
            )
        if value != parameter.default:
            found[parameter.name] = value
    return found


def find_source(cls: type, root: Path) -> dict[str, Any]:
    """Return the folder of the user's code, as a config has it."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if cls.__module__ == "__main__" or file is None:
        return {}
    source = Path(file).resolve().parents[cls.__module__.count(".") + (Path(file).name == "__init__.py")]
    return {"src_code_path": relative(source, root)}


def relative(path: Path, root: Path) -> str:
    """Return a path as configs have it: relative to the project, if it is inside."""
    path, root = path.resolve(), root.resolve()
    found = os.path.relpath(path, root) if path.is_relative_to(root) else str(path)
    return found
