"""Every class of torch.nn, torch.optim and torch.optim.lr_scheduler can be named and built from YAML."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from manyfit import schedules
from manyfit.config.tree.nodes import from_plain
from manyfit.config.typed.checker import INVALID, Checker
from manyfit.config.typed.roles import ANY, MODEL, OPTIMIZER, SCHEDULER

LINEAR = {"class": "torch.nn.Linear", "in_features": 4, "out_features": 4}
LAYER = {"class": "torch.nn.TransformerEncoderLayer", "d_model": 8, "nhead": 2}
DECODER = {"class": "torch.nn.TransformerDecoderLayer", "d_model": 8, "nhead": 2}

BY_NAME: dict[str, Any] = {
    "in_features": 4,
    "out_features": 4,
    "in1_features": 4,
    "in2_features": 4,
    "in_channels": 4,
    "out_channels": 4,
    "kernel_size": 3,
    "num_features": 4,
    "num_channels": 4,
    "num_groups": 2,
    "normalized_shape": [4, 4],
    "output_size": 2,
    "padding": 1,
    "embed_dim": 8,
    "num_heads": 2,
    "d_model": 8,
    "nhead": 2,
    "hidden_size": 4,
    "input_size": 4,
    "num_embeddings": 4,
    "embedding_dim": 4,
    "num_layers": 1,
    "size": 4,
    "dim": 1,
    "threshold": 0.1,
    "value": 0.5,
    "n_classes": 10,
    "cutoffs": [2, 4],
    "lower": 0.1,
    "upper": 0.3,
    "upscale_factor": 2,
    "downscale_factor": 2,
    "groups": 2,
    "unflattened_size": [2, 2],
    "min_val": -1.0,
    "max_val": 1.0,
    "encoder_layer": LAYER,
    "decoder_layer": DECODER,
    "args": [LINEAR, {"class": "torch.nn.ReLU"}],
    "module": LINEAR,
    "num_classes": 10,
    "scale_factor": 2,
    "num_chunks": 2,
    "mode": "mean",
    "init": 0.1,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "ModuleList": {"modules": [LINEAR]},
    "ModuleDict": {"modules": {"a": LINEAR}},
    "ConstantPad1d": {"padding": 1, "value": 0.5},
    "RNNBase": {"mode": "LSTM", "input_size": 4, "hidden_size": 4},
    "RNNCellBase": {"input_size": 4, "hidden_size": 4, "bias": True, "num_chunks": 2},
    "Unflatten": {"dim": 1, "unflattened_size": [2, 2]},
    "Fold": {"output_size": [4, 4], "kernel_size": [2, 2]},
    "FractionalMaxPool2d": {"kernel_size": 2, "output_size": 2},
    "FractionalMaxPool3d": {"kernel_size": 2, "output_size": 2},
    "LPPool1d": {"norm_type": 2.0, "kernel_size": 2},
    "LPPool2d": {"norm_type": 2.0, "kernel_size": 2},
    "LPPool3d": {"norm_type": 2.0, "kernel_size": 2},
    "RReLU": {},
    "Softmax": {"dim": 1},
    "ParameterList": {},
    "ParameterDict": {},
    "Container": {},
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "CosineAnnealingLR": {"T_max": 10},
    "CosineAnnealingWarmRestarts": {"T_0": 5},
    "ExponentialLR": {"gamma": 0.9},
    "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2},
    "LambdaLR": {"lr_lambda": "models.decay"},
    "MultiplicativeLR": {"lr_lambda": ["models.decay"]},
    "MultiStepLR": {"milestones": [2, 4]},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 10},
    "StepLR": {"step_size": 2},
    "SequentialLR": {
        "schedulers": [
            {"class": "torch.optim.lr_scheduler.ConstantLR"},
            {"class": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.9},
        ],
        "milestones": [2],
    },
    "ChainedScheduler": {
        "schedulers": [
            {"class": "torch.optim.lr_scheduler.ConstantLR"},
            {"class": "torch.optim.lr_scheduler.StepLR", "step_size": 2},
        ]
    },
}


def classes(module: Any, base: type) -> list[type]:
    found = [value for _, value in inspect.getmembers(module, inspect.isclass) if issubclass(value, base)]
    return [cls for cls in dict.fromkeys(found) if cls is not base]


def build(role: Any, tree: dict[str, Any], source: Path | None = None, **supplied: Any) -> Any:
    node = from_plain(tree)
    checker = Checker(node, Path(), source, {})
    component = checker.component(node, role, ())
    assert component is not INVALID, "\n".join(map(str, checker.problems))
    return component.build(**supplied)


def required(cls: type) -> dict[str, Any]:
    if cls.__name__ in SPECIAL:
        return SPECIAL[cls.__name__]
    init = cls.__init__
    names = [
        p.name
        for p in list(inspect.signature(init).parameters.values())[1:]
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if cls.__name__ in ("GRU", "LSTM", "RNN"):
        names = ["input_size", "hidden_size"]
    if cls.__name__ == "Sequential":
        names = ["args"]
    return {name: BY_NAME[name] for name in names}


def test_there_are_as_many_modules_as_expected():
    assert len(classes(nn, nn.Module)) >= 150


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", classes(nn, nn.Module), ids=lambda c: c.__name__)
def test_module(cls):
    if cls.__name__ == "CircularPad" or inspect.isabstract(cls):
        pytest.skip("not a public module")
    built = build(MODEL, {"class": f"torch.nn.{cls.__name__}", **required(cls)})
    assert type(built) is cls or isinstance(built, cls)


@pytest.mark.parametrize("cls", classes(optim, optim.Optimizer), ids=lambda c: c.__name__)
def test_optimizer(cls):
    params = [nn.Parameter(torch.ones(2, 2))]
    tree: dict[str, Any] = {"class": f"torch.optim.{cls.__name__}"}
    tree["lr"] = 1 if cls is not optim.Muon else 1e-3
    if "betas" in inspect.signature(cls).parameters:
        tree["betas"] = [0.9, 0.999]
    built = build(OPTIMIZER, tree, params=params)
    assert isinstance(built, cls)
    assert built.param_groups[0].get("betas", (0.9, 0.999)) == (0.9, 0.999)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", classes(lr_scheduler, lr_scheduler.LRScheduler), ids=lambda c: c.__name__)
def test_scheduler(cls, project):
    if cls.__name__.startswith("_"):
        pytest.skip("an old name of the base class")
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    tree = {"class": f"torch.optim.lr_scheduler.{cls.__name__}", **SCHEDULERS.get(cls.__name__, {})}
    assert isinstance(build(SCHEDULER, tree, project.src, optimizer=optimizer), cls)


@pytest.mark.parametrize("role", [OPTIMIZER, SCHEDULER], ids=lambda role: role.name)
def test_every_short_name_leads_to_its_class(role):
    for full in role.short.values():
        module, _, name = full.rpartition(".")
        homes = {
            "torch.optim": optim,
            "torch.optim.lr_scheduler": lr_scheduler,
            "manyfit.schedules": schedules,
        }
        assert inspect.isclass(getattr(homes[module], name)) or name == "warmup"


def test_a_dtype_is_written_as_text():
    built = build(
        MODEL, {"class": "torch.nn.Linear", "in_features": 2, "out_features": 2, "dtype": "torch.float64"}
    )
    assert built.weight.dtype is torch.float64


def test_kwargs_are_followed_along_the_bases(project):
    node = from_plain({"class": "models.Inherits", "depth": 2, "hidden": 4, "hiden": 5})
    checker = Checker(node, Path(), project.src, {})
    assert checker.component(node, MODEL, ()) is INVALID
    assert [(p.path, p.suggestion) for p in checker.problems] == [("hiden", "hidden")]


def test_a_module_inside_a_module_without_annotation():
    built = build(ANY, {"class": "torch.nn.TransformerEncoder", "encoder_layer": LAYER, "num_layers": 2})
    assert len(built.layers) == 2
