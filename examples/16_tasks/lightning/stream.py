"""A stream without an end: how fast a noisy wave is."""

import random

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Waves(IterableDataset):
    """Endless noisy waves; the model says how fast they are."""

    def __iter__(self):
        info = get_worker_info()
        dice = random.Random(info.id if info else 0)
        time = torch.linspace(0, 6, 48)
        while True:
            speed = dice.uniform(0.5, 3)
            yield torch.sin(speed * time + dice.uniform(0, 6)) + 0.1 * torch.randn(48), torch.tensor([speed])


class Shuffled(IterableDataset):
    def __init__(self, rows: IterableDataset, size: int) -> None:
        self.rows, self.size = rows, size

    def __iter__(self):
        rows = iter(self.rows)
        held = [next(rows) for _ in range(self.size)]
        for row in rows:
            place = random.randrange(self.size)
            yield held[place]
            held[place] = row


class Net(L.LightningModule):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(48, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_epoch=True, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


if __name__ == "__main__":
    L.seed_everything(0, workers=True)
    keep = L.pytorch.callbacks.ModelCheckpoint("lightning-runs/stream", save_last=True)
    trainer = L.Trainer(max_epochs=4, limit_train_batches=200, callbacks=[keep], accelerator="cpu")
    trainer.fit(Net(), DataLoader(Shuffled(Waves(), 200), batch_size=32, num_workers=2))
    print(trainer.callback_metrics)
