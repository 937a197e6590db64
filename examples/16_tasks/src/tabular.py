from torch import nn


class Net(nn.Sequential):
    def __init__(self, features: int, classes: int, hidden: int = 32, dropout: float = 0.0) -> None:
        super().__init__(
            nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
        )
