"""The config of a run that a wrapper and its typed config mean."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import typing
from pathlib import Path
from typing import Any, Final

from manyfit.config import Config
from manyfit.config.load import make_component
from manyfit.config.tree.references import escape
from manyfit.config.typed.component import Component
from manyfit.config.typed.roles import ANY
from manyfit.trainers.described import name_optimizer, path_of, source_of
from manyfit.trainers.live import COPIED
from manyfit.wrapper.configs import ConfigBase, ModelConfig, RunConfig, TrainConfig, list_derived_fields

log = logging.getLogger("manyfit")

SECTION: Final = "experiment"
"""The section of a written config that holds the typed config."""


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
    whole, cls = f"${{{SECTION}}}", path_of(type(wrapper))
    tree |= refer_to_section(tree, given.train)
    tree["data"] = {"class": "manyfit.wrapper.LoaderData", "wrapper": cls, "config": whole}
    if wrapper.model_class is not None:
        tree["model"] = describe_model_class(wrapper.model_class, given.model)
    tree["trainer"] = {"class": cls, "config": whole}
    return {SECTION: escape_texts(describe_fields(given)), **tree} | source_of(tree, folder)


def escape_texts(value: Any) -> Any:
    """Escape all text in plain data, so that none of it is read as a reference."""
    if isinstance(value, dict):
        return {key: escape_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escape_texts(item) for item in value]
    return escape(value) if isinstance(value, str) else value


def refer_to_section(tree: dict[str, Any], given: TrainConfig) -> dict[str, Any]:
    """Return seed, training and export with references to the typed config, which is then the only copy."""
    train = {**tree["train"], "epochs": f"${{{SECTION}.train.epochs}}", "device": f"${{{SECTION}.device}}"}
    if isinstance(train["optimizer"], dict) and train["optimizer"].get("class") == given.optimizer:
        train["optimizer"] = {**train["optimizer"], "class": f"${{{SECTION}.train.optimizer}}"}
    if (
        given.learning_rate is not None
        and isinstance(train["optimizer"], dict)
        and "lr" in train["optimizer"]
    ):
        train["optimizer"] = {**train["optimizer"], "lr": f"${{{SECTION}.train.learning_rate}}"}
    train["scheduler"] = f"${{{SECTION}.train.scheduler}}"
    names = {"validate": "eval_epoch", "log": "log_epoch"}
    train["every"] = {key: f"${{{SECTION}.train.{name}}}ep" for key, name in names.items()}
    if "stop" in train:
        train["stop"] = {**train["stop"], "patience": f"${{{SECTION}.train.early_stopping_iter}}ba"}
    if "guard" in train:
        train["guard"] = {"divergence": f"${{{SECTION}.train.divergence_factor}}"}
    keep = {"keep": f"${{{SECTION}.train.keep_n_checkpoints}}"}
    return {"seed": f"${{{SECTION}.random_seed}}", "train": train, "export": keep}


def update_from_run(typed: RunConfig, config: Config) -> None:
    """Set what the config of a run says now, for example after an override on the command line."""
    run, train, optimizer = config.run, typed.train, config.run.train.optimizer
    rate = optimizer.params.get("lr") if isinstance(optimizer, Component) else None
    used: dict[str, tuple[Any, Any, str]] = {
        "random_seed": (typed.random_seed, run.seed, "seed"),
        "train.epochs": (train.epochs, run.train.epochs, "train.epochs"),
        "train.amp": (train.amp, run.train.precision != "fp32", "train.precision"),
        "train.optimizer": (train.optimizer, describe_written(optimizer), "train.optimizer"),
    }
    if rate is not None:
        used["train.learning_rate"] = (train.learning_rate, rate, "train.optimizer.lr")
    if run.train.stop is None:
        used["train.early_stopping_iter"] = (train.early_stopping_iter, None, "train.stop")
    if run.train.guard.divergence is None:
        used["train.divergence_factor"] = (train.divergence_factor, None, "train.guard.divergence")
    for name, (own, other, key) in used.items():
        origins = [config.origin(f"{place}.{name}") for place in (SECTION, "trainer.config")]
        if own != other and any(
            each is not None and each.file.startswith("command line") for each in origins
        ):
            log.warning("%s.%s=%s has no effect: override %s, which is %s", SECTION, name, own, key, other)
    typed.random_seed, train.epochs, train.amp = run.seed, run.train.epochs, run.train.precision != "fp32"
    train.learning_rate = rate if rate is not None else train.learning_rate
    if run.model is not None:
        given = [each for each in run.model.params.values() if isinstance(each, ModelConfig)]
        typed.model = given[0] if given else typed.model
    train.__post_init__()
    typed.__post_init__()


def describe_written(optimizer: Any) -> Any:
    """Return an optimizer as the config names it."""
    return optimizer.written if isinstance(optimizer, Component) else optimizer


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
    return {"class": path_of(cls), name: f"${{{SECTION}.model}}"}


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
