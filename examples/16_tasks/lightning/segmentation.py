"""Segmentation: the pixels of a disc in a noisy image."""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loader(split: str, rows: int = 320) -> DataLoader:
    """Noisy images with a disc, and the pixels of the disc."""
    dice = np.random.RandomState(["train", "validation", "test"].index(split))
    y, x = np.mgrid[:24, :24]
    a, b, r = (dice.uniform(*ends, (rows, 1, 1)) for ends in ((6, 18), (6, 18), (3, 6)))
    masks = ((x - a) ** 2 + (y - b) ** 2 < r**2).astype(np.float32)[:, None]
    images = (masks + dice.normal(0, 0.6, masks.shape)).astype(np.float32)
    data = TensorDataset(torch.from_numpy(images), torch.from_numpy(masks))
    return DataLoader(data, batch_size=32, shuffle=split == "train")


def iou(output, target):
    found, known = (output > 0).flatten(1), (target > 0.5).flatten(1)
    return (found & known).sum(1) / (found | known).sum(1).clamp(min=1)


class Net(L.LightningModule):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, 1, 1),
        )  # fmt: skip

    def training_step(self, batch, number):
        images, masks = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(images), masks)
        self.log("train_loss", loss)
        return loss

    def measure(self, batch, prefix):
        images, masks = batch
        output = self.net(images)
        self.log(f"{prefix}_loss", nn.functional.binary_cross_entropy_with_logits(output, masks))
        self.log(f"{prefix}_iou", iou(output, masks).mean())

    def validation_step(self, batch, number):
        self.measure(batch, "val")

    def test_step(self, batch, number):
        self.measure(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


if __name__ == "__main__":
    L.seed_everything(0)
    keep = L.pytorch.callbacks.ModelCheckpoint("lightning-runs/segmentation", monitor="val_iou", mode="max")
    trainer = L.Trainer(max_epochs=6, callbacks=[keep], accelerator="cpu", log_every_n_steps=5)
    net = Net()
    trainer.fit(net, make_loader("train"), make_loader("validation"))
    print(trainer.test(net, make_loader("test"), ckpt_path="best"))
