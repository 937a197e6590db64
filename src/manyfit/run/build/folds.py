"""Cross-validation: the fold of a run, from the keys beside its data."""

from __future__ import annotations

from collections.abc import Mapping

from manyfit.config import Component
from manyfit.core.errors import UsageError
from manyfit.data import Source
from manyfit.data.folds import make_fold

KEYS = ("fold", "stratify", "fold_seed")


def divide_folds(data: Component, sources: Mapping[str, Source | None]) -> dict[str, Source | None]:
    """Return the splits of a run; with folds, the training and validation rows are divided anew."""
    beside, where = data.beside, f"{data.origin}: data"
    folds = beside.get("folds")
    if folds is None:
        for key in KEYS:
            if key in beside:
                raise UsageError(f"{where}.{key} has no effect without data.folds, the number of folds")
        return dict(sources)
    fold = beside.get("fold")
    if fold is None or fold >= folds:
        shown = "data.fold is missing" if fold is None else f"data.fold is {fold}"
        raise UsageError(
            f"{where}: {shown}, but must be from 0 to {folds - 1}; to train all folds, use a study with "
            f"search: {{folds: {folds}}}"
        )
    parts = [part for split in ("train", "validation") if (part := sources[split]) is not None]
    try:
        seed, stratify = beside.get("fold_seed", 0), beside.get("stratify")
        train, validation = make_fold(parts, fold, folds, seed, stratify)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return {"train": train, "validation": validation, "test": sources["test"]}
