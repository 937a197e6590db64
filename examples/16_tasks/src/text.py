import csv
from pathlib import Path

import torch
from torch import Tensor, nn

TEXT = "the film plot cast sound end start was not good great lovely bad dull poor"
WORDS = TEXT.split(" ")


class Reviews:
    def __init__(self, split: str) -> None:
        with Path("data/reviews.csv").open() as file:
            rows = list(csv.DictReader(file))
        self.rows = {"train": rows[:1200], "validation": rows[1200:1400], "test": rows[1400:]}[split]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        words = [WORDS.index(word) for word in self.rows[row]["review"].split()]
        return torch.tensor(words), int(self.rows[row]["sentiment"] == "positive")


class Reader(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.read(self.embed(words))
        return self.head(states[torch.arange(len(words)), lengths - 1])
