"""From a trainer in Python to a run: the config that it means, and the training of the object itself."""

from __future__ import annotations

import inspect
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from manyfit.config.typed.roles import LOSS
from manyfit.core.errors import UsageError
from manyfit.data import Splits
from manyfit.data.loader import is_loader, take_apart
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.models import LIVE
from manyfit.run.result import RunResult
from manyfit.run.train import train
from manyfit.store.folder import RunFolder
from manyfit.trainers.described import describe_data, describe_object, name_optimizer, path_of, source_of
from manyfit.trainers.live import COPIED, forget_live, keep_live
from manyfit.trainers.translation import hidden_attributes

if TYPE_CHECKING:
    from manyfit.trainers.trainer import Trainer

log = logging.getLogger("manyfit")

SPLITS: Final = {"train": "train", "validation": "val", "test": "test"}


def launch(trainer: Trainer) -> RunResult:
    """Train a trainer: in its folder, with the config that it means, or in a temporary folder."""
    given = dict(vars(trainer))
    if given["start_epoch"]:
        raise UsageError("start_epoch: a run goes on where it was; give the same folder, and more num_epochs")
    check_parameters(trainer)
    data = trainer._gather_data()
    folder, is_kept = find_folder(trainer)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"folder: {folder} is a file")
    with living(trainer, data) as key:
        tree = trainer._describe_config(data, folder, is_kept, key)
        result = train(tree, folder=folder, callbacks=None if given["verbose"] else [])
        last = RunFolder(folder).checkpoints()[-1]
        trainer._bench.learner.load([last.load()])
    return result


def check_parameters(trainer: Trainer) -> None:
    """Refuse parameters that would have no effect."""
    given, known = vars(trainer), trainer._given
    if trainer.model is not None and not isinstance(trainer.model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, not a {type(trainer.model).__name__}")
    if not given["save_best"]:
        raise UsageError("save_best=False has no effect: the best checkpoint is always kept; remove it")
    sizes = given["val_batch_size"], given["test_batch_size"]
    if None not in sizes and sizes[0] != sizes[1]:
        raise UsageError("val_batch_size and test_batch_size differ; both are evaluate.batch_size")
    for name in ("batch_size", "shuffle", "drop_last", "num_workers"):
        if name in known and known.get("train_loader") is not None:
            raise UsageError(f"{name} has no effect beside train_loader, which has its own")


def find_folder(trainer: Trainer) -> tuple[Path, bool]:
    """Return the run folder, and whether it is kept."""
    given: Mapping[str, Any] = vars(trainer)
    place = given["folder"] or given["checkpoint_dir"]
    if place is not None:
        name = given["checkpoint_name"]
        return (Path(place) / name if name else Path(place)), True
    if "_place" not in given:
        trainer.__dict__["_place"] = tempfile.TemporaryDirectory(prefix="manyfit-trainer-")
        log.warning(
            "nothing is kept: pass folder='runs/<name>' to store checkpoints, metrics and reports of %s",
            type(trainer).__name__,
        )
    return Path(trainer.__dict__["_place"].name) / "runs" / "trainer", False


@contextmanager
def living(trainer: Trainer, data: Splits) -> Iterator[str]:
    """Let the run use these objects instead of building its own."""
    key = keep_live(trainer)
    before = LIVE.set({"model": trainer.model, "trainer": trainer, "data": data})
    try:
        yield key
    finally:
        LIVE.reset(before)
        trainer.__dict__["_bench"] = None
        forget_live(key)


def gather_data(trainer: Trainer) -> Splits:
    """Return the data of a trainer: its data sets, or those of its loaders."""
    given, found, sizes = vars(trainer), dict[str, Any](), dict[str, int]()
    original = trainer.__dict__.setdefault("_loaders", {
        split: given[f"{short}_loader"] for split, short in SPLITS.items()
    })  # fmt: skip
    for split, short in SPLITS.items():
        dataset, loader = given[f"{short}_dataset"], original[split]
        if dataset is not None and loader is not None:
            raise UsageError(f"{short}_dataset and {short}_loader are both given; give one of them")
        if loader is not None and not is_loader(loader):
            raise UsageError(f"{short}_loader must be a torch DataLoader, not a {type(loader).__name__}")
        if loader is not None:
            found[split], sizes[split] = take_apart(loader, f"{short}_loader")
        else:
            found[split] = dataset
    if found["train"] is None:
        raise UsageError(f"{type(trainer).__name__} has nothing to train on: pass train_dataset=...")
    if found["validation"] is not None and vars(trainer)["val_batch_size"] is None and "validation" in sizes:
        trainer.__dict__["val_batch_size"] = sizes["validation"]
    size = sizes.get("train", vars(trainer)["batch_size"])
    flags = {} if "train" in sizes else {"shuffle": given["shuffle"], "drop_last": given["drop_last"]}
    return Splits(**found, batch_size=size, workers=given["num_workers"], **flags)


def describe_config(trainer: Trainer, data: Splits, folder: Path, is_kept: bool, key: str) -> dict[str, Any]:
    """Return the config that a trainer means."""
    given = vars(trainer)
    tree: dict[str, Any] = {"seed": given["seed"], "train": describe_training(trainer)}
    if given["val_batch_size"] or given["test_batch_size"]:
        tree["evaluate"] = {"batch_size": given["val_batch_size"] or given["test_batch_size"]}
    if is_kept:
        tree["data"] = describe_data(data, folder)
        if trainer.model is not None:
            tree["model"] = describe_object(trainer.model, "the model")
        tree["trainer"] = {"class": path_of(type(trainer)), **own_parameters(trainer)}
        tree |= source_of(tree, folder)
        if isinstance(trainer.model, nn.Module):
            tree["train"]["warm_start"] = {"path": write_start(trainer.model, folder)}
        return tree
    rows = {split: f"{type(found).__name__}" for split, found in data.given.items() if found is not None}
    tree["data"] = {"class": "manyfit.data.Splits", "batch_size": data.batch_size, **rows}
    if trainer.model is not None:
        tree["model"] = {"class": f"{COPIED}.copy_model", "key": key}
    tree["trainer"] = {"class": f"{COPIED}.copy_trainer", "key": key}
    return tree


def write_start(model: nn.Module, folder: Path) -> str:
    """Write the weights that training starts from, unless it has started before; return the path."""
    from safetensors.torch import save

    from manyfit.config.tree.project import project_root
    from manyfit.store import durable

    file = folder / "start.safetensors"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        weights = {n: t.detach().cpu().clone().contiguous() for n, t in model.state_dict().items()}
        durable.write_file(file, save(weights))
    root = project_root(folder).resolve()
    here = file.resolve()
    return str(here.relative_to(root) if here.is_relative_to(root) else here)


def own_parameters(trainer: Trainer) -> dict[str, Any]:
    """Return the arguments of a trainer that belong to its own class."""
    supplied = set(type(trainer).supplied)
    found = {name: value for name, value in trainer._given.items() if name not in supplied}
    for name, value in found.items():
        if not _is_plain(value):
            raise UsageError(
                f"{type(trainer).__name__}: the argument {name!r} is a {type(value).__name__}, which a "
                "config cannot hold; pass numbers or text, or leave out the folder"
            )
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str | Path)


