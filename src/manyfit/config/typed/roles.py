"""Roles: what a component must be to be allowed at a key of a config.

A role is checked on the object that a class path resolves to, never on the text of the path. Bases are
given by name rather than imported, so that checking a role imports nothing: a class cannot have
`torch.nn.Module` among its bases unless torch is already loaded.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from annotated_types import Ge, Gt

from manyfit.config.typed.allowed_classes import BUILDING_BLOCKS
from manyfit.config.typed.extensions import MODELS
from manyfit.config.typed.kinds import Kind
from manyfit.core.names import indefinite


@dataclass(frozen=True, slots=True)
class Role:
    """What a key of the config accepts, the parameters supplied at run time, and short names."""

    name: str
    bases: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    supplied: tuple[str, ...] = ()
    function_of: int = 0
    short: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Keys in the same mapping that are not parameters of the class, with their types."""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def wanted(self) -> str:
        """The description of the role in messages."""
        if self.methods:
            return f"{indefinite(self.name)}: a class with the method {', '.join(self.methods)}()"
        base = " or ".join(PUBLIC.get(base, base) for base in self.bases)
        either = f"a subclass of {base}" if base else ""
        if self.function_of:
            either += (
                ", or a function of (output, target) on tensors"
                if either
                else "a function of (output, target) on tensors"
            )
        return f"{indefinite(self.name)}: {either}" if either else f"your own {self.name}"


MODULE: Final = "torch.nn.modules.module.Module"
KERAS: Final = "keras.src.models.model.Model"
LIGHTNING: Final = (
    "lightning.pytorch.core.module.LightningModule",
    "pytorch_lightning.core.module.LightningModule",
)
DATA_MODULES: Final = (
    "lightning.pytorch.core.datamodule.LightningDataModule",
    "pytorch_lightning.core.datamodule.LightningDataModule",
)
ESTIMATOR: Final = "sklearn.base.BaseEstimator"
COMPONENTS: Final = "manyfit.pipeline.components"
PUBLIC: Final = {
    MODULE: "torch.nn.Module",
    KERAS: "keras.Model",
    "manyfit.data.tfrecord.features.Feature": "manyfit.feeders.Feature",
    "manyfit.study.executors.base.Executor": "manyfit.executors.Executor",
    "manyfit.spec.minibatch.MinibatchSpec": "manyfit.spec.MinibatchSpec",
    **{
        f"{COMPONENTS}.{name}Base": f"manyfit.pipeline.{name}Base"
        for name in ("DataLoader", "Augmentor", "Preprocessor", "ModelBuilder", "Evaluator")
    },
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
    "torch.optim.lr_scheduler.LRScheduler": "torch.optim.lr_scheduler.LRScheduler",
    "torchmetrics.metric.Metric": "torchmetrics.Metric",
    "manyfit.learn.streaming_metrics.StreamingMetric": "manyfit.metrics",
    "optuna.samplers._base.BaseSampler": "optuna.samplers.BaseSampler",
}


def _table(prefix: str, names: str) -> dict[str, str]:
    return {short: f"{prefix}.{full}" for short, full in (pair.split("=") for pair in names.split())}


