"""Training speed, with logging and progress, compared with a hand-written loop with the same fused optimizer.

Lightning and Keras on torch are measured in the same rounds if they are installed.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
warnings.filterwarnings("ignore")

import numpy as np
import torch
import torch.nn.functional as F
from fitting import fit_config
from timing import compare, where

from manyfit import load_config

torch.set_num_threads(1)
SOURCE = Path(__file__).resolve().parent
ROUNDS = 7


def config(case):
    return {
        "src_code_path": ".",
        "data": {"class": f"models.{case.data}", "batch_size": case.batch},
        "model": {"class": f"models.{case.model}"},
        "train": {
            "epochs": case.epochs,
            "loss": "cross_entropy",
            "optimizer": {"class": "adamw", "lr": 1e-3, "fused": True},
            "device": "cpu",
        },
        "export": {"metric": "train_loss"},
    }


class Case:
    def __init__(self, name, model, data, batch, epochs):
        self.name, self.model, self.data, self.batch, self.epochs = name, model, data, batch, epochs
        sys.path.insert(0, str(SOURCE))
        import models

        source = getattr(models, data)(batch).source("train")
        self.inputs, self.target = torch.from_numpy(source.inputs), torch.from_numpy(source.target)
        self.make = getattr(models, model)
        self.config = load_config(config(self), project=SOURCE)

    def ours(self):
        yield from fit_config(self.config)

    def hand(self):
        torch.manual_seed(0)
        module = self.make()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
        rows, progress = len(self.inputs), io.StringIO()
        with tempfile.TemporaryFile("w") as log:
            yield
            for epoch in range(self.epochs):
                order, total = torch.randperm(rows), torch.zeros(())
                for begin in range(0, rows, self.batch):
                    index = order[begin : begin + self.batch]
                    optimizer.zero_grad(set_to_none=True)
                    loss = F.cross_entropy(module(self.inputs[index]), self.target[index])
                    loss.backward()
                    optimizer.step()
                    total += loss.detach() * len(index)
                row = {
                    "epoch": epoch,
                    "train_loss": total.item() / rows,
                    "lr": optimizer.param_groups[0]["lr"],
                }
                log.write(json.dumps(row) + "\n")
                log.flush()
                print(f"epoch {epoch + 1}/{self.epochs} train_loss {row['train_loss']:.4g}", file=progress)
            yield

    def lightning(self):
        import lightning.pytorch as pl

        for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
            logging.getLogger(name).setLevel(logging.ERROR)
        make = self.make

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.module = make()

            def training_step(self, batch, index):
                loss = F.cross_entropy(self.module(batch[0]), batch[1])
                self.log("train_loss", loss, on_step=False, on_epoch=True)
                return loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

        data = torch.utils.data.TensorDataset(self.inputs, self.target)
        loader = torch.utils.data.DataLoader(data, self.batch, shuffle=True)
        trainer = pl.Trainer(
            max_epochs=self.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        module = Module()
        yield
        trainer.fit(module, loader)
        yield

    def keras(self):
        import keras

        model = keras.Sequential([keras.layers.TorchModuleWrapper(self.make())])
        model.compile(
            keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        inputs, target = np.asarray(self.inputs), np.asarray(self.target)
        yield
        model.fit(inputs, target, batch_size=self.batch, epochs=self.epochs, verbose=0)
        yield


def installed(name):
    try:
        __import__(name)
    except ImportError:
        print(f"{name} is not installed: pip install -e '.[bench]' -c constraints.txt")
        return False
    return True


def main() -> int:
    print(where(), f"torch {torch.__version__}, 1 thread")
    cases = [
        Case("digits MLP, batch 32", "MLP", "Digits", 32, 60),
        Case("LeNet, batch 128", "LeNet", "Images", 128, 3),
    ]
    others = [name for name in ("lightning", "keras") if installed(name)]
    good = True
    for case in cases:
        sides = {name: getattr(case, name) for name in others}
        good &= compare(
            f"{case.name}: hand-written / manyfit", case.hand, case.ours, ROUNDS, at_least=0.95, beside=sides
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
