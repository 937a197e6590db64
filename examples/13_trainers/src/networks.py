"""Small networks for images of 8 by 8 pixels."""

from torch import Tensor, nn


def encoder(outputs: int, width: int = 128) -> nn.Sequential:
    """Return a network from images to vectors."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs))


def decoder(inputs: int, width: int = 128) -> nn.Sequential:
    """Return a network from vectors to images in 0…1."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))
    )


class Autoencoder(nn.Module):
    def __init__(self, code: int = 16, width: int = 128) -> None:
        super().__init__()
        self.encoder = encoder(code, width)
        self.decoder = decoder(code, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.decoder(self.encoder(images))
