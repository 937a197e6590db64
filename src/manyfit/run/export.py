"""A model in forms that others can load, each checked against the original before it is kept."""

from __future__ import annotations

import hashlib
import json
import shutil
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
from manyfit.core.version import __version__
from manyfit.data import Batch, once
from manyfit.data.randomness import own_randomness
from manyfit.run.build import Built
from manyfit.run.cohort import describe_model
from manyfit.store import checkpoint, durable
from manyfit.store.files import read_json
from manyfit.store.folder import RunFolder
from manyfit.store.weights import read_tensors, weights_of

FORMAT: Final = 1
CARD: Final[Mapping[str, type]] = {"format": int, "model": dict, "digest": str}


def export_weights(config: Config, run: RunFolder, built: Built, step: int) -> Path:
    """Write `exported/`: safetensors, and what it takes to rebuild the model: import path and arguments."""
    from safetensors.torch import save

    module = built.learner.evaluated.eval()
    temporary = run.path / ".exported.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    data = save(
        {name: tensor.detach().cpu().clone().contiguous() for name, tensor in module.state_dict().items()}
    )
    durable.write_new(temporary / "model.safetensors", data)
    card = {
        "format": FORMAT,
        "manyfit": __version__,
        "model": describe_model(config),
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
    module = built.learner.evaluated.eval().cpu()
    args = arguments(sample(built))
    program = torch.export.export(module, args, dynamic_shapes=None if not args else _dynamic(args))
    compare(module(*args), program.module()(*args), "the exported program")
    return _kept(run.exported / "model.pt2", lambda file: torch.export.save(program, file))


def export_onnx(built: Built, run: RunFolder) -> Path:
    """Write ONNX, and check it with onnxruntime."""
    optional("onnx", "onnx")
    optional("onnxscript", "onnx")
    runtime = optional("onnxruntime", "onnx")
    module = built.learner.evaluated.eval().cpu()
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


def rebuild(folder: Path, project: Path | None = None) -> nn.Module:
    """A model from an export or a checkpoint alone."""
    if (folder / "model.json").is_file():
        card = read_json(folder / "model.json", CARD)
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise FolderError(f"{folder} is damaged: it has no model.safetensors")
        if hashlib.sha256(weights.read_bytes()).hexdigest() != card["digest"]:
            raise FolderError(f"{weights} is damaged: it is not what was written")
        tensors = read_tensors(weights)
    else:
        found = checkpoint.read(folder)
        card, tensors = {"model": found.note.model}, weights_of(found)
    model = card["model"]
    if not isinstance(model.get("component"), dict):
        raise FolderError(f"{folder} does not say which model it holds")
    root = project or project_root(folder)
    source = root / str(model.get("src_code_path", "src"))
    module: nn.Module = make_component(model["component"], "model", MODEL, root, source).build()
    module.load_state_dict(tensors)
    return module.eval()


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
        write(temporary)
        durable.write(final, temporary.read_bytes())
    finally:
        temporary.unlink(missing_ok=True)
    return final
