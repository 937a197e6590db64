"""A model in forms that others can load, each checked against the original before it is kept."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from manyfit.config import Config
from manyfit.config.load import make_component
from manyfit.config.project import project_root
from manyfit.config.roles import MODEL
from manyfit.core.errors import FolderError, RunFailed, UsageError
from manyfit.core.lazy import optional
from manyfit.core.state import State
from manyfit.core.version import __version__
from manyfit.data import Batch, once
from manyfit.data.randomness import own_randomness
from manyfit.learn.pack import pack, unpack
from manyfit.run.build import Built
from manyfit.run.cohort import describe_model
from manyfit.store import checkpoint, durable
from manyfit.store.files import read_json
from manyfit.store.folder import RunFolder
from manyfit.store.weights import read_tensors

FORMAT: Final = 1
CARD: Final[Mapping[str, type]] = {"format": int, "model": dict, "digest": str}


def export_weights(config: Config, run: RunFolder, built: Built, step: int) -> Path:
    """Write `exported/`: safetensors, and what it takes to rebuild the model: import path and arguments."""
    from safetensors.torch import save

    module = built.learner.evaluated.eval()
    temporary = run.path / ".exported.tmp"
    if temporary.exists() or temporary.is_symlink():
        durable.discard(temporary)
    temporary.mkdir(parents=True)
    state = module.state_dict()
    data = save({n: t.detach().cpu().clone().contiguous() for n, t in state.items() if isinstance(t, Tensor)})
    rest = pack({name: value for name, value in state.items() if not isinstance(value, Tensor)})
    durable.write_new(temporary / "model.safetensors", data)
    card = {
        "format": FORMAT,
        "manyfit": __version__,
        "model": describe_model(config),
        "extra": rest.values,
        "step": step,
        "digest": hashlib.sha256(data).hexdigest(),
    }
    durable.write_new(temporary / "model.json", json.dumps(card, indent=1) + "\n")
    batch = sample(built)
    again = rebuild(temporary, project=config.project).to(built.learner.device)
    compare(outputs(built, module, batch), outputs(built, again, batch), "the exported model")
    durable.commit_folder(temporary, run.exported)
    return run.exported


def export_program(built: Built, run: RunFolder) -> Path:
    """Write a `torch.export` program. manyfit never reads one: its loader unpickles."""
    module = copy.deepcopy(built.learner.evaluated).eval().cpu()
    args = arguments(sample(built))
    program = torch.export.export(module, args, dynamic_shapes=_dynamic(args))
    compare(module(*args), program.module()(*args), "the exported program")
    return _kept(run.exported / "model.pt2", lambda file: torch.export.save(program, file))


def export_onnx(built: Built, run: RunFolder) -> Path:
    """Write ONNX, and check it with onnxruntime."""
    optional("onnx", "onnx")
    optional("onnxscript", "onnx")
    runtime = optional("onnxruntime", "onnx")
    module = copy.deepcopy(built.learner.evaluated).eval().cpu()
    args = arguments(sample(built))

    def write(file: Path) -> None:
        torch.onnx.export(
            module, args, str(file), dynamo=True, verbose=False, external_data=False,
            dynamic_shapes=_dynamic(args),
        )  # fmt: skip
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [given.name for given in session.get_inputs()]
        found = session.run(None, {n: a.numpy() for n, a in zip(names, args, strict=True)})
        compare(module(*args), torch.from_numpy(found[0]), "the ONNX model", loose=True)

    return _kept(run.exported / "model.onnx", write)


FORMATS: Final[Mapping[str, Callable[[Built, RunFolder], Path]]] = {
    "torch": export_program,
    "onnx": export_onnx,
}


def exported_step(folder: Path) -> int:
    """The step whose weights an export holds; -1 if there is none."""
    card = read_json(folder / "model.json", CARD)
    return int(card.get("step", -1))


def rebuild(folder: Path, project: Path | None = None) -> nn.Module:
    """A model from an export or a checkpoint alone. The code that it names is not looked for inside of it."""
    if (folder / "model.json").is_file():
        card = read_json(folder / "model.json", CARD)
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise FolderError(f"{folder} is damaged: it has no model.safetensors")
        if hashlib.sha256(weights.read_bytes()).hexdigest() != card["digest"]:
            raise FolderError(f"{weights} is damaged: it is not what was written")
        state = {**read_tensors(weights), **unpack(State({}, card.get("extra", {})))}
    else:
        found = checkpoint.read(folder)
        card, state = {"model": found.note.model}, evaluated_state(found)
    model = card["model"]
    if not isinstance(model.get("component"), dict):
        raise FolderError(f"{folder} does not say which model it holds")
    root = (project or project_root(folder)).resolve()
    source = root / str(model.get("src_code_path", "src"))
    outside = project is None and (".." in source.parts or not source.is_relative_to(root))
    if outside or source.resolve().is_relative_to(folder.resolve()):
        source = root / "src"
        if source.resolve().is_relative_to(folder.resolve()):
            source = folder / "there is no code in an artifact"
    module: nn.Module = make_component(model["component"], "model", MODEL, root, source).build()
    module.load_state_dict(state)
    return module.eval()


def evaluated_state(found: checkpoint.Checkpoint) -> dict[str, Any]:
    """The state of the model in a checkpoint: of the average, if there is one."""
    parts = unpack(found.load())
    if "average" not in parts:
        return dict(parts["model"])
    prefix = "module."
    return {n.removeprefix(prefix): v for n, v in parts["average"].items() if n.startswith(prefix)}


def sample(built: Built) -> Batch:
    """A few rows, to check a model on."""
    source = built.split("validation") or built.split("test") or built.train
    with own_randomness():
        batch = next(once(source, min(built.order.batch_size, 8)))
    return batch


@torch.no_grad()
def outputs(built: Built, module: nn.Module, batch: Batch) -> Tensor:
    """What a model says about a batch."""
    with own_randomness():
        return built.learner.objective.rows(module, batch)[0]


def arguments(batch: Batch) -> tuple[Tensor, ...]:
    """The inputs of a batch, by position."""
    inputs = batch.inputs
    if isinstance(inputs, dict):
        raise UsageError("a model that is called by names can only be exported as safetensors")
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return tuple(torch.as_tensor(np.asarray(array)) for array in given)


def compare(original: Any, other: Any, what: str, loose: bool = False) -> None:
    """Refuse an export that does not say the same as the original."""
    left, right = (x[0] if isinstance(x, tuple | list) else x for x in (original, other))
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if loose else {"rtol": 1e-5, "atol": 1e-6}
    left, right = left.detach().cpu(), right.detach().cpu()
    if left.shape != right.shape or not torch.allclose(left, right, equal_nan=True, **tolerance):
        far = (left - right).abs().max().item() if left.shape == right.shape else "another shape"
        raise RunFailed(
            f"{what} does not say the same as the original on a batch (difference {far}); not kept"
        )


def _dynamic(args: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    return tuple({0: torch.export.Dim.AUTO} for _ in args)


def _kept(final: Path, write: Callable[[Path], object]) -> Path:
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".tmp-{final.name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of exporters, about themselves
            write(temporary)
        durable.write(final, temporary.read_bytes())
    finally:
        temporary.unlink(missing_ok=True)
    return final
