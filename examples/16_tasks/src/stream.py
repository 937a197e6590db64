import random

import torch
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info


class Waves(IterableDataset):
    """Endless noisy waves; the model says how fast they are."""

    def __iter__(self):
        info = get_worker_info()
        dice = random.Random(info.id if info else 0)
        time = torch.linspace(0, 6, 48)
        while True:
            speed = dice.uniform(0.5, 3)
            yield torch.sin(speed * time + dice.uniform(0, 6)) + 0.1 * torch.randn(48), torch.tensor([speed])


class Net(nn.Sequential):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__(
            nn.Linear(48, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
