"""A model in forms that others can load, each checked against the original before it is kept."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
import os
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from manyfit.config import Config
from manyfit.config.allowed import KERAS_CLASSES, KERAS_DATA, KERAS_PARTS
from manyfit.config.artifact import Artifact, is_own_model
from manyfit.config.load import make_component
from manyfit.config.project import project_root
from manyfit.config.resolve import resolve
from manyfit.config.roles import ANY, MODEL
from manyfit.core.errors import FolderError, ManyfitError, RunFailed, UsageError
from manyfit.core.files import read_bytes
from manyfit.core.lazy import optional
from manyfit.core.muted import muted
from manyfit.core.secrets import has_secrets, holds_secret, holds_value
from manyfit.core.state import State
from manyfit.core.version import __version__
from manyfit.data import ArraySource, Batch, once
from manyfit.data.nested import Nested, leaves, mapped
from manyfit.data.randomness import own_randomness
from manyfit.learn.estimator.learner import EstimatorLearner
from manyfit.learn.keras.learner import KerasLearner
from manyfit.learn.models import Made, make_model
from manyfit.learn.packing import pack, unpack
from manyfit.learn.torch.learner import TorchLearner
from manyfit.run.build import Built
from manyfit.run.cohort import describe_model
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
    """Write `exported/`: safetensors, and what it takes to rebuild the model: import path and arguments.

    Other forms of the same weights stay there.
    """
    from safetensors.torch import save

    final = target or run.exported
    tensors, rest = contents(built)
    data = save({n: t.detach().cpu().clone().contiguous() for n, t in tensors.items()})
    if holds_value(data):
        raise UsageError("the model has kept a secret, which would be exported with it")
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
        "extra": rest.values,
        "step": step,
        "inputs": described(batch.inputs),
        "digest": hashlib.sha256(data).hexdigest(),
    }
    durable.write_new(temporary / "model.json", json.dumps(card, indent=1) + "\n")
    again = rebuild(temporary, project=config.project, artifact=config.given.artifact)
    compare(said(built, batch), said(built, batch, again), "the exported model")
    if final.is_dir() and exported_step(final) == step:
        for other in final.iterdir():
            if other.name not in ("model.json", "model.safetensors") and not other.name.startswith("."):
                check_plain(other)
                copied = temporary / other.name
                shutil.copytree(other, copied) if other.is_dir() else shutil.copy2(other, copied)
    final.parent.mkdir(parents=True, exist_ok=True)
    durable.commit_folder(temporary, final)
    return final


def check_plain(place: Path) -> None:
    """Refuse links, pipes and devices in what is copied: they would lead out of the folder."""
    for path in (place, *(place.rglob("*") if place.is_dir() and not place.is_symlink() else ())):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise FolderError(f"{path} is neither a file nor a folder; remove it")


def contents(built: Built) -> tuple[Mapping[str, Tensor], State]:
    """What an export holds of a model: its tensors, and the rest."""
    learner = built.learner
    if isinstance(learner, TorchLearner):
        state = learner.evaluated.eval().state_dict()
        rest = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
        return {n: t for n, t in state.items() if isinstance(t, Tensor)}, pack(rest)
    if isinstance(learner, KerasLearner):
        return learner.weights(), State({})
    return learner.state()[0].tensors, State({})


def described(inputs: Any) -> Any:
    """The shapes and types of the inputs of a batch, row by row."""
    if isinstance(inputs, dict):
        return {name: described(item) for name, item in inputs.items()}
    if isinstance(inputs, tuple | list):
        return [described(item) for item in inputs]
    return {"shape": list(np.shape(inputs)[1:]), "dtype": str(inputs.dtype).removeprefix("torch.")}


def example(inputs: Any) -> Any:
    """One row of zeros in the form that `described` says."""
    if isinstance(inputs, list):
        return tuple(example(item) for item in inputs)
    if set(inputs) == {"shape", "dtype"} and isinstance(inputs["dtype"], str):
        return np.zeros((1, *inputs["shape"]), dtype=inputs["dtype"])
    return {name: example(item) for name, item in inputs.items()}


def export_program(built: Built, run: RunFolder) -> Path:
    """Write a `torch.export` program. manyfit never reads one: its loader unpickles."""
    module = copy.deepcopy(built.module.evaluated).eval().cpu()
    args, named = arguments(built.module, sample(built))
    try:
        program = torch.export.export(module, args, named, dynamic_shapes=_dynamic(args, named))
    except Exception:  # of whatever kind: not every model can be told about several sizes
        log.info("only the number of rows is free in the exported program", exc_info=True)
        program = torch.export.export(module, args, named, dynamic_shapes=_dynamic(args, named, rows=True))
    compare(module(*args, **named), program.module()(*args, **named), "the exported program")
    return _kept(run.exported / "model.pt2", lambda file: torch.export.save(program, file))


def export_onnx(built: Built, run: RunFolder) -> Path:
    """Write ONNX, and check it with onnxruntime."""
    optional("onnx", "onnx")
    optional("onnxscript", "onnx")
    runtime = optional("onnxruntime", "onnx")
    module = copy.deepcopy(built.module.evaluated).eval().cpu()
    args, named = arguments(built.module, sample(built))

    outputs = names_of(module(*args, **named))
    inputs = list(inspect.signature(module.forward).parameters)[: len(args)] if not named else list(named)

    def converted(file: Path, rows: bool) -> None:
        torch.onnx.export(
            module, args, str(file), kwargs=named, dynamo=True, verbose=False, external_data=False,
            dynamic_shapes=_dynamic(args, named, rows), input_names=inputs, output_names=outputs,
        )  # fmt: skip

    def write(file: Path) -> None:
        try:
            converted(file, rows=False)
        except Exception:  # of whatever kind: not every model can be told about several sizes
            log.info("only the number of rows is free in the ONNX model", exc_info=True)
            converted(file, rows=True)
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [given.name for given in session.get_inputs()]
        given = {**dict(zip(names, args, strict=False)), **named}
        found = session.run(None, {n: given[n].numpy() for n in names})
        compare(module(*args, **named), found, "the ONNX model", loose=True)

    return _kept(run.exported / "model.onnx", write)


def names_of(output: Any) -> list[str]:
    """What the outputs of a model are called: as it says itself, or output, or output_0, output_1 …"""
    if isinstance(output, tuple | list) and len(output) == 2 and output[1] is None:
        output = output[0]
    if isinstance(output, Mapping):
        return [str(name) for name, value in output.items() if isinstance(value, Tensor)]
    if isinstance(output, tuple | list):
        return [f"output_{i}" for i, value in enumerate(output) if isinstance(value, Tensor)]
    return ["output"]


def keras_learner(built: Built) -> KerasLearner:
    """The learner, where only a model of Keras will do."""
    if not isinstance(built.learner, KerasLearner):
        raise UsageError(f"this needs a model of Keras, not {built.learner.describe()}")
    return built.learner


def export_keras(built: Built, run: RunFolder) -> Path:
    """Write `model.keras`, and see that it can be loaded without running code of its own."""
    learner = keras_learner(built)

    def write(file: Path) -> None:
        learner.model.save(file)
        carried = carried_code(file)
        if carried:
            log.warning(
                "model.keras holds code (%s): load_model refuses it unless it is named, allow=%s",
                ", ".join(carried),
                carried,
            )
        else:
            again = load_keras(file)
            batch = sample(built)
            compare(said(built, batch), said(built, batch, again), "model.keras")

    return _kept(run.exported / "model.keras", write)


def export_saved_model(built: Built, run: RunFolder) -> Path:
    """Write a SavedModel for TensorFlow's servers, and check what it says."""
    learner = keras_learner(built)
    if learner.backend != "tensorflow":
        raise UsageError(f"a SavedModel needs Keras on tensorflow, not on {learner.backend}")
    tensorflow: Any = optional("tensorflow", "tensorflow")
    temporary = run.exported / ".saved_model.tmp"
    if temporary.exists():
        durable.discard(temporary)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner.model.export(str(temporary), verbose=False)
        batch = sample(built)
        loaded = tensorflow.saved_model.load(str(temporary))  # which has to live while it is called
        found = _served(loaded, _cast(tensorflow, learner.inputs(batch), learner.model))
    compare(said(built, batch), mapped(learner.numpy, found), "the SavedModel", loose=True)
    try:
        check_secrets(temporary)
    except UsageError:
        durable.discard(temporary)
        raise
    durable.commit_folder(temporary, run.exported / "saved_model")
    return run.exported / "saved_model"


