"""Python only: train, search, and draw what was found."""

import lightning as L
import matplotlib.pyplot as plt
import numpy as np
import optuna
import pandas
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from sklearn.metrics import ConfusionMatrixDisplay
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import Accuracy


class Digits(L.LightningDataModule):
    def setup(self, stage: str | None = None) -> None:
        found = load_digits()
        images = torch.tensor(found.images[:, None] / 16, dtype=torch.float32)
        data = TensorDataset(images, torch.tensor(found.target))
        self.splits = random_split(data, [0.7, 0.15, 0.15], torch.Generator().manual_seed(0))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[0], batch_size=64, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[1], batch_size=64)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[2], batch_size=64)


class Net(L.LightningModule):
    def __init__(self, hidden: int = 32, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.accuracy = Accuracy("multiclass", num_classes=10)

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
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

    def predict_step(self, batch, number):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def fit(net: Net, name: str, seed: int = 0):
    L.seed_everything(seed)
    logger = CSVLogger("lightning-runs", name)
    keep = L.pytorch.callbacks.ModelCheckpoint(monitor="val_loss")
    trainer = L.Trainer(max_epochs=6, callbacks=[keep], logger=logger, accelerator="cpu", log_every_n_steps=5)
    trainer.fit(net, Digits())
    return trainer, pandas.read_csv(f"{logger.log_dir}/metrics.csv"), float(keep.best_model_score)


def objective(trial: optuna.Trial) -> float:
    hidden, lr = (
        trial.suggest_categorical("hidden", [16, 64]),
        trial.suggest_float("lr", 1e-4, 1e-1, log=True),
    )
    return float(np.mean([fit(Net(hidden, lr), f"plots-{trial.number}", seed)[2] for seed in (0, 1)]))


if __name__ == "__main__":
    trainer, log, _ = fit(Net(), "plots")
    for name in ("train_loss", "val_loss"):
        curve = log[["step", name]].dropna()
        plt.plot(curve["step"], curve[name], label=name)
    plt.xlabel("step")
    plt.legend()
    plt.savefig("lightning-curves.png")
    trainer.test(datamodule=(data := Digits()), ckpt_path="best")
    outputs = torch.cat(trainer.predict(dataloaders=data.test_dataloader(), ckpt_path="best"))
    known = [int(target) for _, target in data.splits[2]]
    ConfusionMatrixDisplay.from_predictions(known, outputs.argmax(1))
    plt.savefig("lightning-confusion.png")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=6)
    plt.figure()
    plt.semilogx([t.params["lr"] for t in study.trials], [t.value for t in study.trials], "o")
    plt.savefig("lightning-study.png")
    print(study.trials_dataframe().head())