MODEL = Role("model", bases=(MODULE, KERAS, ESTIMATOR, f"{COMPONENTS}.ModelBuilderBase"))
TRAINER = Role("trainer", methods=("train",), supplied=("model",))
SPEC = Role("minibatch spec", bases=("manyfit.spec.minibatch.MinibatchSpec",))
DATA_LOADER = Role("data loader", bases=(f"{COMPONENTS}.DataLoaderBase",))
AUGMENTOR = Role("augmentor", bases=(f"{COMPONENTS}.AugmentorBase",))
PREPROCESSOR = Role("preprocessor", bases=(f"{COMPONENTS}.PreprocessorBase",))
MODEL_BUILDER = Role("model builder", bases=(f"{COMPONENTS}.ModelBuilderBase",))
EVALUATOR = Role("evaluator", bases=(f"{COMPONENTS}.EvaluatorBase",))
FEATURE = Role(
    "feature",
    bases=("manyfit.data.tfrecord.features.Feature",),
    short=_table(
        "manyfit.feeders",
        "FixedLenFeature=FixedLenFeature VarLenFeature=VarLenFeature ImageFeature=ImageFeature "
        "RawFeature=RawFeature SequenceFeature=SequenceFeature",
    ),
)
FEEDER = Role(
    "feeder",
    methods=("batches",),
    short=_table(
        "manyfit.feeders",
        "TFRecordExamplesFeeder=TFRecordExamplesFeeder MemorySamplesFeeder=MemorySamplesFeeder",
    ),
)
DATA = Role(
    "data set",
    methods=("source",),
    short={"digits": "manyfit.datasets.Digits"},
    beside={
        "allow_overlap": Annotated[bool, Kind.NEUTRAL],
        "unused": Annotated[Sequence[str], Kind.NEUTRAL],
        "shards": Annotated[int, Gt(0)],
        "first_shard": Annotated[int, Ge(0)],
        "visits": Sequence[Sequence[int]],
        "folds": Annotated[int, Ge(2)],
        "fold": Annotated[int, Ge(0)],
        "stratify": str,
        "fold_seed": int,
    },
)
OPTIMIZER = Role(
    "optimizer",
    bases=("torch.optim.optimizer.Optimizer",),
    supplied=("params",),
    short=_table(
        "torch.optim",
        "adadelta=Adadelta adafactor=Adafactor adagrad=Adagrad adam=Adam adamax=Adamax "
        "adamw=AdamW asgd=ASGD lbfgs=LBFGS muon=Muon nadam=NAdam radam=RAdam rmsprop=RMSprop rprop=Rprop "
        "sgd=SGD sparse_adam=SparseAdam",
    ),
)
SCHEDULER = Role(
    "scheduler",
    bases=("torch.optim.lr_scheduler.LRScheduler",),
    supplied=("optimizer",),
    short=_table("manyfit.schedules", "log=LogSchedule triangular=Triangular by_epoch=ByEpoch warmup=warmup")
    | _table(
        "torch.optim.lr_scheduler",
        "chained=ChainedScheduler constant=ConstantLR cosine=CosineAnnealingLR "
        "cosine_restarts=CosineAnnealingWarmRestarts cyclic=CyclicLR exponential=ExponentialLR "
        "lambda=LambdaLR linear=LinearLR multi_step=MultiStepLR multiplicative=MultiplicativeLR "
        "one_cycle=OneCycleLR plateau=ReduceLROnPlateau polynomial=PolynomialLR sequential=SequentialLR "
        "step=StepLR",
    ),
)
LOSS = Role(
    "loss",
    bases=(MODULE,),
    function_of=2,
    short=_table(
        "torch.nn",
        "bce=BCELoss bce_with_logits=BCEWithLogitsLoss cross_entropy=CrossEntropyLoss "
        "gaussian_nll=GaussianNLLLoss huber=HuberLoss kl_div=KLDivLoss l1=L1Loss mae=L1Loss mse=MSELoss "
        "multi_label_soft_margin=MultiLabelSoftMarginLoss multi_margin=MultiMarginLoss nll=NLLLoss "
        "poisson_nll=PoissonNLLLoss smooth_l1=SmoothL1Loss soft_margin=SoftMarginLoss",
    ),
)
METRIC = Role(
    "metric",
    bases=("torchmetrics.metric.Metric", "manyfit.learn.streaming_metrics.StreamingMetric"),
    function_of=2,
    short=_table(
        "manyfit.metrics",
        "accuracy=accuracy top_k_accuracy=top_k_accuracy mae=absolute_error "
        "mse=squared_error binary_accuracy=binary_accuracy f1=F1 precision=Precision recall=Recall "
        "auroc=Auroc average_precision=AveragePrecision",
    ),
)
SAMPLER = Role(
    "search method",
    bases=("optuna.samplers._base.BaseSampler", "manyfit.study.search.sampling.Grid"),
    supplied=("seed",),
    short={
        "grid": "manyfit.samplers.Grid",
        **_table(
            "optuna.samplers",
            "random=RandomSampler tpe=TPESampler gp=GPSampler cma_es=CmaEsSampler qmc=QMCSampler "
            "nsga2=NSGAIISampler brute_force=BruteForceSampler",
        ),
    },
)
STOPPER = Role(
    "stopper",
    methods=("decide",),
    short=_table("manyfit.stoppers", "halving=Halving asha=Asha median=Median patience=Patience"),
)
EXECUTOR = Role(
    "executor",
    bases=("manyfit.study.executors.base.Executor",),
    supplied=("job",),
    short=_table("manyfit.executors", "auto=auto inline=inline processes=processes ray=ray"),
)
ANY = Role("component")
CALLABLE = Role("function")

