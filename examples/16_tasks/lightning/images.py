"""Images: a network trained on many images of some classes, and fine-tuned on few of others."""

import random
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Accuracy


class Images(Dataset):
    def __init__(self, files: list[Path], classes: list[str], augment: bool) -> None:
        self.files, self.classes, self.augment = files, classes, augment

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int):
        path = self.files[row]
        image = torch.from_numpy(np.array(Image.open(path), dtype=np.float32)[None] / 255)
        if self.augment:
            image = torch.roll(image, (random.randint(-1, 1), random.randint(-1, 1)), (1, 2))
        return image, self.classes.index(path.parent.name)


def make_loaders(folder: str) -> list[DataLoader]:
    files = sorted(Path(folder).glob("*/*.png"))
    classes = sorted({path.parent.name for path in files})
    labels = [path.parent.name for path in files]
    train, held, _, held_labels = train_test_split(
        files, labels, test_size=0.3, stratify=labels, random_state=0
    )
    val, test = train_test_split(held, test_size=0.5, stratify=held_labels, random_state=0)
    return [
        DataLoader(Images(part, classes, part is train), batch_size=32, shuffle=part is train)
        for part in (train, val, test)
    ]


class Net(L.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(32 * 4 * 4, classes)
        self.accuracy = Accuracy("multiclass", num_classes=classes)

    def forward(self, images):
        return self.head(self.body(images))

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def measure(self, batch, prefix):
        x, y = batch
        output = self(x)
        self.accuracy(output, y)
        self.log(f"{prefix}_loss", nn.functional.cross_entropy(output, y))
        self.log(f"{prefix}_accuracy", self.accuracy, on_epoch=True)

    def validation_step(self, batch, number):
        self.measure(batch, "val")

    def test_step(self, batch, number):
        self.measure(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class Freeze(L.pytorch.callbacks.BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.body)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 4:
            self.unfreeze_and_add_param_group(module.body, optimizer, initial_denom_lr=1)


def fit(net: Net, folder: str, name: str, callbacks: list[L.Callback]) -> str:
    train, val, test = make_loaders(folder)
    keep = L.pytorch.callbacks.ModelCheckpoint(f"lightning-runs/{name}", monitor="val_loss")
    trainer = L.Trainer(max_epochs=8, callbacks=[*callbacks, keep], accelerator="cpu", log_every_n_steps=5)
    trainer.fit(net, train, val)
    print(trainer.test(net, test, ckpt_path="best"))
    return keep.best_model_path


if __name__ == "__main__":
    L.seed_everything(0)
    base = Net.load_from_checkpoint(fit(Net(5), "data/many", "images-base", []))
    net = Net(5)
    net.body.load_state_dict(base.body.state_dict())
    fit(net, "data/few", "images", [Freeze()])
