"""A DCGAN with an epoch of its own, judged by a classifier of real digits."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyfit.trainers import Trainer


def generator(latent: int, width: int) -> nn.Sequential:
    """Return a network from noise to images in 0…1."""
    return nn.Sequential(
        nn.Linear(latent, width * 16),
        nn.Unflatten(1, (width, 4, 4)),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


def discriminator(width: int) -> nn.Sequential:
    """Return a network from images to logits, which are positive for real images."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(width * 16, 128),
        nn.LeakyReLU(0.2),
        nn.Linear(128, 1),
        nn.Flatten(0),
    )


class Judge:
    """A classifier with eleven classes: the ten digits, and digits with shuffled pixels."""

    def __init__(self, images: Tensor, labels: Tensor, steps: int = 150) -> None:
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 11))
        self.network.to(images.device)
        optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-2)
        target = torch.cat([labels, torch.full_like(labels, 10)])
        for _ in range(steps):
            shuffled = images.flatten(1)[:, torch.randperm(64)].view_as(images)
            optimizer.zero_grad()
            F.cross_entropy(self.network(torch.cat([images, shuffled])), target).backward()
            optimizer.step()

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Return the inception score, the mean confidence in a digit, and the number of digits found."""
        chances = self.network(images).softmax(1)
        ratio = chances.clamp_min(1e-9) / chances.mean(0).clamp_min(1e-9)
        confidence, digit = chances[:, :10].max(1)
        counts = digit.bincount(minlength=10)
        return {
            "score": (chances * ratio.log()).sum(1).mean().exp(),
            "confidence": confidence.mean(),
            "digits": (counts >= len(images) / 50).sum(),
        }


class DCGAN(Trainer):
    """Trains generator and discriminator in turn; each has an optimizer of its name in the config."""

    def __init__(self, latent: int = 16, width: int = 16, smoothing: float = 0.1) -> None:
        self.latent = latent
        self.smoothing = smoothing
        self.generator = generator(latent, width)
        self.discriminator = discriminator(width)
        self.fixed_noise = torch.randn(64, latent)

    def setup(self) -> None:
        images, labels = zip(*self.train_loader, strict=True)
        self.judge = Judge(torch.cat(images), torch.cat(labels))

    def sample(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, self.latent, device=self.device))

    def train_epoch(self) -> None:
        for images, _ in self.train_loader:
            made = self.sample(len(images))

            real, fake = self.discriminator(images), self.discriminator(made.detach())
            loss = F.binary_cross_entropy_with_logits(real, torch.full_like(real, 1 - self.smoothing))
            loss = loss + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
            self.backward(loss, "discriminator")
            self.step("discriminator")
            self.log("discriminator", loss)

            fooled = self.discriminator(made)
            loss = F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))
            self.backward(loss, "generator")
            self.step("generator")
            self.log("generator", loss)

    def val_epoch(self) -> dict[str, Tensor]:
        return self.compare(self.val_loader)

    def test_epoch(self) -> dict[str, Tensor]:
        return self.compare(self.test_loader)

    def compare(self, loader) -> dict[str, Tensor]:
        """Return the judgment of samples, and the scores of real digits and of noise for comparison."""
        real = torch.cat([images for images, _ in loader])
        return {
            **self.judge(self.sample(500)),
            "real_score": self.judge(real)["score"],
            "noise_score": self.judge(torch.rand(500, 1, 8, 8, device=self.device))["score"],
        }

    @torch.no_grad()
    def on_epoch_end(self, row) -> None:
        if self.epoch % 10 == 0 or self.epoch == self.num_epochs:
            self.generator.eval()
            self.log_images("samples", self.generator(self.fixed_noise.to(self.device)))
            self.generator.train()
