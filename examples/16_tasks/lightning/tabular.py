"""A table: the best of 16 networks by TPE and asynchronous halving."""

import lightning as L
import optuna
import pandas
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import AUROC, Accuracy


class Cells(L.LightningDataModule):
    def setup(self, stage: str | None = None) -> None:
        table = pandas.read_csv("data/cells.csv")
        target = LabelEncoder().fit_transform(table.pop("kind"))
        train, held, y_train, y_held = train_test_split(
            table.to_numpy(), target, test_size=0.3, stratify=target, random_state=0
        )
        val, test, y_val, y_test = train_test_split(
            held, y_held, test_size=0.5, stratify=y_held, random_state=0
        )
        scaler = StandardScaler().fit(train)
        self.splits = [
            TensorDataset(torch.tensor(scaler.transform(x), dtype=torch.float32), torch.tensor(y))
            for x, y in ((train, y_train), (val, y_val), (test, y_test))
        ]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[0], batch_size=32, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[1], batch_size=32)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[2], batch_size=32)


class Net(L.LightningModule):
    def __init__(self, features: int, hidden: int, dropout: float, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 2)
        )
        self.accuracy = Accuracy("multiclass", num_classes=2)
        self.auroc = AUROC("multiclass", num_classes=2)

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def measure(self, batch, prefix):
        x, y = batch
        output = self.net(x)
        self.accuracy(output, y)
        self.auroc(output, y)
        self.log(f"{prefix}_loss", nn.functional.cross_entropy(output, y))
        self.log(f"{prefix}_accuracy", self.accuracy, on_epoch=True)
        self.log(f"{prefix}_auroc", self.auroc, on_epoch=True)

    def validation_step(self, batch, number):
        self.measure(batch, "val")

    def test_step(self, batch, number):
        self.measure(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Prune(L.Callback):
    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.trial.report(float(trainer.callback_metrics["val_loss"]), trainer.current_epoch)
            if self.trial.should_prune():
                raise optuna.TrialPruned


def objective(trial: optuna.Trial) -> float:
    L.seed_everything(0)
    data = Cells()
    net = Net(
        30,
        trial.suggest_int("hidden", 8, 128, log=True),
        trial.suggest_float("dropout", 0.0, 0.5),
        trial.suggest_float("lr", 1e-4, 1e-1, log=True),
    )
    keep = L.pytorch.callbacks.ModelCheckpoint(f"lightning-runs/tabular/{trial.number}", monitor="val_loss")
    trainer = L.Trainer(max_epochs=9, callbacks=[Prune(trial), keep], accelerator="cpu", log_every_n_steps=5)
    trainer.fit(net, data)
    trial.set_user_attr("path", keep.best_model_path)
    return float(keep.best_model_score)


if __name__ == "__main__":
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.SuccessiveHalvingPruner()
    )
    study.optimize(objective, n_trials=16)
    best = Net.load_from_checkpoint(study.best_trial.user_attrs["path"])
    print(study.best_params, L.Trainer(accelerator="cpu").test(best, Cells()))
