from settings import Image
from torch import Tensor, nn


class CNN(nn.Module):
    """A CNN whose constructor accepts a whole config section."""

    def __init__(self, image: Image, activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, image.channels, 3, padding=1, padding_mode=image.padding),
            activation,
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(image.features, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)