BY_BASE: Final = {base: role for role in (OPTIMIZER, SCHEDULER, SAMPLER, EXECUTOR) for base in role.bases}


LIBRARIES: Final = (
    "torch.nn",
    "torch.optim",
    "torch.utils.data",
    "torch.distributions",
    "torchmetrics",
)
FUNCTIONS: Final = ("torch.nn.functional", "torch._C._nn", "manyfit.learn.metrics", "manyfit.data.padding")


@dataclass(frozen=True, slots=True)
class Trust:
    """Where the code of a component may come from if no annotation restricts it."""

    sources: tuple[Path, ...] = ()
    packages: frozenset[str] = frozenset()

    def is_own(self, target: object) -> bool:
        """Return whether `target` is defined in the user's code."""
        module = inspect.getmodule(target)
        file = getattr(module, "__file__", None)
        here = Path(file).resolve() if file else None
        return here is not None and any(here.is_relative_to(source.resolve()) for source in self.sources)

    def covers(self, target: object) -> bool:
        """Return whether `target` is the user's code, or a class of a library for building models."""
        if self.is_own(target):
            return True
        if not inspect.isclass(target):
            return False
        return qualify(target) in BUILDING_BLOCKS or within(target.__module__, (*LIBRARIES, *self.packages))


def within(module: str | None, packages: tuple[str, ...]) -> bool:
    """Return whether a module is one of the packages, or inside one."""
    return any(module == package or str(module).startswith(f"{package}.") for package in packages)


def is_record(target: Any) -> bool:
    """Return whether a class is a dataclass or a pydantic model."""
    return inspect.isclass(target) and (
        hasattr(target, "__dataclass_fields__") or isinstance(getattr(target, "model_fields", None), dict)
    )


def qualify(target: Any) -> str:
    """Return the qualified name under which a class or function is defined."""
    return (
        f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', type(target).__qualname__)}"
    )


def has_base(target: Any, bases: tuple[str, ...]) -> bool:
    """Return whether a class has one of the named classes among its bases."""
    return inspect.isclass(target) and any(qualify(base) in bases for base in target.__mro__)


def trains_itself(product: Any) -> bool:
    """Return whether a class has training functions of its own, which may need no loss or optimizer."""
    return hasattr(product, "as_functions") or has_base(product, LIGHTNING)


def list_supplied(target: Any, role: Role) -> tuple[str, ...]:
    """Return the parameters that manyfit supplies: by role, or for a nested component by its bases."""
    if role is TRAINER:
        return tuple(getattr(target, "supplied", role.supplied))
    if inspect.isclass(target):
        for base in target.__mro__:
            if qualify(base) in BY_BASE:
                return BY_BASE[qualify(base)].supplied
        return ()
    if role.function_of:
        # A loss is called with (output, target), whatever its parameters are called.
        return tuple(target.__code__.co_varnames[: role.function_of]) if hasattr(target, "__code__") else ()
    return role.supplied


