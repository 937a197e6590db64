"""The kind of compiled Keras models, on TensorFlow and on torch."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from manyfit.config import Config
from manyfit.config.typed.roles import KERAS, has_base
from manyfit.core.errors import FolderError, UsageError
from manyfit.core.names import listing
from manyfit.core.state import State
from manyfit.data import Source, once
from manyfit.learn.exporting import example_inputs
from manyfit.learn.keras.exports import load_keras, write_keras, write_saved_model
from manyfit.learn.keras.learner import KerasLearner
from manyfit.learn.kind import TORCH_ONLY, Format, LearnerKind, Setup
from manyfit.store.weights import read_weights

log = logging.getLogger("manyfit")

MODEL: str = "model/"
"""The prefix of the model's own variables in a state."""


class KerasKind(LearnerKind):
    """The kind of learner for Keras models."""

    name: ClassVar[str] = "keras"
    noun: ClassVar[str] = "a compiled Keras model"
    unused: ClassVar[Collection[str]] = tuple(key for key in TORCH_ONLY if key != "warm_start")
    takes_callbacks: ClassVar[bool] = True
    formats: ClassVar[Mapping[str, Format]] = {
        "keras": Format("model.keras", write_keras),
        "saved_model": Format("saved_model", write_saved_model, is_folder=True),
    }
    loaders: ClassVar[Mapping[str, Callable[[Path, Collection[str]], Any]]] = {".keras": load_keras}

    def claims(self, model: Any) -> bool:
        """Return whether a model is a Keras model, on any backend."""
        return has_base(model if isinstance(model, type) else type(model), (KERAS,))

    def build(self, setup: Setup) -> KerasLearner:
        """Build the learner, and assign the weights of a warm start to its variables."""
        validation, size = setup.validation, setup.order.batch_size
        first: Source = validation if validation is not None and len(validation) else setup.train
        run = setup.config.run
        learner = KerasLearner(
            setup.made.model,
            setup.steps_per_epoch,
            lambda: next(once(first, size)),
            setup.made.callbacks,
            setup.epochs,
            run.seed,
            unused=run.data.beside.get("unused", ()),
            fed_by=setup.fed_by,
        )
        if setup.warm and run.train.warm_start is not None:
            learner.build_model()  # a model without an input shape has no variables before it is called
            count = assign_weights(setup.config, learner.model.variables)
            log.info("warm start: loaded %d variables from %s", count, run.train.warm_start.path)
        return learner

    def model_state(self, state: State) -> Mapping[str, Any]:
        """Return the variables of the model, by position."""
        return {n.removeprefix(MODEL): t for n, t in state.tensors.items() if n.startswith(MODEL)}

    def restore(self, model: Any, state: Mapping[str, Any], inputs: Any = None) -> Any:
        """Assign the variables by position."""
        if not model.built:
            if inputs is None:
                raise UsageError("this model has no weights before it is called; load its export instead")
            model(example_inputs(inputs))
        own = list(model.variables)
        if len(own) != len(state):
            raise FolderError(f"the model has {len(own)} variables, but {len(state)} are stored")
        for variable, name in zip(own, sorted(state, key=int), strict=True):
            variable.assign(state[name].numpy().astype(str(variable.dtype).replace("bfloat16", "float32")))
        return model

    def usual_formats(self, learner: Any, is_auto: bool) -> Sequence[str]:
        """Return `keras`, and on TensorFlow also `saved_model`."""
        return ["keras", "saved_model"] if learner.backend == "tensorflow" else ["keras"]


def assign_weights(config: Config, variables: Sequence[Any]) -> int:
    """Assign the weights of `train.warm_start` to variables by position; return how many."""
    wanted = config.run.train.warm_start
    if wanted is None:
        return 0
    where = f"{config.origin('train.warm_start')}: train.warm_start"
    read: Mapping[str, Any] = read_weights(wanted.path)
    if len(read) != len(variables) or not all(name.isdecimal() for name in read):
        raise UsageError(
            f"{where}: {wanted.path} has {len(read)} weights, but the model has {len(variables)} variables: "
            "it must be the same network"
        )
    found = [read[name] for name in sorted(read, key=int)]
    names = [str(variable.path) for variable in variables]
    matched = [i for i, name in enumerate(names) if re.search(wanted.match, name)]
    if not matched:
        raise UsageError(f"{where}: no variable matches {wanted.match!r}; there are {listing(names)}")
    for i in matched:
        if tuple(found[i].shape) != tuple(variables[i].shape):
            shapes = f"{names[i]} is {tuple(found[i].shape)}, not {tuple(variables[i].shape)}"
            raise UsageError(f"{where}: shapes do not fit: {shapes}; leave it out with match")
    for i in matched:
        variables[i].assign(found[i].numpy())
    return len(matched)
