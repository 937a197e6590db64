from torch import nn


class Flat(nn.Sequential):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


class Conv(nn.Sequential):
    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(width * 16, 10),
        )  # fmt: skip
