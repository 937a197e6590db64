"""1,797 real handwritten digits, 8 by 8 pixels: the data of scikit-learn's `load_digits`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Gt

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data import ArraySource, Split


class Digits:
    """Handwritten digits with a seeded split: images of shape (1, 8, 8) in 0…1, labels 0…9.

    Row IDs are `digit-0000` to `digit-1796` in scikit-learn's order, independent of the split.

    >>> len(Digits().source("train"))
    1257
    """

    def __init__(
        self,
        batch_size: Annotated[int, Gt(0)] = 64,
        validation: Annotated[float, Gt(0)] = 0.15,
        test: Annotated[float, Gt(0)] = 0.15,
        split_seed: int = 0,
    ) -> None:
        if validation + test >= 1:
            raise UsageError(
                f"validation + test must be less than 1 to leave rows for training, not {validation + test}"
            )
        self.batch_size = batch_size
        self.validation = validation
        self.test = test
        self.split_seed = split_seed

    def source(self, split: Split) -> ArraySource:
        """Return the rows of one split."""
        with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as archive:
            images, labels = archive["images"], archive["labels"]
        rows = self._rows(split, len(labels))
        pixels = images[rows, None].astype(np.float32) / 16
        return ArraySource(pixels, labels[rows].astype(np.int64), [f"digit-{row:04d}" for row in rows])

    def _rows(self, split: Split, total: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        order = np.random.RandomState(np.random.MT19937(derive(self.split_seed, "split"))).permutation(total)
        held_out = round(total * self.validation), round(total * self.test)
        bounds = {
            "validation": (0, held_out[0]),
            "test": (held_out[0], sum(held_out)),
            "train": (sum(held_out), total),
        }
        begin, end = bounds[split]
        return np.sort(order[begin:end]).astype(np.int64)
