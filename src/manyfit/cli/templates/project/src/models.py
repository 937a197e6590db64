"""The models of this project: plain PyTorch, without base classes or registration."""

from torch import Tensor, nn


class MLP(nn.Module):
    """A two-layer perceptron for images of 8 by 8 pixels."""

    def __init__(self, hidden: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)
