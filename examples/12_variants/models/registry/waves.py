"""A classifier of two kinds of waves."""

import torch
from torch import nn


class Waves(nn.Module):
    def __init__(self, hidden: int = 8, learning_rate: float = 0.01) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(nn.Linear(32, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, wave, target=None):
        scores = self.layers(wave)
        if target is None:
            return scores
        return scores, nn.functional.cross_entropy(scores, target, reduction="none")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
