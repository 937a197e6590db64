"""Three autoencoders. Each logs its error per pixel, and that of the mean image for comparison."""

import torch
from networks import Autoencoder, decoder, encoder
from torch import Tensor, nn
from torch.nn import functional as F

from manyfit.trainers import Trainer


def row_errors(images: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean squared error of each image."""
    return (images - wanted).square().flatten(1).mean(1)


class ImageTrainer(Trainer):
    """What the autoencoders have in common: the mean image, and images to show."""

    show_every: int = 10
    """Epochs between two image grids."""

    def setup(self) -> None:
        images = torch.cat([images for images, _ in self.train_loader])
        self.mean_image = images.mean(0, keepdim=True)
        self.shown = next(iter(self.val_loader))[0][:16]

    def measure(self, reconstructed: Tensor, images: Tensor) -> dict[str, Tensor]:
        """Return the errors of each row: of its reconstruction, and of the mean image."""
        return {
            "error": row_errors(reconstructed, images),
            "mean_image_error": row_errors(self.mean_image, images),
        }

    def is_shown(self) -> bool:
        return self.epoch % self.show_every == 0 or self.epoch == self.num_epochs


class Denoising(ImageTrainer):
    """Trains a model to remove noise. The noise is drawn anew for each batch."""

    def __init__(self, model: nn.Module, noise: float = 0.3) -> None:
        self.noise = noise

    def add_noise(self, images: Tensor) -> Tensor:
        return (images + self.noise * torch.randn_like(images)).clamp(0, 1)

    def train_step(self, batch):
        images, _ = batch
        loss = F.mse_loss(self.model(self.add_noise(images)), images)
        self.backward(loss)
        self.step()
        return loss

    def val_step(self, batch):
        images, _ = batch
        noisy = self.add_noise(images)
        cleaned = self.model(noisy)
        return cleaned, {**self.measure(cleaned, images), "noisy_error": row_errors(noisy, images)}

    @torch.no_grad()
    def on_epoch_end(self, row) -> None:
        if self.is_shown():
            noisy = self.add_noise(self.shown)
            self.log_images("cleaned", torch.cat([self.shown, noisy, self.model(noisy)]), columns=16)


class VAE(ImageTrainer):
    """A variational autoencoder. It has no `model:`; its networks are attributes."""

    def __init__(self, latent: int = 8, width: int = 256, beta: float = 1.0) -> None:
        self.latent = latent
        self.beta = beta
        self.encoder = encoder(2 * latent, width)
        self.decoder = decoder(latent, width)

    def losses(self, images: Tensor, mean: Tensor, log_var: Tensor) -> dict[str, Tensor]:
        """Return both parts of the loss, in nats per image."""
        codes = mean + torch.randn_like(mean) * (log_var / 2).exp()
        reconstruction = F.binary_cross_entropy(self.decoder(codes), images, reduction="sum") / len(images)
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()
        return {"reconstruction": reconstruction, "kl": self.beta * kl}

    def train_step(self, batch):
        images, _ = batch
        losses = self.losses(images, *self.encoder(images).chunk(2, dim=1))
        self.backward(losses["reconstruction"] + losses["kl"])
        self.step()
        return losses

    def val_step(self, batch):
        images, _ = batch
        mean, log_var = self.encoder(images).chunk(2, dim=1)
        losses = self.losses(images, mean, log_var)
        return {"loss": losses["reconstruction"] + losses["kl"], **self.measure(self.decoder(mean), images)}

    @torch.no_grad()
    def on_epoch_end(self, row) -> None:
        if self.is_shown():
            reconstructed = self.decoder(self.encoder(self.shown).chunk(2, dim=1)[0])
            self.log_images("reconstructions", torch.cat([self.shown, reconstructed]), columns=16)
            self.log_images("samples", self.decoder(torch.randn(64, self.latent, device=self.device)))


class Adversarial(ImageTrainer):
    """An adversarial autoencoder: its codes learn to look like normally distributed ones."""

    def __init__(self, latent: int = 8, width: int = 128, weight: float = 0.01) -> None:
        self.latent = latent
        self.weight = weight
        self.autoencoder = Autoencoder(latent, width)
        self.discriminator = nn.Sequential(
            nn.Linear(latent, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Flatten(0)
        )

    def train_step(self, batch):
        images, _ = batch
        codes = self.autoencoder.encoder(images)
        normal = torch.randn_like(codes)
        true, false = self.discriminator(normal), self.discriminator(codes.detach())
        discriminator = -(F.logsigmoid(true) + F.logsigmoid(-false)).mean()
        self.backward(discriminator, "discriminator")
        self.step("discriminator")

        reconstruction = F.mse_loss(self.autoencoder.decoder(codes), images)
        adversarial = -F.logsigmoid(self.discriminator(codes)).mean()
        self.backward(reconstruction + self.weight * adversarial, "autoencoder")
        self.step("autoencoder")
        return {"loss": reconstruction, "discriminator": discriminator, "adversarial": adversarial}

    def val_step(self, batch):
        images, _ = batch
        codes = self.autoencoder.encoder(images)
        errors = self.measure(self.autoencoder.decoder(codes), images)
        return {**errors, "code_variance": codes.square().mean(1)}

    @torch.no_grad()
    def on_epoch_end(self, row) -> None:
        if self.is_shown():
            reconstructed = self.autoencoder(self.shown)
            self.log_images("reconstructions", torch.cat([self.shown, reconstructed]), columns=16)
            normal = torch.randn(64, self.latent, device=self.device)
            self.log_images("samples", self.autoencoder.decoder(normal))
