"""A toy model for trying out variants."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor, nn


class DebugToyModel(nn.Module):
    """A model that learns to reproduce its input number, with its own loss and optimizer."""

    def __init__(
        self,
        num_classes: Annotated[int, Gt(0)] = 100,
        learning_rate: Annotated[float, Gt(0)] = 0.001,
        hidden_neurons: Annotated[int, Gt(0)] = 50,
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.embedding = nn.Embedding(num_classes, hidden_neurons)
        self.classes = nn.Linear(hidden_neurons, num_classes)

    def forward(self, number: Tensor, target: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the class scores; with a target, also the loss of each row."""
        scores: Tensor = self.classes(torch.relu(self.embedding(number.reshape(-1))))
        if target is None:
            return scores
        return scores, nn.functional.cross_entropy(scores, target, reduction="none")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
