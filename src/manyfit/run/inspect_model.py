"""What a run is made of: the layers of its model, its schedule, and the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manyfit.config import load_config
from manyfit.core.errors import FolderError, UsageError
from manyfit.data import once
from manyfit.data.nested import named_arrays
from manyfit.data.randomness import own_randomness
from manyfit.learn.rate_sweep import trace_rates
from manyfit.run.build.builder import build
from manyfit.run.build.modes import compute_as
from manyfit.store.checkpoint import checkpoints, find_damaged, is_checkpoint


def list_layers(place: Path, trust: bool = False) -> list[tuple[str, str, int, str]]:
    """Return name, class, number of parameters and output shape of each layer, from one batch."""
    import torch

    config = load_config(place, trust=trust)
    shapes: dict[str, str] = {}
    with own_randomness(), compute_as(config.run.train):
        built = build(config)
        (model,) = built.learner.models
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"{type(model).__name__} has no layers of torch to show")
        handles = []
        for name, part in model.named_modules():

            def note(_: Any, __: Any, output: Any, name: str = name) -> None:
                arrays = [array for _, array in named_arrays(output) if hasattr(array, "shape")]
                shapes[name] = ", ".join(str(tuple(array.shape)) for array in arrays)

            handles.append(part.register_forward_hook(note))
        batch = next(once(built.split("validation") or built.train, min(2, built.order.batch_size)))
        model.eval()
        built.learner.predict(batch)
        for handle in handles:
            handle.remove()
        rows = []
        for name, part in model.named_modules():
            own = sum(parameter.numel() for parameter in part.parameters(recurse=not name))
            rows.append((name or "(model)", type(part).__name__, own, shapes.get(name, "–")))
        return rows


def list_tensors(folder: Path) -> Iterator[tuple[str, str, str, float]]:
    """Yield name, shape, type and norm of each tensor of a checkpoint."""
    if not is_checkpoint(folder):
        raise FolderError(f"{folder} is not a checkpoint: it has no manifest.json")
    found = next((each for each in checkpoints(folder.parent) if each.path.name == folder.name), None)
    if found is None:
        raise FolderError(find_damaged(folder.parent).get(folder, f"{folder} cannot be read as a checkpoint"))
    state = found.load()
    for name, tensor in state.tensors.items():
        norm = float(tensor.double().norm()) if tensor.numel() else 0.0
        yield name, str(list(tensor.shape)), str(tensor.dtype).removeprefix("torch."), norm


def trace_schedule(place: Path, trust: bool = False) -> tuple[int, dict[str, list[float]]]:
    """Return the steps per epoch, and the rates (and momentum) of every step, without training."""
    config = load_config(place, trust=trust)
    with own_randomness(), compute_as(config.run.train):
        built = build(config)
        total = built.plan.epochs * built.plan.steps_per_epoch
        found = trace_rates(built.learner, total)
        return built.plan.steps_per_epoch, found
