"""Two heads: which digit an image shows, and whether it has a ring."""

import lightning as L
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import AUROC, Accuracy


def make_loaders() -> list[DataLoader]:
    found = load_digits()
    images = torch.tensor(found.images[:, None] / 16, dtype=torch.float32)
    digit = torch.tensor(found.target)
    ring = torch.tensor(np.isin(found.target, [0, 6, 8, 9]), dtype=torch.float32)
    train, held = train_test_split(np.arange(len(images)), test_size=0.3, random_state=0)
    val, test = train_test_split(held, test_size=0.5, random_state=0)
    return [
        DataLoader(TensorDataset(images[rows], digit[rows], ring[rows]), batch_size=64, shuffle=rows is train)
        for rows in (train, val, test)
    ]


class Net(L.LightningModule):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU())
        self.digit, self.ring = nn.Linear(hidden, 10), nn.Linear(hidden, 1)
        self.accuracy = Accuracy("multiclass", num_classes=10)
        self.auroc = AUROC("binary")

    def forward(self, images):
        hidden = self.body(images)
        return self.digit(hidden), self.ring(hidden).squeeze(1)

    def find_loss(self, batch, prefix):
        images, digit, ring = batch
        outputs = self(images)
        digit_loss = nn.functional.cross_entropy(outputs[0], digit)
        ring_loss = nn.functional.binary_cross_entropy_with_logits(outputs[1], ring)
        loss = digit_loss + 0.5 * ring_loss
        values = {"loss": loss, "loss_digit": digit_loss, "loss_ring": ring_loss}
        self.log_dict({f"{prefix}_{name}": value for name, value in values.items()})
        return loss, outputs

    def training_step(self, batch, number):
        return self.find_loss(batch, "train")[0]

    def measure(self, batch, prefix):
        _, outputs = self.find_loss(batch, prefix)
        self.accuracy(outputs[0], batch[1])
        self.auroc(outputs[1], batch[2].int())
        self.log(f"{prefix}_digit_accuracy", self.accuracy, on_epoch=True)
        self.log(f"{prefix}_ring_auroc", self.auroc, on_epoch=True)

    def validation_step(self, batch, number):
        self.measure(batch, "val")

    def test_step(self, batch, number):
        self.measure(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


if __name__ == "__main__":
    L.seed_everything(0)
    train, val, test = make_loaders()
    keep = L.pytorch.callbacks.ModelCheckpoint("lightning-runs/heads", monitor="val_ring_auroc", mode="max")
    trainer = L.Trainer(max_epochs=10, callbacks=[keep], accelerator="cpu", log_every_n_steps=5)
    net = Net()
    trainer.fit(net, train, val)
    print(trainer.test(net, test, ckpt_path="best"))
