"""A grid of 16 configs on digits, 10 epochs each: a fused study compared with hand-written loops and with a bare
fused loop.

The study is timed from the call of `manyfit.sweep` to the finished ledger, in an interpreter that has everything
imported. It checks, plans and rehearses, compares the group with each trial alone, validates, writes the log,
checkpoints and the ledger, and exports its best model. The bare fused loop does nothing but train. If they are
installed, Lightning and Ray Tune do the same work once, in the same run.

Two processes cannot halve the time, because a step of eight models takes more than half as long as one of sixteen: the
bare loop on two processes shows how much they can gain. At last, 64 models show what opening a group costs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import sys
import time

os.environ.setdefault("EPOCHS", "10")

import bench_sweep
import torch
import torch.nn.functional as F
from bench_sweep import BATCH, EPOCHS, GRID, ROUNDS, Study, X, Y, lightning_serial, ray_tune, serial
from timing import compare, seconds, where
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import manyfit
from manyfit.learn.torch.fused.learner import FusedLearner
from manyfit.run.session import together
from manyfit.store.group_writer import GroupWriter


def bare_fused(grid=GRID):
    """Train a grid with stacked parameters, as in `torch.func`'s tutorial on ensembles, and nothing else."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)) for _ in grid]
    found, _ = stack_module_state(models)
    parameters = {name: tensor.detach().requires_grad_() for name, tensor in found.items()}
    leaves = list(parameters.values())
    shapes = [(-1, *[1] * (leaf.ndim - 1)) for leaf in leaves]
    rates, decays = (torch.tensor(column) for column in zip(*grid, strict=True))
    rate, shrink = ([v.view(shape) for shape in shapes] for v in (rates, 1 - rates * decays))
    first, second = ([torch.zeros_like(leaf) for leaf in leaves] for _ in range(2))

    def loss(own, x, y):
        return F.cross_entropy(functional_call(models[0], own, (x,)), y)

    losses, step = vmap(loss, in_dims=(0, None, None)), 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(X))
        for i in range(0, len(X), BATCH):
            rows, step = order[i : i + BATCH], step + 1
            gradients = torch.autograd.grad(losses(parameters, X[rows], Y[rows]).sum(), leaves)
            with torch.no_grad():
                torch._foreach_mul_(leaves, shrink)
                torch._foreach_lerp_(first, gradients, 0.1)
                torch._foreach_mul_(second, 0.999)
                torch._foreach_addcmul_(second, gradients, gradients, 0.001)
                down = torch._foreach_div(second, 1 - 0.999**step)
                torch._foreach_sqrt_(down)
                torch._foreach_add_(down, 1e-8)
                move = torch._foreach_div(first, 1 - 0.9**step)
                torch._foreach_div_(move, down)
                torch._foreach_mul_(move, rate)
                torch._foreach_sub_(leaves, move)


def _train_share(grid, ready, go):
    torch.set_num_threads(1)
    bare_fused(grid[:2])
    ready.wait()
    go.wait()
    bare_fused(grid)


def bare_on_two():
    """Train one half of the grid in each of two processes that are started, with all imports done."""
    context = multiprocessing.get_context("fork")
    ready, go = context.Barrier(3), context.Event()
    shares = [context.Process(target=_train_share, args=(grid, ready, go)) for grid in (GRID[:8], GRID[8:])]
    for share in shares:
        share.start()
    ready.wait()
    yield
    go.set()
    for share in shares:
        share.join()
    yield


class OnWorkers(Study):
    """The fused study on two workers that are started, with all imports done, before the clock starts."""

    def __init__(self, execute: str, every: int = EPOCHS) -> None:
        super().__init__()
        config = self.root / "runs/base/config.yaml"
        text = config.read_text().replace(f"{EPOCHS}ep", f"{every}ep")
        config.write_text(text + "evaluate: {batch_size: 1024}\n")
        file = self.root / "studies/s/study.yaml"
        file.write_text(file.read_text().replace("{on: processes, workers: 2}", execute))


