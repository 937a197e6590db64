"""Loss, optimizers, schedules and frozen parameters of a PyTorch learner, built from a config."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from manyfit.config import Component, Config
from manyfit.config.schema.run import Freeze, Train
from manyfit.config.typed.torch_facts import WARMUP, missing_horizon, missing_rate
from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import Source, once
from manyfit.data.overlap import inner
from manyfit.learn.schedules import MomentumSchedule
from manyfit.learn.torch.heads import Head
from manyfit.learn.torch.update import Frozen, Update
from manyfit.store.weights import read_weights

Named = dict[str, nn.Parameter]


def build_loss(config: Config, device: torch.device, train: Source) -> Any:
    """Build the loss, with class weights if the config has any; None if the model has its own loss.

    Several losses are returned by the name of their output.
    """
    given = config.run.train
    if given.loss is None:
        if given.class_weights is not None:
            raise UsageError(
                f"{config.origin('train.class_weights')}: train.class_weights: there is no loss to weight"
            )
        return None
    if isinstance(given.loss, Mapping):
        weights = given.loss_weights
        return {
            name: Head(_to_device(each.build(), device), weights.get(name, 1.0))
            for name, each in given.loss.items()
        }
    component = given.loss
    if given.class_weights is not None:
        where = config.origin("train.class_weights")
        name = _weight_parameter(component)
        if not name:
            raise UsageError(f"{where}: train.class_weights: {component.path} does not accept class weights")
        balance = given.class_weights
        values = balance_classes(train) if isinstance(balance, str) else np.asarray(balance, dtype=np.float64)
        tensor = torch.tensor(values, dtype=torch.float32, device=device)
        component = dataclasses.replace(component, params={**component.params, name: tensor})
    return _to_device(component.build(), device)


def _to_device(loss: Any, device: torch.device) -> Any:
    return loss.to(device) if isinstance(loss, nn.Module) else loss


def _weight_parameter(loss: Component) -> str:
    target: Any = loss.target
    known = inspect.signature(target.__init__ if inspect.isclass(target) else target).parameters
    return next((name for name in ("pos_weight", "weight") if name in known and name not in loss.params), "")


def balance_classes(source: Source) -> Any:
    """Return weights that balance the classes: rows / (classes · rows of the class)."""
    source = inner(source)  # all rows, also if only some are trained on
    target = getattr(source, "target", None)
    if target is None:
        target = np.concatenate([np.asarray(batch.target) for batch in once(source, 1024)])
    values = np.asarray(target)
    if not np.issubdtype(values.dtype, np.integer) or values.min() < 0:
        raise UsageError("train.class_weights: balanced needs targets that are class indices")
    counts = np.bincount(values.ravel())
    return counts.sum() / (len(counts) * np.maximum(counts, 1))


def build_update(
    config: Config, module: nn.Module, device: torch.device, steps_per_epoch: int, own: Any = None
) -> Update:
    """Build optimizers, or use the model's `own`; with schedules, clipping, scaling and freezing."""
    train = config.run.train
    named = dict(module.named_parameters())
    frozen = build_frozen(config, module, named, steps_per_epoch)
    never = {id(p) for entry in frozen if entry.until is None for p in entry.parameters}
    trained = {name: p for name, p in named.items() if p.requires_grad and id(p) not in never}
    optimizers = {
        name: component.build(params=groups)
        for (name, component), groups in zip(
            train.optimizers().items(), assign_parameters(config, trained), strict=True
        )
    }
    if own is not None:
        optimizers = {"": own}
    if train.scheduler is not None and not optimizers:
        where = config.origin("train.scheduler")
        raise UsageError(f"{where}: train.scheduler: there is no optimizer to schedule")
    schedulers = {
        name: build_scheduler(component, train, optimizers[name], steps_per_epoch)
        for name, component in train.schedulers().items()
    }
    momentum = None
    if (wanted := train.momentum_scheduler) is not None:
        (only,) = optimizers.values()
        momentum = MomentumSchedule(only, lambda o: build_scheduler(wanted, train, o, steps_per_epoch))
    scale = steps_per_epoch if train.scheduler_every == "step" else 1
    scaler: Any = torch.amp.GradScaler(device.type) if train.precision == "fp16" else None
    return Update(
        optimizers,
        schedulers,
        train.scheduler_every,
        train.scheduler_metric,
        None if train.horizon is None else train.horizon * scale,
        steps_per_epoch,
        train.clip_norm,
        train.clip_value,
        scaler,
        frozen,
        momentum=momentum,
    )


