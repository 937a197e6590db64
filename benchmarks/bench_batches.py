"""Batches of in-memory arrays, compared with a `DataLoader` and with a plain gather of the same columns."""

from __future__ import annotations

import sys
from itertools import islice

import numpy as np
import torch
from timing import compare, where
from torch.utils.data import DataLoader, TensorDataset

from manyfit.data import ArraySource, Order

torch.set_num_threads(1)
ROWS, BATCH, EPOCHS, ROUNDS = 8192, 32, 4, 7

state = np.random.RandomState(0)
inputs = state.rand(ROWS, 64).astype(np.float32)
target = state.randint(0, 10, ROWS).astype(np.int64)
steps = EPOCHS * (ROWS // BATCH)


def ours():
    for batch in islice(ArraySource(inputs, target).batches(Order(BATCH, seed=1)), steps):
        torch.from_numpy(batch.inputs), torch.from_numpy(batch.target)


def loader():
    batches = DataLoader(
        TensorDataset(torch.from_numpy(inputs), torch.from_numpy(target)), BATCH, shuffle=True
    )
    for _ in range(EPOCHS):
        for _ in batches:
            pass


def bare():
    for _ in range(EPOCHS):
        order = np.random.permutation(ROWS)
        for begin in range(0, ROWS, BATCH):
            index = order[begin : begin + BATCH]
            torch.from_numpy(inputs[index]), torch.from_numpy(target[index])


def bare_torch():
    left, right = torch.from_numpy(inputs), torch.from_numpy(target)
    for _ in range(EPOCHS):
        order = torch.randperm(ROWS)
        for begin in range(0, ROWS, BATCH):
            index = order[begin : begin + BATCH]
            left[index], right[index]


if __name__ == "__main__":
    print(where(), f"torch {torch.__version__}, 1 thread; {steps} batches of {BATCH}")
    good = compare("DataLoader / manyfit", loader, ours, ROUNDS, at_least=8.0)
    good &= compare(
        "bare gather / manyfit", bare, ours, ROUNDS, at_least=0.9, beside={"gather by torch": bare_torch}
    )
    sys.exit(not good)
