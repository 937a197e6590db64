"""Which rows of a file belong to which split: fractions, folds, or a file that says so."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.names import listing
from manyfit.data.splitting import RowNumbers, assign_folds, divide_rows
from manyfit.store import durable

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class HeldOut:
    """The settings of a data class about its splits."""

    validation: float = 0.15
    test: float = 0.15
    split_seed: int = 0
    folds: int | None = None
    fold: int | None = None
    split_file: Path | None = None

    def divide(self, ids: Sequence[str], labels: Any = None) -> dict[str, RowNumbers]:
        """Return the row numbers of each split; `labels` are spread evenly over them."""
        check_fold(self.fold, self.folds)
        if self.split_file is not None:
            found = read_split_file(self.split_file, ids)
        else:
            found = divide_rows(len(ids), self.validation, self.test, self.split_seed, labels)
        return take_fold(found, self.fold, self.folds, self.split_seed, labels)


def take_fold(
    found: Mapping[str, RowNumbers], fold: int | None, folds: int | None, seed: int, labels: Any = None
) -> dict[str, RowNumbers]:
    """Divide training and validation rows anew into folds; without a fold, all of them are for training."""
    if folds is None:
        return dict(found)
    pool = np.sort(np.concatenate([found["train"], found["validation"]]))
    if fold is None:  # the base of a study, of which only the facts are read
        return {**found, "train": pool}
    which = assign_folds(len(pool), folds, seed, None if labels is None else np.asarray(labels)[pool])
    return {**found, "train": pool[which != fold], "validation": pool[which == fold]}


def check_fold(fold: int | None, folds: int | None) -> None:
    """Raise an error unless a fold is one of the folds."""
    if folds is None and fold is not None:
        raise UsageError("fold has no effect without folds, the number of folds")
    if folds is not None and (fold is None or fold >= folds):
        raise UsageError(
            f"fold is {fold}, but must be from 0 to {folds - 1}; to train all folds, use a study with "
            f"search: {{folds: {folds}}}"
        )


def read_split_file(file: Path, ids: Sequence[str]) -> dict[str, RowNumbers]:
    """Read a CSV file with the columns `id` and `split`; rows that it does not name are in no split."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    place = {id_: row for row, id_ in enumerate(ids)}
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    with file.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.DictReader(stream)
        if not {"id", "split"} <= set(reader.fieldnames or ()):
            raise UsageError(
                f"{file} must have the columns id and split, but has {listing(reader.fieldnames or ())}"
            )
        for number, row in enumerate(reader, 2):
            if row["split"] not in found:
                raise UsageError(f"{file}:{number}: {row['split']!r} is none of {', '.join(SPLITS)}")
            if row["id"] not in place:
                raise UsageError(f"{file}:{number}: there is no row {row['id']!r}")
            found[row["split"]].append(place[row["id"]])
    rows = [row for each in found.values() for row in each]
    if len(set(rows)) != len(rows):
        raise UsageError(f"{file} names some rows more than once")
    return {split: np.array(sorted(each), dtype=np.int64) for split, each in found.items()}


def write_split_file(file: Path, splits: Mapping[str, Sequence[str]]) -> None:
    """Write the IDs of each split to a file that `split_file` reads."""
    lines = ["id,split", *(f"{id_},{split}" for split, ids in splits.items() for id_ in ids)]
    durable.write_file(file, "\n".join(lines) + "\n")
