"""The torch learner keeps the contract, whatever it is made of."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import manyfit
from manyfit.core.errors import RunFailed
from manyfit.data import ArraySource, once
from manyfit.learn.metrics import absolute_error, accuracy, binary_accuracy, squared_error, top_k_accuracy
from manyfit.learn.packing import pack, unpack
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.objective import TorchObjective
from manyfit.learn.torch.row_losses import rowwise
from manyfit.learn.torch.update import Update
from manyfit.store.folder import RunFolder
from manyfit.testing import LearnerContract


class Base(LearnerContract):
    optimizer = staticmethod(lambda params: torch.optim.AdamW(params, lr=0.01))
    scheduler = staticmethod(lambda optimizer: None)
    loss = nn.CrossEntropyLoss()
    options: ClassVar = {}
    accumulate = 1
    precision = "fp32"
    ema = False

    def make(self):
        torch.manual_seed(3)
        module = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        return self.learner(module)

    def learner(self, module, device="cpu"):
        optimizer = self.optimizer(module.parameters())
        scheduler = self.scheduler(optimizer)
        update = Update(
            {"": optimizer}, {"": scheduler} if scheduler else {}, steps_per_epoch=5, **self.options
        )
        average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if self.ema else None
        objective = TorchObjective(module, self.loss, torch.device(device))
        return TorchLearner(
            module,
            objective,
            update,
            {"accuracy": accuracy},
            self.accumulate,
            self.precision,
            average,
            seed=9,
        )

    def source(self):
        state = np.random.RandomState(0)
        return ArraySource(state.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3)


class TestAdamW(Base):
    pass


class TestMomentum(Base):
    optimizer = staticmethod(lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True))


class TestLBFGS(Base):
    optimizer = staticmethod(lambda params: torch.optim.LBFGS(params, lr=0.01))


class TestSchedule(Base):
    scheduler = staticmethod(
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    )


class TestFunctionAsLoss(Base):
    loss = staticmethod(lambda output, target: nn.functional.cross_entropy(output, target) / 2)


class TestAccumulation(Base):
    accumulate = 2
    options: ClassVar = {"clip_norm": 0.5, "clip_value": 0.1}


class TestHalfPrecision(Base):
    precision = "bf16"
    ema = True


class TestScaled(Base):
    precision = "fp16"

    @property
    def options(self):
        return {"scaler": torch.amp.GradScaler("cpu"), "clip_norm": 1.0}


class TestOnTheGpu(Base):
    @pytest.fixture(autouse=True)
    def _gpu(self):
        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")

    def make(self):
        learner = super().make()
        return self.learner(learner.module.cuda(), "cuda")


def test_inputs_by_name_and_by_position():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, left, right):
            return self.layer(left) - self.layer(right)

    module = Two()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    learner = TorchLearner(
        module, TorchObjective(module, nn.MSELoss(), torch.device("cpu")), Update({"": optimizer})
    )
    left, right = np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    by_name = next(learner.evaluate(once(ArraySource({"right": right, "left": left}, left), 2)))
    by_place = next(learner.evaluate(once(ArraySource((left, right), left), 2)))
    assert np.array_equal(by_name.output, by_place.output)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), nn.functional.cross_entropy,
                                  lambda output, target: nn.functional.cross_entropy(output, target)])  # fmt: skip
def test_losses_row_by_row_have_the_same_mean(loss):
    output, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    rows = rowwise(loss)(output, target)
    assert rows.shape == (6,)
    assert rows.mean() == pytest.approx(float(loss(output, target)), rel=1e-6)
    assert loss is not nn.CrossEntropyLoss or loss.reduction == "mean", "the loss itself is left alone"


def test_a_loss_over_many_values_is_averaged_within_the_row():
    rows = rowwise(nn.MSELoss())(torch.ones(2, 3, 4), torch.zeros(2, 3, 4))
    assert rows.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("metric", "output", "target", "rows"),
    [
        (accuracy, [[1.0, 2.0], [2.0, 1.0]], [1, 1], [1.0, 0.0]),
        (top_k_accuracy, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], [1], [1.0]),
        (top_k_accuracy, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], [0], [0.0]),
        (binary_accuracy, [-1.0, 2.0], [0.0, 0.0], [1.0, 0.0]),
        (absolute_error, [[1.0, 2.0]], [[0.0, 0.0]], [1.5]),
        (squared_error, [3.0], [1.0], [4.0]),
    ],
)
def test_metrics(metric, output, target, rows):
    assert metric(torch.tensor(output), torch.tensor(target)).float().tolist() == rows


def test_a_metric_of_the_wrong_shape():
    learner = TestAdamW().make()
    learner.metrics = {"mean": lambda output, target: output.mean()}
    with pytest.raises(RunFailed, match="one number for each of 4 rows"):
        next(learner.evaluate(once(TestAdamW().source(), 4)))


def test_packing_keeps_everything():
    state = {"model": {"w": torch.randn(3), "n": torch.tensor(2)}, "optimizer": {"state": {0: {"step": torch.tensor(1.0)}},
             "groups": [{"betas": (0.9, 0.999), "lr": 0.1, "fused": None, "on": True}]}, "step": 3}  # fmt: skip
    packed = pack(state)
    import json

    again = unpack(type(packed)(packed.tensors, json.loads(json.dumps(packed.values))))
    assert torch.equal(again["model"]["w"], state["model"]["w"])
    assert again["optimizer"]["groups"] == state["optimizer"]["groups"]
    assert list(again["optimizer"]["state"]) == [0]


def test_tied_weights_can_be_packed(tmp_path):
    from manyfit.store.buffers import Buffers
    from manyfit.store.checkpoint import save_checkpoint
    from manyfit.store.manifest import Note

    weight = nn.Parameter(torch.randn(2, 2))
    packed = Buffers().copy(pack({"model": {"a": weight, "b": weight}}))
    assert torch.equal(
        save_checkpoint(tmp_path, packed, Note(1, 1.0, {}, 0)).load().tensors["model/b"], weight
    )


def test_what_cannot_be_kept_is_said():
    with pytest.raises(RunFailed, match="'model/f' holds a function"):
        pack({"model": {"f": lambda: None}})


class Types:
    """A metric of a whole split that only looks at what it is shown."""

    def __init__(self):
        self.seen = []

    def clone(self):
        return self

    def reset(self):
        self.seen.clear()

    def to(self, device):
        return self

    def update(self, output, target):
        self.seen.append(output.dtype)

    def compute(self):
        return len(self.seen)


def test_metrics_of_a_split_see_what_a_report_shows():
    """NumPy has no bfloat16, so that reports have float32; validation must not round otherwise."""
    contract, metric = TestHalfPrecision(), Types()
    learner = contract.make()
    metrics = SplitMetrics({"types": metric})
    learner.measure(once(contract.source(), 4), [metrics])
    assert set(metric.seen) == {torch.float32}
    assert metrics.values()["types"] > 1


def test_parts_of_a_batch_add_up_to_it(project):
    weights = []
    for parts in (1, 4):
        tree = project.changed(train__accumulate=parts, train__optimizer={"class": "sgd", "lr": 0.1})
        weights.append(manyfit.train(tree, folder=f"runs/{parts}", callbacks=[]).load_model().state_dict())
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-6) for name in weights[0])


def test_the_average_is_what_is_evaluated_and_exported(project):
    tree = project.changed(train__ema=0.5)
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    state = RunFolder(result.folder).checkpoints()[-1].load().tensors
    model = result.load_model().state_dict()
    for name, tensor in model.items():
        assert torch.equal(tensor, state[f"average/module.{name}"])
        assert not torch.equal(tensor, state[f"model/{name}"])
