"""Cross-validation of three architectures, and the paired test of the best two."""

import statistics

import lightning as L
import torch
from scipy.stats import ttest_rel
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold, train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Accuracy


def make_flat(hidden: int = 64) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def make_conv(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 16, 10)
    )


class Net(L.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.accuracy = Accuracy("multiclass", num_classes=10)

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def measure(self, batch, prefix):
        x, y = batch
        output = self.net(x)
        self.accuracy(output, y)
        self.log(f"{prefix}_loss", nn.functional.cross_entropy(output, y))
        self.log(f"{prefix}_accuracy", self.accuracy, on_epoch=True)

    def validation_step(self, batch, number):
        self.measure(batch, "val")

    def test_step(self, batch, number):
        self.measure(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


CANDIDATES = {"flat": make_flat, "flat 16": lambda: make_flat(16), "conv": make_conv}

if __name__ == "__main__":
    found = load_digits()
    images = torch.tensor(found.images[:, None] / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(found.target))
    known, test = train_test_split(range(len(data)), test_size=0.15, random_state=0)
    scores, paths = {}, {}
    for name, make in CANDIDATES.items():
        scores[name] = []
        for fold, (train, val) in enumerate(KFold(5, shuffle=True, random_state=0).split(known)):
            L.seed_everything(0)
            keep = L.pytorch.callbacks.ModelCheckpoint(
                f"lightning-runs/architectures/{name}-{fold}", monitor="val_accuracy", mode="max"
            )
            trainer = L.Trainer(max_epochs=6, callbacks=[keep], accelerator="cpu", log_every_n_steps=5)
            parts = [torch.utils.data.Subset(data, [known[i] for i in rows]) for rows in (train, val)]
            loaders = [DataLoader(part, batch_size=64, shuffle=part is parts[0]) for part in parts]
            trainer.fit(Net(make()), *loaders)
            scores[name].append(float(keep.best_model_score))
            paths[name, fold] = keep.best_model_path
    first, second, *_ = sorted(scores, key=lambda name: -statistics.mean(scores[name]))
    print({name: statistics.mean(values) for name, values in scores.items()})
    print(first, "against", second, ttest_rel(scores[first], scores[second]))
    best = max(range(5), key=lambda fold: scores[first][fold])
    net = Net.load_from_checkpoint(paths[first, best], net=CANDIDATES[first]())
    rows = DataLoader(torch.utils.data.Subset(data, test), batch_size=64)
    print(L.Trainer(accelerator="cpu").test(net, rows))
