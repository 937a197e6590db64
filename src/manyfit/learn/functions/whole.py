"""Objects of any class whose `train()` is the whole training."""

from __future__ import annotations

from typing import Any

from manyfit.learn.functions.functions import Functions, Span


class WholeFunctions(Functions):
    """The functions of an object with nothing but `train()`: one step, as an estimator."""

    span: Span = "whole"
    hidden = ("train_loader", "val_loader", "test_loader", "device")

    def bind(self, learner: Any) -> None:
        """Give the object loaders and the device, unless it has attributes of these names."""
        known = {
            "train_loader": learner.loaders["train"],
            "val_loader": learner.loaders["validation"],
            "test_loader": learner.loaders["test"],
            "device": learner.device,
        }
        for name, value in known.items():
            if not hasattr(self.owner, name):
                setattr(self.owner, name, value)

    def overrides(self) -> list[str]:
        """Return `train`."""
        return ["train"]

    def train(self) -> Any:
        """Train everything."""
        return self.owner.train()
