"""Objects as a config describes them: class path and arguments, verified by building them again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from manyfit.config.tree.project import project_root
from manyfit.config.typed.roles import OPTIMIZER
from manyfit.core.errors import UsageError
from manyfit.data import DatasetSource, Splits
from manyfit.data.loader import LoaderSource

HINT: Final = (
    "derive it from manyfit.trainers.Model, which records its arguments, keep every argument as an attribute "
    "of the same name, or leave out the folder"
)


def path_of(target: Any) -> str:
    """Return the class path of a class or function."""
    name = getattr(target, "__qualname__", "")
    if "<locals>" in name or "<lambda>" in name:
        raise UsageError(
            f"{name.rpartition('.')[2]} is defined inside a function, where nothing can import it"
        )
    return f"{target.__module__}.{name}"


def name_optimizer(chosen: Any, options: Mapping[str, Any]) -> Any:
    """Return an optimizer as a config names it: a name, a class or `{"class": ...}`, with further options."""
    if chosen is None:
        return None
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(chosen, Mapping):
        if both := sorted(given.keys() & chosen.keys()):
            raise UsageError(f"{both[0]} of the optimizer is given twice; give it once")
        return {**chosen, **given} if "class" in chosen else dict(chosen)
    if isinstance(chosen, str):
        is_class = chosen not in OPTIMIZER.short and hasattr(torch.optim, chosen)
        return {"class": f"torch.optim.{chosen}" if is_class else chosen, **given}
    return {"class": path_of(chosen), **given}


def describe_object(found: Any, what: str) -> dict[str, Any]:
    """Return the class path and the arguments of an object, which must build an equal one."""
    cls = type(found)
    if hasattr(found, "get_class_path"):
        arguments, path = found.get_arguments(), found.get_class_path()
    else:
        arguments, path = guess_arguments(found, what), path_of(cls)
    described = {name: _describe_value(value, f"{what}, {name}") for name, value in arguments.items()}
    if isinstance(found, nn.Module):
        check_rebuilt(found, cls, arguments, what)
    return {"class": path, **described}


def _describe_value(value: Any, what: str) -> Any:
    if isinstance(value, nn.Module):
        return describe_object(value, what)
    if isinstance(value, list | tuple):
        return [_describe_value(item, what) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _describe_value(item, what) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"{what} is a {type(value).__name__}, which a config cannot hold; {HINT}")


def guess_arguments(found: Any, what: str) -> dict[str, Any]:
    """Return the arguments of an object, from its attributes of the same names."""
    arguments: dict[str, Any] = {}
    try:
        parameters = list(inspect.signature(type(found).__init__).parameters.values())[1:]
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            if isinstance(found, nn.Sequential | nn.ModuleList):
                arguments[parameter.name] = list(found)
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        value = getattr(found, parameter.name, parameter.empty)
        if isinstance(value, Tensor) or (value is None and parameter.default in (True, False)):
            value = value is not None  # such as bias, a parameter of the module and of its class
        if value is parameter.empty:
            if parameter.default is parameter.empty:
                raise UsageError(
                    f"{what}: {type(found).__name__} was made with {parameter.name!r}, but has no attribute "
                    f"of this name to write into a config; {HINT}"
                )
            continue
        if parameter.default is parameter.empty or value != parameter.default:
            arguments[parameter.name] = value
    return arguments


def check_rebuilt(found: nn.Module, cls: type, arguments: Mapping[str, Any], what: str) -> None:
    """Check that the arguments build a module with the same weights, by name and shape."""
    try:
        positional = [each for name, value in arguments.items() if name == "args" for each in value]
        again = cls(*positional, **{name: value for name, value in arguments.items() if name != "args"})
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{what}: {cls.__name__} cannot be built again ({reason}); {HINT}") from error
    shapes = [{name: tuple(t.shape) for name, t in each.state_dict().items()} for each in (found, again)]
    if shapes[0] != shapes[1]:
        raise UsageError(f"{what}: {cls.__name__} cannot be built again from its attributes; {HINT}")


def describe_data(data: Splits, folder: Path) -> dict[str, Any]:
    """Return the data sets as a config describes them; tensors are stored in the folder."""
    tree: dict[str, Any] = {"class": "manyfit.data.Splits", "batch_size": data.batch_size}
    tree |= {"workers": data.workers} if data.workers else {}
    train = data.given["train"]
    order = train if isinstance(train, LoaderSource) else data
    tree |= {} if order.shuffle else {"shuffle": False}
    tree |= {"drop_last": True} if order.drop_last else {}
    for split, found in data.given.items():
        if found is not None:
            tree[split] = describe_split(found, split, folder)
    return tree


def describe_split(found: Any, split: str, folder: Path) -> dict[str, Any]:
    """Return one data set as a config describes it."""
    if isinstance(found, LoaderSource):
        if not found.is_plain:
            raise UsageError(
                f"{split}: the loader has a sampler or a collate_fn, which a config cannot hold; write a "
                "data class for the config, or leave out the folder"
            )
        found = found.dataset
    tensors = tensors_of(found)
    if tensors is not None:
        from manyfit.trainers.stored import write_tensors

        return {
            "class": "manyfit.trainers.stored.StoredTensors",
            "path": write_tensors(tensors, split, folder),
        }
    described = describe_object(found, f"the {split} data set")
    again = type(found)(**{name: value for name, value in described.items() if name != "class"})
    if DatasetSource(again).fingerprint() != DatasetSource(found).fingerprint():
        raise UsageError(
            f"the {split} data set cannot be built again from its attributes: rows differ; {HINT}"
        )
    return described


def tensors_of(found: Any) -> list[Tensor] | None:
    """Return the tensors of a data set that is made of tensors alone."""
    if isinstance(found, TensorDataset):
        return list(found.tensors)
    if isinstance(found, Subset):
        inner = tensors_of(found.dataset)
        index = torch.as_tensor(list(found.indices))
        return None if inner is None else [tensor[index] for tensor in inner]
    return None


def source_of(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the folder of the user's code, if the classes of a config are in one that the project holds."""
    root = project_root(folder).resolve()
    names = [str(part.get("class", "")) for part in tree.values() if isinstance(part, Mapping)]
    for name in names:
        module = sys.modules.get(name.rpartition(".")[0])
        file = getattr(module, "__file__", None)
        if file and not name.startswith(("manyfit.", "torch.", "__main__.")):
            depth = name.rpartition(".")[0].count(".") + (Path(file).name == "__init__.py")
            source = Path(file).resolve().parents[depth]
            if source.is_relative_to(root):
                return {"src_code_path": str(source.relative_to(root)) or "."}
            return {"src_code_path": str(source)}
    return {}