def assign_parameters(config: Config, trained: Named) -> list[Any]:
    """Return, for each optimizer, its parameters, or groups of parameters with their own options."""
    train = config.run.train
    names = list(train.optimizers())
    chosen: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    left = dict(trained)
    for i, group in enumerate(train.groups):
        where = config.origin(f"train.groups.{i}") or config.origin("train.groups")
        matched = {name: p for name, p in left.items() if re.search(group.match, name)}
        if not matched:
            raise UsageError(
                f"{where}: train.groups.{i}.match: no trained parameter outside the previous groups matches "
                f"{group.match!r}; there are {listing(list(left))}"
            )
        by_owner: dict[str, list[nn.Parameter]] = {}
        for name, parameter in matched.items():
            owner = group.optimizer if group.optimizer is not None else _owner(name, names)
            by_owner.setdefault(owner, []).append(parameter)
            del left[name]
        for owner, parameters in by_owner.items():
            chosen.setdefault(owner, []).append({"params": parameters, **group.options})
    for name, parameter in left.items():
        owner = _owner(name, names)
        rest = next((g for g in chosen.get(owner, []) if g.get("rest")), None)
        if rest is None:
            rest = {"params": [], "rest": True}
            chosen.setdefault(owner, []).insert(0, rest)
        rest["params"].append(parameter)
    where = config.origin("train.optimizer")
    if names and (lost := chosen.pop(_NOBODY, None)):
        ids = {id(parameter) for group in lost for parameter in group["params"]}
        orphans = [name for name, parameter in trained.items() if id(parameter) in ids]
        raise UsageError(
            f"{where}: train.optimizer: {len(orphans)} parameters belong to no optimizer "
            f"({listing(orphans)}); name the optimizers after the parts of the model that they train, use "
            "train.groups, or call requires_grad_(False) on what is not trained"
        )
    for name, groups in chosen.items():
        if not groups and name in names:
            raise UsageError(
                f"{where}: train.optimizer: {name or 'the optimizer'} has no parameters to train"
            )
        for each in groups:
            each.pop("rest", None)
    return [
        groups[0]["params"] if len(groups) == 1 and set(groups[0]) == {"params"} else groups
        for groups in (chosen[name] for name in names)
    ]


_NOBODY = "\0"


def _owner(parameter: str, names: Sequence[str]) -> str:
    """Return the optimizer of a parameter: the only one, or the one named after its part of the model."""
    if list(names) == [""]:
        return ""
    return next((n for n in names if parameter == n or parameter.startswith(f"{n}.")), _NOBODY)


def norms_of(module: nn.Module, frozen: Sequence[nn.Parameter]) -> list[nn.Module]:
    """Return the layers whose running statistics are frozen with these parameters.

    These are the layers whose own parameters are all frozen or, for layers without parameters, those of
    their parent module.
    """
    ids, parts = {id(p) for p in frozen}, dict(module.named_modules())
    found: list[nn.Module] = []
    for name, part in parts.items():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            around = part if any(True for _ in part.parameters()) else parts[name.rpartition(".")[0]]
            own = [id(p) for p in around.parameters()]
            found += [part] if own and ids.issuperset(own) else []
    return found


def fine_tuned(config: Config, module: nn.Module, named: Named) -> list[Frozen]:
    """Return everything outside the scopes of `train.fine_tune`, as frozen."""
    inside: set[str] = set()
    for i, scope in enumerate(config.run.train.fine_tune):
        lies = {name for name in named if name == scope or name.startswith(f"{scope}.")}
        if not lies:
            where = config.origin(f"train.fine_tune.{i}") or config.origin("train.fine_tune")
            parts = list(dict.fromkeys(name.rpartition(".")[0] or name for name in named))
            best = nearest(scope, parts)
            hint = f"did you mean {best}?" if best else f"there are {listing(parts)}"
            raise UsageError(f"{where}: train.fine_tune.{i}: {scope!r} contains no parameters; {hint}")
        inside |= lies
    outside = [parameter for name, parameter in named.items() if name not in inside]
    return [Frozen(outside, None, norms_of(module, outside))] if inside and outside else []


