import numpy as np
from torch import Tensor, nn

from manyfit.data import ArraySource


class Discs:
    """Noisy images with a disc, and the pixels of the disc."""

    def __init__(self, batch_size: int = 32, rows: int = 320) -> None:
        self.batch_size, self.rows = batch_size, rows

    def source(self, split: str) -> ArraySource:
        dice = np.random.RandomState(["train", "validation", "test"].index(split))
        y, x = np.mgrid[:24, :24]
        a, b, r = (dice.uniform(*ends, (self.rows, 1, 1)) for ends in ((6, 18), (6, 18), (3, 6)))
        masks = ((x - a) ** 2 + (y - b) ** 2 < r**2).astype(np.float32)[:, None]
        return ArraySource((masks + dice.normal(0, 0.6, masks.shape)).astype(np.float32), masks)


class Net(nn.Sequential):
    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, 1, 1),
        )  # fmt: skip


def iou(output: Tensor, target: Tensor) -> Tensor:
    found, known = (output > 0).flatten(1), (target > 0.5).flatten(1)
    return (found & known).sum(1) / (found | known).sum(1).clamp(min=1)