def describe_training(trainer: Trainer) -> dict[str, Any]:
    """Return the section `train` that the parameters of a trainer mean."""
    given = vars(trainer)
    found: dict[str, Any] = {
        "epochs": given["num_epochs"],
        "loss": describe_loss(given["loss_function"]),
        "optimizer": describe_optimizer(trainer),
        "scheduler": given["scheduler"],
        "precision": given["precision"],
        "accumulate": given["accumulate"],
        "clip_norm": given["clip_norm"],
        "device": find_device(trainer._given.get("device", "auto"), given["device_id"]),
        "metrics": list(given["metrics"]),
    }
    every = {"checkpoint": given["save_every"], "log": given["print_every"]}
    cadences = {key: f"{each}ba" if isinstance(each, int) else each for key, each in every.items() if each}
    if cadences:
        found["every"] = cadences
    if given["stop_when_acc"] is not None or given["early_stop"]:
        found["stop"] = describe_stop(given, found["metrics"])
    return {key: value for key, value in found.items() if value is not None}


def describe_stop(given: Mapping[str, Any], metrics: list[Any]) -> dict[str, Any]:
    """Return when to stop: at an accuracy, or when the validation loss no longer improves."""
    patience = {"patience": f"{given['early_stop']}ep"} if given["early_stop"] else {}
    if given["stop_when_acc"] is None:
        return {"metric": "val_loss", "mode": "min", **patience}
    if "accuracy" not in metrics:
        metrics.append("accuracy")
    return {"metric": "val_accuracy", "mode": "max", "reach": given["stop_when_acc"], **patience}


def describe_loss(loss: Any) -> Any:
    """Return a loss as a config names it."""
    if loss is None or isinstance(loss, Mapping):
        return loss
    if isinstance(loss, str):
        return f"torch.nn.{loss}" if loss not in LOSS.short and hasattr(nn, loss) else loss
    return (
        path_of(loss) if inspect.isclass(loss) or inspect.isroutine(loss) else describe_object(loss, "loss")
    )


def find_own_optimizers(trainer: Trainer) -> dict[str, Any]:
    """Return the optimizers that the trainer has created itself."""
    return dict(FoundState(trainer, hidden=(*hidden_attributes(type(trainer)), "optimizers")).optimizers())


def describe_optimizer(trainer: Trainer) -> Any:
    """Return the optimizer as a config names it; None for a trainer with optimizers of its own."""
    given = vars(trainer)
    chosen = given["optim_function"]
    if "optim_function" not in trainer._given and find_own_optimizers(trainer):
        return None
    options = {name: given[key] for name, key in OPTIONS.items()}
    return name_optimizer(chosen, options)


OPTIONS: Final = {"lr": "learning_rate", "momentum": "momentum", "weight_decay": "weight_decay"}


def find_device(device: Any, device_id: int | None) -> str:
    """Return the device: by name, or by the number of a GPU; -1 is the CPU."""
    if device_id is not None:
        return "cpu" if device_id < 0 else f"cuda:{device_id}"
    return str(device)
