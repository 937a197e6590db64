"""A small residual network that computes its own loss, and the wrapper that trains it."""

import numpy as np
from made_up import load_made_up
from torch import Tensor, nn
from torch.nn import functional as F

from manyfit.wrapper import ModelConfig, ModelWrapper


class ResNetConfig(ModelConfig):
    channels: int = 16
    blocks: int = 2
    classes: int = 10


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.layers(x))


class ResNet(nn.Module):
    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, config.channels, 5, stride=4, padding=2, bias=False),
            nn.BatchNorm2d(config.channels),
            nn.ReLU(),
        )
        self.blocks = nn.Sequential(*[Block(config.channels) for _ in range(config.blocks)])
        self.head = nn.Linear(config.channels, config.classes)

    def forward(self, x: Tensor, labels: Tensor | None = None):
        """Return the logits and, with labels, the loss of each row."""
        logits = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits, None if labels is None else F.cross_entropy(logits, labels, reduction="none")


def accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float((outputs.argmax(1) == labels).mean())


class ResNetWrapper(ModelWrapper):
    def make_dataloader_train(self, config):
        return load_made_up(config, "train")

    def make_dataloader_val(self, config):
        return load_made_up(config, "val")

    def make_dataloader_test(self, config):
        return load_made_up(config, "test")

    def evaluation_functions(self):
        return {"accuracy": accuracy}
