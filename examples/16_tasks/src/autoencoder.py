from torch import Tensor, nn


class Autoencoder(nn.Module):
    def __init__(self, code: int = 12) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, code))
        self.decode = nn.Sequential(
            nn.Linear(code, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.decode(self.encode(images))
        return found, (found - images).square().mean()
