"""Models and trainers: change a step, an epoch or the whole loop, and keep exact resumption.

    class Smoothed(Trainer):
        def train_step(self, batch):
            images, labels = batch
            loss = torch.nn.functional.cross_entropy(self.model(images), labels, label_smoothing=0.1)
            self.backward(loss)
            self.step()
            return loss

In a config: `trainer: {class: trainers.Smoothed}` beside `model:`. In Python: `Smoothed(model,
train_dataset=..., num_epochs=10, folder="runs/smoothed").train()`.

| module | contents |
|---|---|
| `trainer` | `Trainer` |
| `model` | `Model`, a wrapper around one or more modules |
| `parameters` | the parameters of a trainer, and where a config sets them |
| `translation` | the functions of a trainer, for the learner that calls them |
| `launch` | from a trainer in Python to a run with a config |
| `common` | the former name of `Model` |
"""

from manyfit.trainers.model import Model
from manyfit.trainers.trainer import Trainer

__all__ = ["Model", "Trainer"]