def _served(loaded: Any, given: Any) -> Any:
    """Call a SavedModel with several inputs as it wants them: together, or one by one."""
    ways: list[Callable[[], Any]] = [lambda: loaded.serve(given)]
    if isinstance(given, tuple | list):
        ways += [lambda: loaded.serve(list(given)), lambda: loaded.serve(*given)]
    elif isinstance(given, dict):
        ways += [lambda: loaded.serve(**given), lambda: loaded.serve(*given.values())]
    for way in ways[:-1]:
        try:
            return way()
        except (TypeError, ValueError):
            continue
    return ways[-1]()


def _cast(tensorflow: Any, given: Any, model: Any) -> Any:
    """Inputs in the types that a model has declared: Keras converts them itself, a SavedModel does not."""
    flat, declared = tensorflow.nest.flatten(given), list(getattr(model, "inputs", None) or ())
    if len(flat) != len(declared):
        return given
    made = [tensorflow.cast(tensor, each.dtype) for tensor, each in zip(flat, declared, strict=True)]
    return tensorflow.nest.pack_sequence_as(given, made)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep exporters from talking on standard output."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123
        yield


def _custom_objects(file: Path, allow: Collection[str]) -> dict[str, Any]:
    """The user's own classes that a `.keras` file names and somebody allows, imported from the project."""
    found: dict[str, Any] = {}
    for name in allow:
        module, _, attribute = name.rpartition(".")
        if module:
            source = project_root(file) / "src"
            found[attribute] = resolve(name, ANY, source if source.is_dir() else None)
    return found


