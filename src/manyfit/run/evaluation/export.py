"""Exports of a model, each compared with the original before it is committed."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.config import Config
from manyfit.config.load import make_component
from manyfit.config.tree.project import project_root
from manyfit.config.typed.artifacts import Artifact, is_own_model
from manyfit.config.typed.roles import MODEL, TRAINER
from manyfit.core.errors import FolderError, ManyfitError, UsageError
from manyfit.core.files import read_bytes
from manyfit.core.names import nearest
from manyfit.core.quiet import mute
from manyfit.core.redaction import has_secrets, holds_secret, holds_value
from manyfit.core.state import State
from manyfit.core.version import __version__
from manyfit.data import Batch, once
from manyfit.data.randomness import own_randomness
from manyfit.learn.exporting import compare_outputs, describe_inputs
from manyfit.learn.kind import all_formats, kind_of
from manyfit.learn.models import Made, make_model
from manyfit.learn.packing import unpack
from manyfit.run.build.builder import Built
from manyfit.run.loop.cohort import describe_model
from manyfit.store import checkpoint, durable
from manyfit.store.files import read_json
from manyfit.store.folder import RunFolder
from manyfit.store.weights import read_tensors

log = logging.getLogger("manyfit")

FORMAT: Final = 1
CARD: Final[Mapping[str, type]] = {"format": int, "model": dict, "digest": str}


def export_weights(
    config: Config, run: RunFolder, built: Built, step: int, target: Path | None = None
) -> Path:
    """Write `exported/`: weights as safetensors, and the import path and arguments to rebuild the model.

    Other formats of the same weights are preserved.
    """
    from safetensors.torch import save

    final = target or run.exported
    (weights,) = built.learner.weights()
    data = save({n: t.detach().cpu().clone().contiguous() for n, t in weights.tensors.items()})
    if holds_value(data):
        raise UsageError("the model holds a secret, which would be exported with it")
    batch = sample(built)
    temporary = run.path / ".exported.tmp"
    if temporary.exists() or temporary.is_symlink():
        durable.discard(temporary)
    temporary.mkdir()
    durable.write_new(temporary / "model.safetensors", data)
    card = {
        "format": FORMAT,
        "manyfit": __version__,
        "model": describe_model(config),
        "extra": dict(weights.extra),
        "step": step,
        "inputs": describe_inputs(batch.inputs),
        "digest": hashlib.sha256(data).hexdigest(),
    }
    durable.write_new(temporary / "model.json", json.dumps(card, indent=1) + "\n")
    again = rebuild(temporary, project=config.project, artifact=config.given.artifact)
    learner = built.learner
    compare_outputs(learner.predict(batch), learner.predict(batch, again), "the exported model")
    if final.is_dir() and read_exported_step(final) == step:
        for other in final.iterdir():
            if other.name not in ("model.json", "model.safetensors") and not other.name.startswith("."):
                check_plain(other)
                copied = temporary / other.name
                shutil.copytree(other, copied) if other.is_dir() else shutil.copy2(other, copied)
    final.parent.mkdir(parents=True, exist_ok=True)
    durable.commit_folder(temporary, final)
    return final


def check_plain(place: Path) -> None:
    """Raise an error for links, pipes and devices in what is copied: they would lead out of the folder."""
    for path in (place, *(place.rglob("*") if place.is_dir() and not place.is_symlink() else ())):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise FolderError(f"{path} is neither a file nor a folder; remove it")


def check_formats(formats: Sequence[str]) -> None:
    """Raise an error for a format that no kind of learner has."""
    known = all_formats()
    unknown = [name for name in formats if name not in known]
    if unknown:
        best = nearest(unknown[0], known)
        hint = f"did you mean {best}?" if best else f"there are {', '.join(known)}"
        raise UsageError(f"there is no format {unknown[0]!r}; {hint}")


def export_format(built: Built, run: RunFolder, name: str) -> Path:
    """Write the model in one further format into `exported/`, after comparing it with the original."""
    form = built.kind.formats.get(name)
    if form is None:
        others = ", ".join(built.kind.formats) or "none"
        what = built.kind.noun or built.kind.name
        raise UsageError(f"{what} cannot be exported as {name}; besides safetensors there are: {others}")
    final = run.exported / form.name
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".tmp-{final.name}")  # exporters check the suffix
    try:
        if temporary.exists():
            durable.discard(temporary)
        with warnings.catch_warnings(), mute("torch.onnx", "onnxscript", "onnx_ir"):
            warnings.simplefilter("ignore")  # exporters warn about their own internals
            form.write(built.learner, sample(built), temporary)
        check_secrets(temporary)
        if form.is_folder:
            durable.commit_folder(temporary, final)
        else:
            durable.write_file(final, temporary.read_bytes())
    finally:
        if temporary.exists():
            durable.discard(temporary)
    return final


def export_best(config: Config, run: RunFolder, built: Built, step: int) -> None:
    """Export the model of a finished run in the usual formats of its kind and those of the config."""
    export_weights(config, run, built, step)
    asked, is_auto = config.run.export.formats, config.run.export.formats == "auto"
    usual = built.kind.usual_formats(built.learner, is_auto)
    for name in dict.fromkeys([*usual, *(() if is_auto else asked)]):
        try:
            export_format(built, run, name)
        except Exception as error:  # exporters raise any type; the weights are already exported
            log.info("an export failed", exc_info=error)
            reason = str(error).strip().partition("\n")[0][:200]
            log.warning("%s is not exported as %s: %s", run.path, name, reason)


def export_others(config: Config, run: RunFolder, built: Built, best: checkpoint.Checkpoint) -> None:
    """Export the last and the best checkpoints, if the config asks for them; then reload the best."""
    asked, found = config.run.export, run.checkpoints()
    wanted: dict[Path, checkpoint.Checkpoint] = {}
    if "final" in asked.exporters:
        wanted[run.final] = found[-1]
    if "top" in asked.exporters:
        ranked = checkpoint.Keep(asked.metric, asked.mode).rank(found)[: asked.top]
        wanted |= {run.top / f"{i}-step-{each.step}": each for i, each in enumerate(ranked, 1)}
    for old in (run.final, *(run.top.iterdir() if run.top.is_dir() else ())):
        if old.is_dir() and old not in wanted:
            durable.discard(old)
    for folder, each in wanted.items():
        built.learner.load([each.load()])
        export_weights(config, run, built, each.step, folder)
    if wanted:
        built.learner.load([best.load()])


def read_exported_step(folder: Path) -> int:
    """Return the step of an export's weights; -1 if there is none."""
    card = read_json(folder / "model.json", CARD)
    return int(card.get("step", -1)) if card else -1