def refusal(target: Any, role: Role, trust: Trust, wanted: type | None = None) -> str:
    """Return why `target` does not fit `role`; empty if it does."""
    what = describe_target(target)
    if not callable(target):
        return f"{what} cannot be called"
    product = product_of(target)
    if inspect.isabstract(target):
        return f"{what} is abstract: it does not implement {', '.join(sorted(target.__abstractmethods__))}"
    if role is CALLABLE:
        known = trust.covers(target) or within(getattr(target, "__module__", None), FUNCTIONS)
        return "" if known else f"{what} is neither your own code nor a function of torch.nn.functional"
    if role is ANY:
        return _refusal_of_any(target, product, trust, wanted)
    if role.methods:
        fits = inspect.isclass(product) and all(
            callable(getattr(product, name, None)) for name in role.methods
        )
        if fits and role is TRAINER and has_base(product, (MODULE,)):
            return f"{what} is a model: name it under model"
        if role is DATA and has_base(product, DATA_MODULES):
            return (
                f"{what} is a LightningDataModule; write a function of (config, flag) that returns its "
                "loaders, and name it: {class: manyfit.wrapper.LoaderData, loader: <the function>}"
            )
        return "" if fits else f"{what} is not {indefinite(role.name)}"
    if role is EXECUTOR and "job" not in inspect.signature(target).parameters:
        return f"{what} does not accept the parameter job, which holds the study and its work"
    if role is MODEL and any(claims(product) for claims in MODELS.values()):
        return ""
    if has_base(product, role.bases) or (role.function_of and _is_tensor_function(target, trust)):
        return ""
    if inspect.isclass(target) or not role.bases:
        return f"{what} is not {indefinite(role.name)}"
    base = PUBLIC.get(role.bases[0], role.bases[0])
    return f"{what} is not {indefinite(role.name)}; a function must declare its return type (-> {base})"


def _refusal_of_any(target: Any, product: Any, trust: Trust, wanted: type | None) -> str:
    """Return why `target` is refused where any component is allowed.

    It must fit the annotation; without one, only code known to build models may be called.
    """
    what = describe_target(target)
    if wanted is not None and inspect.isclass(product):
        if wanted in product.__mro__:
            return ""
        # An abstract class or protocol also accepts classes that merely look alike, such as subprocess.Popen.
        if not (trust.covers(target) and _looks_like(product, wanted)):
            return f"{what} is not a subclass of {qualify(wanted)}"
    if is_record(target) or trust.covers(target):
        return ""
    return (
        f"{what} is neither your own code nor a class for building models, and no annotation requires it here"
    )


def _looks_like(product: type, wanted: type) -> bool:
    try:
        return issubclass(product, wanted)
    except TypeError:
        return True  # a protocol that cannot be checked at run time is like no annotation


def describe_target(target: Any) -> str:
    """Return the kind and name of the object that a class path resolved to."""
    kind = (
        "the class"
        if inspect.isclass(target)
        else "the module"
        if inspect.ismodule(target)
        else "the function"
        if callable(target)
        else "the value"
    )
    name = target.__name__ if inspect.ismodule(target) else qualify(target)
    return f"{kind} {PUBLIC.get(name, name)}"


def _is_tensor_function(target: Callable[..., Any], trust: Trust) -> bool:
    """Return whether a function of (output, target) is the user's, torch.nn.functional's, or annotated."""
    code = getattr(target, "__code__", None)
    if code is not None and code.co_argcount < 2 and not code.co_flags & inspect.CO_VARARGS:
        return False
    module = getattr(target, "__module__", None)
    if within(module, FUNCTIONS) or trust.is_own(target):
        return True
    if not isinstance(target, types.FunctionType) or within(module, ("torch",)):
        return False
    return any("Tensor" in str(note) for note in target.__annotations__.values())


def product_of(target: Any) -> Any:
    """Return the type of the result of calling `target`: the class itself, or the declared return type."""
    if inspect.isclass(target):
        return target
    try:
        return typing.get_type_hints(target).get("return")
    except Exception:  # the annotation cannot be evaluated
        return None