def build_frozen(config: Config, module: nn.Module, named: Named, steps_per_epoch: int) -> list[Frozen]:
    """Return the frozen parameters, and until when they are frozen."""
    found = fine_tuned(config, module, named)
    for i, entry in enumerate(config.run.train.freeze):
        where = f"{config.origin(f'train.freeze.{i}') or config.origin('train.freeze')}: train.freeze.{i}"
        freeze = Freeze(match=entry) if isinstance(entry, str) else entry
        if freeze.up_to is not None:
            try:
                chosen = parameters_up_to(module, freeze.up_to)
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from None
        else:
            chosen = [p for name, p in named.items() if re.search(freeze.match or "", name)]
        if not chosen:
            what = freeze.match or freeze.up_to
            raise UsageError(f"{where}: {what!r} matches no parameter; there are {listing(list(named))}")
        norms = [] if freeze.statistics else norms_of(module, chosen)
        until = None if freeze.epochs is None else freeze.epochs * steps_per_epoch
        found.append(Frozen(chosen, until, norms))
    return found


def parameters_up_to(module: nn.Module, layer: str) -> list[nn.Parameter]:
    """Return the parameters of a module up to and including those of a layer, in the order of definition."""
    modules, named = [name for name, _ in module.named_modules() if name], dict(module.named_parameters())
    if layer not in modules:
        best = nearest(layer, modules)
        hint = f"did you mean {best!r}? " if best else ""
        raise UsageError(f"there is no module {layer!r}; {hint}there are {listing(modules)}")
    order = list(named)
    inside = [k for k, name in enumerate(order) if name.startswith(f"{layer}.")]
    before = modules[: modules.index(layer) + 1]
    others = [k for k, name in enumerate(order) if name.rpartition(".")[0] in before]
    last = inside[-1] if inside else max(others, default=-1)
    return [named[name] for name in order[: last + 1]]


def build_scheduler(
    component: Component, train: Train, optimizer: torch.optim.Optimizer, steps_per_epoch: int
) -> Any:
    """Build a schedule; a missing length or learning rate is derived from the training settings."""
    scale = steps_per_epoch if train.scheduler_every == "step" else 1
    total = (train.horizon or train.epochs) * scale
    rates = [group["lr"] for group in optimizer.param_groups]
    return set_length(component, total, rates).build(optimizer=optimizer)


def set_length(component: Component, total: int, rates: list[float]) -> Component:
    """Return a schedule with its length set; in a sequence, each lasts from one milestone to the next."""
    params = dict(component.params)
    if (missing := missing_horizon(component.path, params)) and component.path != WARMUP:
        params[missing] = total
    if missing := missing_rate(component.path, params):
        params[missing] = rates
    if component.path == WARMUP:
        rise = params.get("steps") or max(1, round(params.pop("share", 0.05) * total))
        params["steps"] = min(rise, total)
        if isinstance(params.get("then"), Component):
            params["then"] = set_length(params["then"], max(1, total - rise), rates)
    parts = params.get("schedulers")
    if isinstance(parts, list | tuple) and all(isinstance(part, Component) for part in parts):
        ends = [*params.get("milestones", ()), total] if "milestones" in params else [total] * len(parts)
        begins = [0, *ends] if "milestones" in params else [0] * len(parts)
        lengths = [max(1, int(end) - int(begin)) for begin, end in zip(begins, ends, strict=False)]
        lengths += [1] * len(parts)  # torch raises an error if there are too few milestones
        params["schedulers"] = [
            set_length(part, length, rates) for part, length in zip(parts, lengths, strict=False)
        ]
    return dataclasses.replace(component, params=params)


def load_weights(config: Config, module: nn.Module) -> int:
    """Load the weights of `train.warm_start` whose names match; return how many."""
    wanted = config.run.train.warm_start
    if wanted is None:
        return 0
    where = f"{config.origin('train.warm_start')}: train.warm_start"
    found: Mapping[str, Any] = read_weights(wanted.path)
    own = module.state_dict()
    matched = [name for name in found if name in own and re.search(wanted.match, name)]
    if not matched:
        raise UsageError(
            f"{where}: no weight in {wanted.path} has a name of the model and matches "
            f"{wanted.match!r}; it has {listing(list(found))}"
        )
    wrong = [n for n in matched if own[n].shape != found[n].shape]
    if wrong:
        shapes = ", ".join(f"{n} is {tuple(found[n].shape)}, not {tuple(own[n].shape)}" for n in wrong[:5])
        raise UsageError(f"{where}: shapes do not fit: {shapes}; leave them out with match")
    module.load_state_dict({name: found[name] for name in matched}, strict=False)
    return len(matched)
