"""The learner for models that are not trained step by step: estimators with `fit` and `predict`.

The whole training is one step. The estimator is stored with skops, never with pickle: skops lists the types
that must be trusted before it loads them.
"""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from manyfit.core.errors import ManyfitError, RunFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.redaction import holds_secret
from manyfit.core.seeds import derive
from manyfit.core.state import State
from manyfit.data import Batch, Source, once
from manyfit.data.nested import Nested
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.learn.learner import BaseLearner, Outputs, Weights
from manyfit.learn.metrics_by_run import Metrics

log = logging.getLogger("manyfit")

TINY: Final = 1e-12
KEPT: Final = "estimator"
LIBRARIES: Final = (
    "builtins",
    "joblib",
    "keras",
    "manyfit",
    "numpy",
    "scipy",
    "skops",
    "tensorflow",
    "torch",
)


@dataclass
class EstimatorLearner(BaseLearner):
    """Learner that fits one estimator to all rows at once.

    Its loss is the log loss, the zero-one loss or the squared error.
    """

    model: Any
    source: Source
    batch_size: int = 1024
    seed: int = 0
    n: int = 1
    step: int = 0
    reads_data: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._loss: float | None = None

    def describe(self) -> str:
        """Describe the estimator in a few words."""
        return f"{type(self.model).__name__}, fitted in one step"

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        """Fit on the first step; further steps do nothing."""
        if self.step == 0:
            inputs, target, weight = self._gather()
            with own_randomness():
                seed_for(derive(self.seed, "model"))
                self.model.fit(inputs, target, **self._weights(weight))
            self._loss = float(self._losses(self._predict(inputs), target).mean())
            self.load(self.state())  # fail now, not on resume, if the state cannot be loaded
        self.step += steps

    @property
    def is_ready(self) -> bool:
        """Whether the estimator is fitted: only then can it predict."""
        return bool(self.step)

    def rehearse(self) -> None:
        """Check before the fit that the estimator can be stored and that the targets can be fitted."""
        if self.step:
            return
        try:
            self.load(self.state())
        except ManyfitError:
            raise
        except Exception as error:  # skops raises many types, depending on what the estimator holds
            name = type(self.model).__name__
            raise UsageError(f"{name} cannot be stored by skops: {type(error).__name__}: {error}") from error
        first = next(once(self.source, self.batch_size))
        if first.target is not None and np.asarray(first.target).dtype.kind not in "biuf":
            raise UsageError("an estimator needs numeric targets: encode them in label_preprocess")

    def _weights(self, weight: Any) -> dict[str, Any]:
        if weight is None or (np.asarray(weight) == 1).all():
            return {}
        if "sample_weight" in inspect.signature(self.model.fit).parameters:
            return {"sample_weight": weight}
        steps = getattr(self.model, "steps", None)
        if steps and "sample_weight" in inspect.signature(steps[-1][1].fit).parameters:
            return {f"{steps[-1][0]}__sample_weight": weight}
        log.warning("%s does not accept sample weights: they are ignored", type(self.model).__name__)
        return {}

    def _gather(self) -> tuple[Any, Any, Any]:
        found = list(once(self.source, self.batch_size))
        if any(batch.target is None for batch in found):
            raise RunFailed("an estimator needs targets, but the data has none")
        weights = [batch.weight for batch in found]
        counts = None if any(w is None for w in weights) else np.concatenate([np.asarray(w) for w in weights])
        inputs = np.concatenate([_rows(batch) for batch in found])
        target = np.concatenate([np.asarray(batch.target) for batch in found])
        return inputs, target[:, 0] if target.ndim == 2 and target.shape[1] == 1 else target, counts

    def take(self) -> Metrics:
        """Return the mean loss on the training rows, once after the fit."""
        found: dict[str, Any] = {"lr": np.zeros(1)}
        if self._loss is not None:
            found["train_loss"] = np.array([self._loss])
        self._loss = None
        return found

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """Yield predictions: class probabilities where the estimator provides them."""
        for batch in batches:
            output = self._predict(_rows(batch))
            target = None if batch.target is None else np.asarray(batch.target)
            if target is not None and target.ndim == 2 and target.shape[1] == 1:
                target = target[:, 0]
            rows = {} if target is None else {"loss": self._losses(output, target)[None]}
            yield Outputs(batch.index, output[None], None if target is None else target[None], rows)

    def stop_reasons(self) -> Sequence[str]:
        """Return the reason to stop: after its only step there is nothing more to train."""
        return ["fitted in one step" if self.step else ""]

    def predict(self, batch: Batch, model: Any = None) -> Nested:
        """Return the outputs of the estimator, or of `model` in its place."""
        learner = replace(self, model=self.model if model is None else model)
        (found,) = learner.evaluate(iter([replace(batch, target=None)]))
        return found.every(0)[0]

    def weights(self) -> Sequence[Weights]:
        """Return the estimator as the bytes of a skops file."""
        return [Weights(self.state()[0].tensors, {})]

    def state(self) -> Sequence[State]:
        """Return the estimator as the bytes of a skops file, with the step and the loss."""
        skops = import_optional("skops.io", "estimators")
        kept = skops.dumps(self.model)
        with zipfile.ZipFile(io.BytesIO(kept)) as archive:
            if any(holds_secret(archive.read(name)) for name in archive.namelist()):
                name = type(self.model).__name__
                raise UsageError(f"{name} holds a secret, which would be written to the checkpoint")
        data = np.frombuffer(bytearray(kept), dtype=np.uint8)
        return [State({KEPT: torch.from_numpy(data)}, {"step": self.step, "loss": self._loss})]

    def load(self, states: Sequence[State]) -> None:
        """Load a state. Only types that scikit-learn or the user's own package define are created."""
        skops = import_optional("skops.io", "estimators")
        data = states[0].tensors[KEPT].numpy().tobytes()
        known = self._parts()
        try:
            odd = skops.get_untrusted_types(data=data)
            refused = [name for name in odd if name not in known and not self._is_expected(name)]
            if refused:
                raise RunFailed(
                    f"the estimator holds a {refused[0]}, which is not a trusted type: not loaded"
                )
            loaded = skops.loads(data, trusted=odd)
        except ManyfitError:
            raise
        except Exception as error:  # skops raises many types on bytes that it did not write
            text = f"{type(error).__name__}: {error}"
            raise RunFailed(f"the state of the estimator cannot be read: {text}") from error
        if type(loaded) is not type(self.model):
            names = f"a {type(loaded).__name__}, not the {type(self.model).__name__} of the config"
            raise RunFailed(f"the state of the estimator holds {names}")
        self.model = loaded
        self.step, self._loss = states[0].values["step"], states[0].values["loss"]

    def _parts(self) -> set[str]:
        """Return the classes of the estimator and of its parts, as built from the config."""
        parts = [self.model, *getattr(self.model, "get_params", dict)().values()]
        found = [each for part in parts for each in (part if isinstance(part, list | tuple) else [part])]
        found = [each for part in found for each in (part if isinstance(part, tuple) else [part])]
        return {f"{type(part).__module__}.{type(part).__qualname__}" for part in found}

    def _is_expected(self, name: str) -> bool:
        """Return whether an estimator may hold a type: one of scikit-learn, or of its own package.

        The package is that of the estimator's class, never that of a parameter: parameters are part of the
        untrusted state.
        """
        package, own = name.partition(".")[0], type(self.model).__module__.partition(".")[0]
        if package == "sklearn":
            return _is_defined(name, inspect.isclass)
        is_code = own == package and package not in LIBRARIES
        return is_code and _is_defined(
            name, lambda found: inspect.isclass(found) or inspect.isfunction(found)
        )

    def _predict(self, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        classes = getattr(self.model, "classes_", None)
        if classes is None or not hasattr(self.model, "predict_proba"):
            return np.asarray(self.model.predict(inputs))
        found, classes = np.asarray(self.model.predict_proba(inputs)), np.asarray(classes)
        if classes.dtype.kind not in "iub" or classes.min() < 0:
            return np.asarray(self.model.predict(inputs))
        spread = np.zeros((len(found), int(classes.max()) + 1), dtype=found.dtype)
        spread[:, classes.astype(np.int64)] = found
        return spread

    def _losses(self, output: npt.NDArray[Any], target: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        if output.ndim == target.ndim + 1:
            known = np.minimum(target.astype(np.int64), output.shape[1] - 1)
            right = np.where(known == target, output[np.arange(len(output)), known], 0.0)
            losses: npt.NDArray[np.float64] = -np.log(np.maximum(right, TINY))
        elif hasattr(self.model, "classes_"):
            losses = (output != target).astype(np.float64)
        else:
            losses = ((output - target) ** 2).reshape(len(output), -1).mean(axis=1)
        return losses.astype(np.float64)


def _is_defined(name: str, is_fit: Callable[[Any], bool]) -> bool:
    """Return whether a name refers to an object in the module that defines it, not to an imported one."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return False
    return is_fit(found) and getattr(found, "__module__", "") == module


def _rows(batch: Batch) -> npt.NDArray[Any]:
    """Return the inputs of a batch as a table."""
    if isinstance(batch.inputs, dict | tuple | list):
        raise RunFailed("an estimator accepts a single input array")
    found = np.asarray(batch.inputs)
    is_text = found.ndim == 1 and found.dtype.kind in "USO"  # vectorizers accept a list of texts
    return found if is_text else found.reshape(len(found), -1)
