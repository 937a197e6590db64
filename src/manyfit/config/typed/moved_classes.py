"""Class paths in configs, exports and ledgers of earlier versions, and the current paths of these classes.

Files name classes by their public modules: `manyfit.metrics`, `manyfit.samplers`, `manyfit.stoppers` and so
on. A class that moves gets an entry here, so that older files remain readable. Hashes use the first path
of a class, so that runs and trials keep their identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _map_names(before: str, after: str, names: str) -> dict[str, str]:
    return {f"{before}.{name}": f"{after}.{name}" for name in names.split()}


MOVED: Final[Mapping[str, str]] = {
    **_map_names("manyfit.data.feeders", "manyfit.data.memory_feeder", "MemorySamplesFeeder"),
    **_map_names("manyfit.data.feeders", "manyfit.data.tfrecord_feeder", "TFRecordExamplesFeeder"),
    **_map_names(
        "manyfit.learn.metrics",
        "manyfit.metrics",
        "absolute_error accuracy binary_accuracy squared_error top_k_accuracy",
    ),
    **_map_names("manyfit.pipeline.parts", "manyfit.pipeline", "ComponentData evaluator model_builder"),
    **_map_names("manyfit.study.sampling", "manyfit.samplers", "Grid"),
    **_map_names("manyfit.study.stoppers", "manyfit.stoppers", "Asha Halving Median Patience"),
}
"""Former class paths and their current ones."""
FIRST: Final[Mapping[str, str]] = {after: before for before, after in MOVED.items()}


def current_path(path: str) -> str:
    """Return the current class path for one that may be a former one.

    >>> current_path("manyfit.study.stoppers:Halving")
    'manyfit.stoppers.Halving'
    """
    dotted = path.replace(":", ".")
    return MOVED.get(dotted, path)


def first_path(path: str) -> str:
    """Return the class path that represents a class in hashes."""
    return FIRST.get(path, path)
