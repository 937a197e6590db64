from torch import Tensor, nn


class Linear(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.layer = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(self.scale * images.flatten(1))
