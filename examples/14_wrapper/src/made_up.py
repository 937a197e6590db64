"""Made-up color images of 32 by 32 pixels in ten classes, in the place of CIFAR-10."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

ROWS = {"train": 512, "val": 128, "test": 128}


class MadeUp(Dataset):
    """Stripes in noise. The class of an image is its angle (five) and its color (two)."""

    def __init__(self, flag: str) -> None:
        generator = torch.Generator().manual_seed(list(ROWS).index(flag))
        rows = ROWS[flag]
        self.labels = torch.arange(rows) % 10
        angles = (self.labels % 5) * torch.pi / 5
        across = torch.linspace(-6, 6, 32)
        waves = torch.cos(angles)[:, None, None] * across + torch.sin(angles)[:, None, None] * across[:, None]
        phases = 2 * torch.pi * torch.rand(rows, 1, 1, generator=generator)
        stripes = torch.sin(2 * waves + phases)[:, None]
        colors = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]])[self.labels // 5]
        noise = 2 * torch.randn(rows, 3, 32, 32, generator=generator)
        self.images = stripes * colors[:, :, None, None] + noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"x": self.images[row], "labels": self.labels[row]}


def load_made_up(config, flag: str) -> DataLoader:
    """Return the loader of a split: `train`, `val` or `test`."""
    return DataLoader(MadeUp(flag), batch_size=config.train.batch_size, shuffle=flag == "train")