UNREADABLE: Final = (
    OSError, KeyError, ValueError, RuntimeError, NotImplementedError, RecursionError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
"""What reading a file raises that is no archive, or not one that Keras wrote."""


def carried_code(file: Path) -> list[str]:
    """What in a `.keras` file is not a listed part of Keras: it may carry code, name it, or load it."""
    if not file.is_file():
        raise FolderError(f"there is no file {file}")
    try:
        with zipfile.ZipFile(file) as archive:
            config = json.loads(archive.read("config.json"))
    except UNREADABLE as error:
        raise FolderError(f"{file} is not a model that Keras has written: {error!r:.200}") from error
    found: dict[str, None] = {}

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if "class_name" in value and not _is_listed(value):
                found[_name_of(value)] = None
            for item in value.values():
                look(item)
        elif isinstance(value, list):
            for item in value:
                look(item)

    look(config)
    return list(found)


def _is_listed(part: Mapping[str, Any]) -> bool:
    """Whether a part of a Keras config is a class that only computes."""
    name, module = part["class_name"], part.get("module") or "keras.layers"
    if name in KERAS_DATA:
        return part.get("module") is None
    if (
        part.get("registered_name") not in (None, name)
        or not isinstance(name, str)
        or not name.isidentifier()
    ):
        return False
    is_part = any(module == each or str(module).startswith(f"{each}.") for each in KERAS_PARTS)
    return f"{module}.{name}" in KERAS_CLASSES or (is_part and name[:1].isupper() and name.isidentifier())


def _name_of(part: Mapping[str, Any]) -> str:
    """What a part is called when it is refused, and by whoever allows it."""
    name, module = str(part["class_name"]), part.get("module")
    own = isinstance(module, str) and module.partition(".")[0] not in ("keras", "builtins")
    return f"{module}.{name}" if own else name


def load_keras(file: Path, allow: Collection[str] = ()) -> Any:
    """Load a `.keras` file. Code that it carries or names is refused, unless it is named here."""
    keras: Any = optional("keras", "keras")
    refused = [name for name in carried_code(file) if name not in allow]
    if refused:
        raise UsageError(
            f"{file} holds code ({', '.join(refused)}), which is not run; if you trust it: allow={refused}"
        )
    named = any(name in ("Lambda", "__lambda__") for name in allow)
    try:
        found = _custom_objects(file, allow)
        return keras.saving.load_model(file, custom_objects=found, safe_mode=not named)
    except Exception as error:  # of Keras and h5py, about a file that is not what they wrote
        reason = " ".join(str(error).split())[:400]
        raise FolderError(f"{file} cannot be loaded: {type(error).__name__}: {reason}") from error


def export_skops(built: Built, run: RunFolder) -> Path:
    """Write an estimator as a file that skops opens, also where there is no manyfit."""
    if not isinstance(built.learner, EstimatorLearner):
        raise UsageError(f"this needs an estimator, not {built.learner.describe()}")
    skops: Any = optional("skops.io", "estimators")
    model = built.learner.model
    return _kept(run.exported / "model.skops", lambda file: skops.dump(model, file))


FORMATS: Final[Mapping[str, Callable[[Built, RunFolder], Path]]] = {
    "torch": export_program,
    "onnx": export_onnx,
    "keras": export_keras,
    "saved_model": export_saved_model,
    "skops": export_skops,
}


def export_best(config: Config, run: RunFolder, built: Built, step: int) -> None:
    """Export the model of a run that is over, in every form that its users expect."""
    export_weights(config, run, built, step)
    asked, is_torch = config.run.export.formats, isinstance(built.learner, TorchLearner)
    names: list[str] = ["torch"] * is_torch if asked == "auto" else list(asked)
    if isinstance(built.learner, KerasLearner):
        usual = ["keras", "saved_model"] if built.learner.backend == "tensorflow" else ["keras"]
        names = list(dict.fromkeys([*usual, *names]))
    if isinstance(built.learner, EstimatorLearner):
        names = list(dict.fromkeys(["skops", *names]))
    for name in names:
        try:
            FORMATS[name](built, run)
        except Exception as error:  # of an exporter, whatever it is: the model itself is exported
            log.info("an export failed", exc_info=error)
            reason = str(error).strip().partition("\n")[0][:200]
            log.warning("%s is not exported as %s: %s", run.path, name, reason)


def export_others(config: Config, run: RunFolder, built: Built, best: checkpoint.Checkpoint) -> None:
    """Export the last checkpoint and the best ones, if the config asks for them; then load the best again."""
    asked, found = config.run.export, run.checkpoints()
    wanted: dict[Path, checkpoint.Checkpoint] = {}
    if "final" in asked.exporters:
        wanted[run.final] = found[-1]
    if "top" in asked.exporters:
        ranked = checkpoint.Keep(asked.metric, asked.mode).ranked(found)[: asked.top]
        wanted |= {run.top / f"{i}-step-{each.step}": each for i, each in enumerate(ranked, 1)}
    for old in (run.final, *(run.top.iterdir() if run.top.is_dir() else ())):
        if old.is_dir() and old not in wanted:
            durable.discard(old)
    for folder, each in wanted.items():
        built.learner.load([each.load()])
        export_weights(config, run, built, each.step, folder)
    if wanted:
        built.learner.load([best.load()])


def exported_step(folder: Path) -> int:
    """The step whose weights an export holds; -1 if there is none."""
    card = read_json(folder / "model.json", CARD)
    return int(card.get("step", -1)) if card else -1


def load(folder: Path, trust: bool = False) -> Any:
    """A model from an export or a checkpoint alone; what was not made here is data, unless it is trusted."""
    model, root = contents_of(folder)[0], project_root(folder).resolve()
    return rebuild(folder, artifact=None if trust or is_own_model(model, root) else Artifact.at(folder))


def contents_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """What an export or a checkpoint holds: what its model is, its state, and the form of its inputs."""
    if (folder / "model.json").is_file():
        card = read_json(folder / "model.json", CARD)
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise FolderError(f"{folder} is damaged: it has no model.safetensors")
        if hashlib.sha256(read_bytes(weights)).hexdigest() != card["digest"]:
            raise FolderError(f"{weights} is damaged: it is not what was written")
        state = {**read_tensors(weights), **unpack(State({}, card.get("extra", {})))}
    else:
        found = checkpoint.read(folder)
        card, state = {"model": found.note.model}, evaluated_state(found)
    model = card["model"]
    if not isinstance(model, dict) or not isinstance(model.get("component"), dict):
        raise FolderError(f"{folder} does not say which model it holds")
    return model, state, card.get("inputs")


def rebuild(folder: Path, project: Path | None = None, artifact: Artifact | None = None) -> Any:
    """A model from an export or a checkpoint. The code that it names is not looked for inside of it."""
    model, state, inputs = contents_of(folder)
    root = (project or project_root(folder)).resolve()
    source = root / str(model.get("src_code_path", "src"))
    outside = project is None and (".." in source.parts or not source.is_relative_to(root))
    if outside or source.resolve().is_relative_to(folder.resolve()):
        source = root / "src"
        if source.resolve().is_relative_to(folder.resolve()):
            source = folder / "there is no code in an artifact"
    made = make_model(make_component(model["component"], "model", MODEL, root, source, artifact))
    return restored(made, state, inputs, folder)


def restored(made: Made, state: Mapping[str, Any], inputs: Any = None, place: object = "") -> Any:
    """A model with weights from elsewhere, ready to predict."""
    try:
        return _filled(made, state, inputs)
    except ManyfitError:
        raise
    except Exception as error:  # of torch, Keras or skops, about weights that are not those of the model
        name, reason = type(made.model).__name__, " ".join(str(error).split())[:400]
        raise FolderError(f"{place}: the weights do not fit the model {name}: {reason}") from error


def _filled(made: Made, state: Mapping[str, Any], inputs: Any) -> Any:
    if made.is_keras:
        if not made.model.built:
            if inputs is None:
                raise UsageError("this model has no weights before it is called; load its export instead")
            made.model(example(inputs))
        own = list(made.model.variables)
        if len(own) != len(state):
            raise FolderError(f"the model has {len(own)} variables, but {len(state)} were written")
        for variable, name in zip(own, sorted(state, key=int), strict=True):
            variable.assign(state[name].numpy().astype(str(variable.dtype).replace("bfloat16", "float32")))
        return made.model
    if made.is_estimator:
        learner = EstimatorLearner(made.model, ArraySource(np.zeros((0, 1))))
        learner.load([State(dict(state), {"step": 1, "loss": None})])
        return learner.model
    made.model.load_state_dict(dict(state))
    return made.model.eval()


def evaluated_state(found: checkpoint.Checkpoint) -> dict[str, Any]:
    """The state of the model in a checkpoint: of the average, if there is one."""
    state = found.load()
    if "model" not in state.values:  # of Keras, or of an estimator
        own = {n.removeprefix("model/"): t for n, t in state.tensors.items() if n.startswith("model/")}
        return own or dict(state.tensors)
    parts = unpack(state)
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


def said(built: Built, batch: Batch, model: Any = None) -> Nested:
    """What the learner's model, or another one in its place, says about a batch."""
    learner = built.learner
    if isinstance(learner, TorchLearner):
        model = learner.evaluated if model is None else model.to(learner.device)
        with own_randomness(), torch.no_grad():
            return learner.objective.rows(model, batch)[2]
    model = learner.model if model is None else model
    if isinstance(learner, KerasLearner):
        return mapped(learner.numpy, model(learner.inputs(batch), training=False))
    (found,) = replace(learner, model=model).evaluate(iter([replace(batch, target=None)]))
    return found.every(0)[0]


def arguments(learner: TorchLearner, batch: Batch) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The inputs of a batch as a model is called with them: by position, or by name."""
    inputs = batch.inputs
    if isinstance(inputs, dict):
        taken = learner.objective.taken(inputs)
        return (), {name: torch.as_tensor(np.asarray(array)) for name, array in taken.items()}
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return tuple(torch.as_tensor(np.asarray(array)) for array in given), {}


def compare(original: Any, other: Any, what: str, loose: bool = False) -> None:
    """Refuse an export that does not say the same as the original."""
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if loose else {"rtol": 1e-5, "atol": 1e-6}
    outputs, found = list(leaves(original)), list(leaves(other))
    if len(outputs) != len(found):
        raise RunFailed(f"{what} has {len(found)} outputs, but the original {len(outputs)}; not kept")
    if dict(outputs).keys() == dict(found).keys():  # they may come in another order
        found = [(name, dict(found)[name]) for name, _ in outputs]
    for (_, one), (_, two) in zip(outputs, found, strict=True):
        left, right = (
            v.detach().cpu() if isinstance(v, Tensor) else torch.from_numpy(np.array(v)) for v in (one, two)
        )
        if left.shape != right.shape or not torch.allclose(left, right, equal_nan=True, **tolerance):
            far = (left - right).abs().max().item() if left.shape == right.shape else "another shape"
            raise RunFailed(
                f"{what} does not say the same as the original on a batch (difference {far}); not kept"
            )


def _dynamic(args: tuple[Tensor, ...], named: Mapping[str, Tensor], rows: bool = False) -> Any:
    """Any number of rows, and whatever else the model allows."""

    def free(tensor: Tensor) -> dict[int, Any]:
        sizes = enumerate(tensor.shape)  # a size of 1 is taken to be so always
        return {i: torch.export.Dim.AUTO for i, size in sizes if i == 0 or (size > 1 and not rows)}

    return {name: free(tensor) for name, tensor in named.items()} if named else tuple(map(free, args))


def check_secrets(place: Path) -> None:
    """Refuse an export that holds a secret, which a model was given and has kept."""
    if not has_secrets():
        return
    for file in [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file()):
        parts = [file.read_bytes()]
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                parts += [archive.read(name) for name in archive.namelist()]
        if any(map(holds_secret, parts)):
            raise UsageError("the model has kept a secret, which would be exported with it")


def _kept(final: Path, write: Callable[[Path], object]) -> Path:
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".tmp-{final.name}")  # exporters look at its ending
    try:
        with warnings.catch_warnings(), muted("torch.onnx", "onnxscript", "onnx_ir"):
            warnings.simplefilter("ignore")  # of exporters, about themselves
            write(temporary)
        check_secrets(temporary)
        durable.write(final, temporary.read_bytes())
    finally:
        temporary.unlink(missing_ok=True)
    return final
