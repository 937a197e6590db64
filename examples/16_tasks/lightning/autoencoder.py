"""An autoencoder of digits."""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, random_split


def make_loaders() -> list[DataLoader]:
    images = torch.tensor(load_digits().images[:, None] / 16, dtype=torch.float32)
    train, val, test = random_split(images, [0.7, 0.15, 0.15], torch.Generator().manual_seed(0))
    return [DataLoader(part, batch_size=64, shuffle=part is train) for part in (train, val, test)]


class Autoencoder(L.LightningModule):
    def __init__(self, code: int = 12) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, code))
        self.decode = nn.Sequential(
            nn.Linear(code, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))
        )

    def find_loss(self, images, name):
        loss = (self.decode(self.encode(images)) - images).square().mean()
        self.log(name, loss)
        return loss

    def training_step(self, images, number):
        return self.find_loss(images, "train_loss")

    def validation_step(self, images, number):
        self.find_loss(images, "val_loss")

    def test_step(self, images, number):
        self.find_loss(images, "test_loss")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


if __name__ == "__main__":
    L.seed_everything(0)
    train, val, test = make_loaders()
    keep = L.pytorch.callbacks.ModelCheckpoint("lightning-runs/autoencoder", monitor="val_loss")
    trainer = L.Trainer(max_epochs=15, callbacks=[keep], accelerator="cpu", log_every_n_steps=5)
    net = Autoencoder()
    trainer.fit(net, train, val)
    print(trainer.test(net, test, ckpt_path="best"))