class Fused(OnWorkers):
    """The study in this process, from the call to the finished ledger."""

    def run(self):
        self.clear()
        yield
        found = manyfit.sweep(self.root / "studies/s", progress=False)
        yield
        assert len(found.ranked) == 16, found.failures


class Opening(Fused):
    """64 trials of 20 epochs, in which the costs of a group are timed apart."""

    def __init__(self) -> None:
        super().__init__("{on: inline, fuse: 64}", every=1)
        config, file = self.root / "runs/base/config.yaml", self.root / "studies/s/study.yaml"
        config.write_text(config.read_text().replace("validate: 1ep", "validate: 1ep, checkpoint: 5ep"))
        rates = [1e-4 * 1.2**i for i in range(16)]
        file.write_text(file.read_text().replace(str(bench_sweep.RATES), str(rates)))

    def share(self) -> tuple[float, str]:
        """Return the share of comparing and stacking, of the first checkpoint, and of reading all states."""
        self.clear()
        began, spent = time.perf_counter(), dict[str, float]()
        with (
            timed(together, "_fuse", "opening", spent),
            timed(GroupWriter, "_write_commit", "first checkpoint", spent),
            timed(FusedLearner, "state", "state()", spent),
        ):
            found = manyfit.sweep(self.root / "studies/s", ["set={train.epochs: 20}"], progress=False)
        took = time.perf_counter() - began
        assert len(found.ranked) == 64, found.failures
        return sum(spent.values()) / took, ", ".join(
            f"{name} {each / took:.2%}" for name, each in spent.items()
        )


@contextlib.contextmanager
def timed(place, name, label, spent):
    """Note how long the first call of a function takes."""
    function = getattr(place, name)

    def call(*args, **kwargs):
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.setdefault(label, time.perf_counter() - began)

    setattr(place, name, call)
    try:
        yield
    finally:
        setattr(place, name, function)


def main() -> int:
    print(f"{where()}, torch {torch.__version__}, {EPOCHS} epochs, 16 configurations, one thread")
    study, each = Fused("{on: inline, fuse: auto}"), Fused("{on: inline, fuse: auto}", every=1)
    two = OnWorkers("{on: processes, workers: 2, fuse: auto}")
    good = [
        compare("hand-written loop / fused study", serial, study.run, ROUNDS, at_least=2.0),
        compare("bare fused loop / fused study", bare_fused, study.run, ROUNDS, at_least=0.85),
        compare(
            "bare fused loop / fused study, validated each epoch", bare_fused, each.run, ROUNDS, at_least=0.75
        ),
        compare("fused study / the same on 2 processes", study.run, two.run, ROUNDS, at_least=1.7),
    ]
    compare("bare fused loop / the same on 2 processes", bare_fused, bare_on_two, ROUNDS, at_least=1.0)
    opening = Opening()
    opening.share()
    share, parts = min(opening.share() for _ in range(ROUNDS))
    good.append(share <= 0.02)
    print(
        f"64 trials, 20 epochs: {parts}, together {share:.2%} (at most 2%): {'ok' if good[-1] else 'TOO SLOW'}"
    )
    beside = {
        "Lightning, one after another": (lightning_serial, 8.0),
        "Ray Tune, two at a time": (ray_tune, 15.0),
    }
    for (name, (side, limit)), package in zip(beside.items(), ("lightning", "ray"), strict=True):
        if importlib.util.find_spec(package):
            if package == "ray":
                seconds(side)  # starts Ray
            ratio = seconds(side) / min(seconds(study.run) for _ in range(ROUNDS))
            good.append(ratio >= limit)
            print(f"{name} / fused study: {ratio:.2f} (at least {limit}): {'ok' if good[-1] else 'TOO SLOW'}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    bench_sweep.torch.set_num_threads(1)
    sys.exit(main())
