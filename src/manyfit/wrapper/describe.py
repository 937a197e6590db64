"""The config of a run that a wrapper and its typed config mean."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path
from typing import Any

from manyfit.config.load import make_component
from manyfit.config.schema.run import Run
from manyfit.config.typed.component import Component
from manyfit.config.typed.roles import ANY
from manyfit.trainers.described import name_optimizer, path_of, source_of
from manyfit.trainers.live import COPIED
from manyfit.wrapper.configs import ConfigBase, ModelConfig, RunConfig, list_derived_fields


def describe_experiment(wrapper: Any, folder: Path, is_kept: bool, key: str) -> dict[str, Any]:
    """Return the config of a run."""
    given = wrapper.config
    tree: dict[str, Any] = {"seed": given.random_seed, "train": describe_train(given, wrapper)}
    tree["export"] = {"keep": given.train.keep_n_checkpoints}
    if not is_kept:
        tree["data"] = {
            "class": "manyfit.data.Splits",
            "batch_size": given.train.batch_size,
            "train": "loader",
        }
        tree["model"] = {"class": f"{COPIED}.copy_model", "key": key}
        tree["trainer"] = {"class": f"{COPIED}.copy_trainer", "key": key}
        return tree
    described = describe_fields(given)
    tree["data"] = {
        "class": "manyfit.wrapper.LoaderData", "wrapper": path_of(type(wrapper)), "config": described,
    }  # fmt: skip
    if wrapper.model_class is not None:
        tree["model"] = describe_model_class(wrapper.model_class, given.model)
    tree["trainer"] = {"class": path_of(type(wrapper)), "config": described}
    return tree | source_of(tree, folder)


def follow_run(typed: RunConfig, run: Run) -> None:
    """Set what the config of a run says now, for example after an override on the command line."""
    typed.random_seed, typed.train.epochs = run.seed, run.train.epochs
    if isinstance(run.train.optimizer, Component) and "lr" in run.train.optimizer.params:
        typed.train.learning_rate = run.train.optimizer.params["lr"]
    if run.model is not None:
        given = [each for each in run.model.params.values() if isinstance(each, ModelConfig)]
        typed.model = given[0] if given else typed.model
    typed.train.__post_init__()
    typed.__post_init__()


def describe_fields(config: ConfigBase) -> dict[str, Any]:
    """Return a typed config as a config file has it: its class and its fields, without derived ones."""
    derived = {name for name, _ in list_derived_fields(type(config))}
    found: dict[str, Any] = {"class": path_of(type(config))}
    for each in dataclasses.fields(config):
        if each.name not in derived:
            value = getattr(config, each.name)
            found[each.name] = describe_fields(value) if isinstance(value, ConfigBase) else value
    return found


def check_typed(config: ConfigBase) -> None:
    """Raise `ConfigError` for values of the wrong type, as for a config file."""
    make_component(describe_fields(config), "config", ANY, Path.cwd(), Path.cwd() / "src")


def describe_model_class(cls: Any, config: ModelConfig) -> dict[str, Any]:
    """Return the model as a config file has it; the parameter annotated with its config receives it."""
    parameters = list(inspect.signature(cls).parameters.values())
    if not parameters:
        return {"class": path_of(cls)}
    try:
        hints = typing.get_type_hints(cls.__init__)
    except Exception:  # an annotation that cannot be evaluated
        hints = {}
    wanted = [p.name for p in parameters if isinstance(config, _class_of(hints.get(p.name)))]
    name = wanted[0] if wanted else parameters[0].name
    return {"class": path_of(cls), name: describe_fields(config)}


def _class_of(hint: Any) -> type | tuple[()]:
    return hint if isinstance(hint, type) and issubclass(hint, ConfigBase) else ()


def describe_train(given: Any, wrapper: Any) -> dict[str, Any]:
    """Return the section `train` that a typed config means."""
    train = given.train
    found: dict[str, Any] = {
        "epochs": train.epochs,
        "loss": None,
        "optimizer": name_optimizer(train.optimizer, {"lr": train.learning_rate}),
        "scheduler": train.scheduler,
        "precision": "bf16" if train.amp else "fp32",
        "device": given.device,
        "every": {"validate": f"{train.eval_epoch:g}ep", "log": f"{train.log_epoch:g}ep"},
    }
    if train.early_stopping_iter is not None:
        found["stop"] = {"metric": "val_loss", "patience": f"{train.early_stopping_iter}ba"}
    if train.divergence_factor is not None:
        found["guard"] = {"divergence": train.divergence_factor}
    if type(wrapper).create_optimizer is not _base_of(wrapper).create_optimizer:
        found["optimizer"] = None
    return found


def _base_of(wrapper: Any) -> Any:
    return next(cls for cls in type(wrapper).__mro__ if cls.__module__.startswith("manyfit.wrapper"))
