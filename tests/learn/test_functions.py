"""Learners made of user functions keep the contract, through every door."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from manyfit.data import ArraySource, Order
from manyfit.learn.functions.kind import functions_of
from manyfit.learn.functions.learner import FunctionLearner
from manyfit.learn.functions.loaders import RunData
from manyfit.learn.torch.objective import TorchObjective
from manyfit.learn.torch.update import Update
from manyfit.testing import LearnerContract
from manyfit.trainers import Trainer
from manyfit.wrapper import ModelWrapper

STATE = np.random.RandomState(0)
TARGET = np.arange(20) % 3
INPUTS = (STATE.normal(size=(3, 4))[TARGET] + 0.3 * STATE.normal(size=(20, 4))).astype(np.float32)


class Steps(Trainer):
    def __init__(self, model, **kwargs):
        self.count = 0

    def train_step(self, batch):
        self.count += 1
        loss = (
            F.cross_entropy(self.model(batch[0] + 0.1 * torch.randn(batch[0].shape)), batch[1])
            / self.count**0.1
        )
        self.backward(loss)
        self.step()
        return loss


class Epochs(Steps):
    def train_epoch(self):
        for batch in self.train_loader:
            self.log("loss", self.train_step(batch))


class Loops(Steps):
    def train(self):
        for _ in range(self.start_epoch, self.num_epochs):
            self.train_epoch()
            self.count += 1


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = make_module(), 0

    def forward(self, inputs):
        return self.net(inputs)

    def train_step(self, batch, optimizer):
        self.calls += 1
        optimizer.zero_grad()
        loss = F.cross_entropy(self(batch.inputs), batch.target)
        loss.backward()
        optimizer.step()
        return loss


class Wrapper(ModelWrapper):
    def evaluation_functions(self):
        return {"hits": lambda outputs, target: (outputs.argmax(1) == target).mean()}


def make_module():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def make_learner(owner, module, optimizer=True):
    source = ArraySource(INPUTS, TARGET)
    optimizers = {"": torch.optim.AdamW(module.parameters(), lr=0.01)} if optimizer else {}
    if isinstance(owner, Trainer):
        owner.num_epochs = 20
    return FunctionLearner(
        module,
        TorchObjective(module, nn.CrossEntropyLoss(), torch.device("cpu")),
        Update(optimizers, steps_per_epoch=5),
        functions=functions_of(owner),
        splits=RunData(source, Order(4, seed=1), source, None, 4),
        epochs=20,
    )


class Contract(LearnerContract):
    __test__ = False

    def source(self):
        return ArraySource(INPUTS, TARGET)


class TestSteps(Contract):
    __test__ = True
    cls: ClassVar = Steps

    def make(self):
        module = make_module()
        return make_learner(self.cls(module), module)


class TestEpochs(TestSteps):
    cls: ClassVar = Epochs


class TestLoops(TestSteps):
    cls: ClassVar = Loops


class TestPlainTrainer(TestSteps):
    cls: ClassVar = Trainer


class TestWrapper(Contract):
    __test__ = True

    def make(self):
        module = make_module()
        owner = Wrapper()
        owner.model = module
        return make_learner(owner, module)


class TestModule(Contract):
    __test__ = True

    def make(self):
        module = Pair()
        return make_learner(module, module)


class TestLightning(Contract):
    __test__ = True

    def make(self):
        lightning = pytest.importorskip("lightning.pytorch")

        class Classifier(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net, self.count = make_module(), 0

            def forward(self, inputs):
                return self.net(inputs)

            def training_step(self, batch, batch_idx):
                self.count += 1
                loss = F.cross_entropy(self(batch[0]), batch[1])
                self.log("train_twice", 2 * loss)
                return loss

            def configure_optimizers(self):
                optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        module = Classifier()
        return make_learner(module, module, optimizer=False)


def test_a_trainer_without_overrides_is_the_plain_module():
    """Bit for bit: a trainer adds nothing of its own."""
    from manyfit.learn.torch.learner import TorchLearner
    from manyfit.testing.learner import equal

    module, plain = make_module(), make_module()
    update = Update({"": torch.optim.AdamW(plain.parameters(), lr=0.01)}, steps_per_epoch=5)
    objective = TorchObjective(plain, nn.CrossEntropyLoss(), torch.device("cpu"))
    left, right = make_learner(Trainer(module), module), TorchLearner(plain, objective, update)
    for learner in (left, right):
        learner.train(ArraySource(INPUTS, TARGET).batches(Order(4, seed=1)), 7)
    states = [learner.state()[0] for learner in (left, right)]
    names = right.state()[0].tensors.keys()
    assert all(torch.equal(states[0].tensors[name], states[1].tensors[name]) for name in names)
    assert equal([right.state()[0]], [right.state()[0]])
