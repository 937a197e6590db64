"""Texts of different lengths: the sentiment of reviews, read by a recurrent network."""

import csv
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchmetrics import Accuracy

TEXT = "the film plot cast sound end start was not good great lovely bad dull poor"
WORDS = TEXT.split(" ")


class Reviews(L.LightningDataModule):
    def setup(self, stage: str | None = None) -> None:
        with Path("data/reviews.csv").open() as file:
            rows = [
                (
                    torch.tensor([WORDS.index(word) for word in row["review"].split()]),
                    int(row["sentiment"] == "positive"),
                )
                for row in csv.DictReader(file)
            ]
        self.splits = rows[:1200], rows[1200:1400], rows[1400:]

    def collate(self, rows):
        words = pad_sequence([words for words, _ in rows], batch_first=True)
        lengths = torch.tensor([len(words) for words, _ in rows])
        return words, lengths, torch.tensor([target for _, target in rows])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[0], batch_size=32, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[1], batch_size=32, collate_fn=self.collate)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[2], batch_size=32, collate_fn=self.collate)


class Reader(L.LightningModule):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)
        self.accuracy = Accuracy("multiclass", num_classes=2)

    def forward(self, words, lengths):
        states, _ = self.read(self.embed(words))
        return self.head(states[torch.arange(len(words)), lengths - 1])

    def training_step(self, batch, number):
        words, lengths, target = batch
        loss = nn.functional.cross_entropy(self(words, lengths), target)
        self.log("train_loss", loss)
        return loss

    def measure(self, batch, prefix):
        words, lengths, target = batch
        output = self(words, lengths)
        self.accuracy(output, target)
        self.log(f"{prefix}_loss", nn.functional.cross_entropy(output, target), batch_size=len(target))
        self.log(f"{prefix}_accuracy", self.accuracy, on_epoch=True, batch_size=len(target))

    def validation_step(self, batch, number):
        self.measure(batch, "val")

    def test_step(self, batch, number):
        self.measure(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    L.seed_everything(0)
    keep = L.pytorch.callbacks.ModelCheckpoint("lightning-runs/text", monitor="val_loss")
    trainer = L.Trainer(max_epochs=12, callbacks=[keep], gradient_clip_val=1.0, accelerator="cpu")
    data, net = Reviews(), Reader()
    trainer.fit(net, data)
    print(trainer.test(net, data, ckpt_path="best"))
