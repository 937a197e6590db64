"""manyfit: train, resume, evaluate and compare models from plain code and one typed YAML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyfit.core.lazy import attribute
from manyfit.core.version import __version__

if TYPE_CHECKING:
    from manyfit.config import Component, Config, Derived, Kind, load_config
    from manyfit.core.errors import ConfigError, ManyfitError
    from manyfit.learn.step_log import log
    from manyfit.report.compare import compare
    from manyfit.report.records import open, runs
    from manyfit.run.find_lr import find_lr
    from manyfit.run.result import RunResult, load_model
    from manyfit.run.reuse import evaluate, export, predict
    from manyfit.run.train import train
    from manyfit.study.result import Study
    from manyfit.study.sweep import sweep

_PUBLIC = {
    "Component": "manyfit.config",
    "Config": "manyfit.config",
    "ConfigError": "manyfit.core.errors",
    "Derived": "manyfit.config",
    "Kind": "manyfit.config",
    "ManyfitError": "manyfit.core.errors",
    "RunResult": "manyfit.run.result",
    "Study": "manyfit.study.result",
    "compare": "manyfit.report.compare",
    "evaluate": "manyfit.run.reuse",
    "export": "manyfit.run.reuse",
    "find_lr": "manyfit.run.find_lr",
    "load_config": "manyfit.config",
    "load_model": "manyfit.run.result",
    "log": "manyfit.learn.step_log",
    "open": "manyfit.report.records",
    "predict": "manyfit.run.reuse",
    "runs": "manyfit.report.records",
    "sweep": "manyfit.study.sweep",
    "train": "manyfit.run.train",
}

__all__ = [
    "Component",
    "Config",
    "ConfigError",
    "Derived",
    "Kind",
    "ManyfitError",
    "RunResult",
    "Study",
    "__version__",
    "compare",
    "evaluate",
    "export",
    "find_lr",
    "load_config",
    "load_model",
    "log",
    "open",
    "predict",
    "runs",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)


def __dir__() -> list[str]:
    return __all__