def load_export(folder: Path, trust: bool = False) -> Any:
    """Load a model from an export or a checkpoint; artifacts from elsewhere are restricted unless trusted."""
    model, root = read_contents(folder).model, project_root(folder).resolve()
    return rebuild(folder, artifact=None if trust or is_own_model(model, root) else Artifact.at(folder))


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an export or a checkpoint: description of the model, weights, form of the inputs."""

    model: Mapping[str, Any]
    weights: Mapping[str, Any] | None
    state: State | None = None
    """The state of the learner, for a checkpoint; its kind extracts the part of the model."""
    inputs: Any = None


def read_contents(folder: Path) -> Contents:
    """Read an export or a checkpoint."""
    if (folder / "model.json").is_file():
        card = read_json(folder / "model.json", CARD)
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise FolderError(f"{folder} is damaged: it has no model.safetensors")
        if hashlib.sha256(read_bytes(weights)).hexdigest() != card["digest"]:
            raise FolderError(f"{weights} is damaged: its contents have changed since it was written")
        state = {**read_tensors(weights), **unpack(State({}, card.get("extra", {})))}
        found = Contents(card["model"], state, inputs=card.get("inputs"))
    else:
        read = checkpoint.read(folder)
        found = Contents(read.note.model, None, read.load())
    if not isinstance(found.model, dict) or not isinstance(found.model.get("component"), dict):
        raise FolderError(f"{folder} does not describe the model it holds")
    return found


def rebuild(folder: Path, project: Path | None = None, artifact: Artifact | None = None) -> Any:
    """Rebuild a model from an export or a checkpoint. Code is never imported from inside that folder."""
    found = read_contents(folder)
    root = (project or project_root(folder)).resolve()
    source = root / str(found.model.get("src_code_path", "src"))
    outside = project is None and (".." in source.parts or not source.is_relative_to(root))
    if outside or source.resolve().is_relative_to(folder.resolve()):
        source = root / "src"
        if source.resolve().is_relative_to(folder.resolve()):
            source = folder / "there is no code in an artifact"
    role = TRAINER if found.model.get("role") == "trainer" else MODEL
    component = make_component(found.model["component"], role.name, role, root, source, artifact)
    return restore(make_model(component), found, folder)


def restore(made: Made, found: Contents, place: object) -> Any:
    """Return a model with the weights of an export or a checkpoint, ready to predict."""
    kind = kind_of(made.model)
    try:
        weights = found.weights
        if weights is None:
            assert found.state is not None
            weights = kind.model_state(found.state)
        return kind.restore(made.model, weights, found.inputs)
    except ManyfitError:
        raise
    except Exception as error:  # frameworks raise many types for weights of another model
        name, reason = type(made.model).__name__, " ".join(str(error).split())[:400]
        raise FolderError(f"{place}: the weights do not fit the model {name}: {reason}") from error


def sample(built: Built) -> Batch:
    """Return a few rows to compare models on."""
    source = built.split("validation") or built.split("test") or built.train
    with own_randomness():
        batch = next(once(source, min(built.order.batch_size, 8)))
    return batch


def check_secrets(place: Path) -> None:
    """Raise an error for an export that contains a secret that the model was given."""
    if not has_secrets():
        return
    for file in [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file()):
        parts = [file.read_bytes()]
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                parts += [archive.read(name) for name in archive.namelist()]
        if any(map(holds_secret, parts)):
            raise UsageError("the model holds a secret, which would be exported with it")
