"""The training of runs/twin as a plain PyTorch loop. It shares only data, row order and seeds."""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from manyfit.core.seeds import derive
from manyfit.data import Order
from manyfit.datasets import Digits

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "src"))
from models import MLP  # noqa: E402


def train(seed: int, epochs: int, batch_size: int) -> list[float]:
    torch.set_num_threads(1)
    source = Digits().source("train")
    images, labels = torch.from_numpy(source.inputs), torch.from_numpy(source.target)
    torch.manual_seed(derive(seed, "weights"))
    model = MLP(hidden=64, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    loss_of = nn.CrossEntropyLoss()
    losses, step = [], 0
    for epoch in range(epochs):
        seen, counts = [], []
        for rows in torch.from_numpy(Order(batch_size, seed).epoch(len(images), epoch)).split(batch_size):
            torch.manual_seed(derive(seed, "model") + step)
            optimizer.zero_grad()
            loss = loss_of(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
            counts.append(len(rows))
            step += 1
        total = (torch.stack(seen).double() * torch.tensor(counts, dtype=torch.float64)).sum()
        losses.append(float(total) / len(images))
    return losses


if __name__ == "__main__":
    by_hand = train(seed=7, epochs=4, batch_size=32)
    log = (HERE / "runs/twin/metrics.jsonl").read_text().splitlines()
    by_manyfit = [json.loads(line)["train_loss"] for line in log]
    for left, right in zip(by_hand, by_manyfit, strict=True):
        print(left, right, "equal" if left == right else "DIFFERENT")
    sys.exit(by_hand != by_manyfit)
