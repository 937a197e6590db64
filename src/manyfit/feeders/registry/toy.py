"""A model to try things out with."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor, nn


class DebugToyModel(nn.Module):
    """Learns to name the number that it sees. It brings its own loss and its own optimiser."""

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
        """Scores of the classes; with a target, also one loss for each row."""
        scores: Tensor = self.classes(torch.relu(self.embedding(number.reshape(-1))))
        if target is None:
            return scores
        return scores, nn.functional.cross_entropy(scores, target, reduction="none")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """What it is trained by."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
