"""What experts would write by hand for the models of `images`, on a GPU: samples per second as JSON.

Only training steps are timed: nothing is validated, logged or stored. All rows are on the device, in batches of 32.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from images import MODELS
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

ROWS, BATCH = 60_000, 32
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def speed(step: Callable[[], object], samples: int, least: float, rounds: int = 3) -> float:
    """Return samples per second of the best round."""
    for _ in range(5):
        step()
    found = []
    for _ in range(rounds):
        wait()
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < least / rounds:
            for _ in range(20):
                step()
            count += 20
            wait()
        found.append(count * samples / (time.perf_counter() - began))
    return max(found)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    images = torch.randn(ROWS, 1, 28, 28, device=DEVICE)
    targets = torch.randint(0, 10, (ROWS,), device=DEVICE)
    while True:
        for begin in range(0, ROWS - BATCH, BATCH):
            yield images[begin : begin + BATCH], targets[begin : begin + BATCH]


def run_loop(name: str, least: float) -> float:
    """The loop of a tutorial."""
    model, rows = MODELS[name]().to(DEVICE), batches()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        x, y = next(rows)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return speed(step, BATCH, least)


def run_lightning(name: str, steps: int = 400) -> float:
    """Lightning, without logger, checkpoints and progress bar."""
    import lightning.pytorch as pl

    for logger in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    rows, times = batches(), []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = MODELS[name]()

        def training_step(self, batch: Any, number: int) -> Tensor:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    class Rows:
        def __len__(self) -> int:
            return steps

        def __iter__(self) -> Any:
            return (next(rows) for _ in range(steps))

    class Timer(pl.Callback):
        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int
        ) -> None:
            if number in (49, steps - 1):
                wait()
                times.append(time.perf_counter())

    trainer = pl.Trainer(
        max_epochs=1, accelerator="gpu" if CUDA else "cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Timer()],
    )  # fmt: skip
    trainer.fit(Module(), Rows())
    return (steps - 50) * BATCH / (times[1] - times[0])


def run_stacked(name: str, models: int, compiles: bool, least: float) -> float:
    """Models with stacked parameters, Adam with a rate each, one step as a CUDA graph."""
    made = [MODELS[name]().to(DEVICE) for _ in range(models)]
    stacked = {key: value.detach() for key, value in stack_module_state(made)[0].items()}
    leaves, rates = list(stacked.values()), torch.logspace(-4, -2, models, device=DEVICE)
    means, squares = ([torch.zeros_like(leaf) for leaf in leaves] for _ in range(2))
    scaled = [rates.view(-1, *[1] * (leaf.ndim - 1)) for leaf in leaves]
    number = torch.zeros((), device=DEVICE)

    def compute_loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(made[0], own, (x,)), y)

    def step(x: Tensor, y: Tensor) -> None:
        own = {key: leaf.detach().requires_grad_() for key, leaf in stacked.items()}
        loss = vmap(compute_loss, (0, None, None))(own, x, y)
        gradients = torch.autograd.grad(loss.sum(), list(own.values()))
        with torch.no_grad():
            number.add_(1)
            torch._foreach_lerp_(means, gradients, 0.1)
            torch._foreach_mul_(squares, 0.999)
            torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
            size = torch._foreach_sqrt(torch._foreach_div(squares, 1 - 0.999**number))
            torch._foreach_add_(size, 1e-8)
            moves = torch._foreach_div(torch._foreach_mul(means, scaled), size)
            torch._foreach_div_(moves, 1 - 0.9**number)
            torch._foreach_sub_(leaves, moves)

    if compiles:
        step = torch.compile(step)
    rows = batches()
    x, y = (each.clone() for each in next(rows))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x, y)

    def launch() -> None:
        here = next(rows)
        x.copy_(here[0])
        y.copy_(here[1])
        graph.replay()

    return speed(launch, BATCH * models, least)


def run_jax(name: str, models: int, least: float, steps: int = 100) -> float:
    """JAX: `vmap` over models, `lax.scan` over steps, products in fp32."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")
    torch.manual_seed(0)
    like = {key: jnp.asarray(value.detach().numpy()) for key, value in MODELS[name]().named_parameters()}
    forward = JAX[name](jax, jnp)
    images = jax.random.normal(jax.random.key(0), (ROWS, 1, 28, 28))
    targets = jax.random.randint(jax.random.key(1), (ROWS,), 0, 10)
    rates = jnp.logspace(-4, -2, models)
    own = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], models, 0), like)
    zeros = jax.tree.map(jnp.zeros_like, own)
    state = own, zeros, jax.tree.map(jnp.zeros_like, own), 0

    def compute_loss(own: Any, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(forward(own, x)), y[:, None], 1).mean()

    gradient = jax.vmap(jax.value_and_grad(compute_loss), (0, None, None))

    def step(state: Any, number: Any) -> Any:
        own, mean, square, count = state
        begin = number * BATCH % (ROWS - BATCH)
        rows = [jax.lax.dynamic_slice_in_dim(each, begin, BATCH) for each in (images, targets)]
        losses, found = gradient(own, *rows)
        count = count + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, found)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, found)

        def move(p: Any, m: Any, v: Any) -> Any:
            rate = rates.reshape(-1, *[1] * (p.ndim - 1)) / (1 - 0.9**count)
            return p - rate * m / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

        return (jax.tree.map(move, own, mean, square), mean, square, count), losses

    many = jax.jit(
        lambda state, begin: jax.lax.scan(step, state, begin + jnp.arange(steps)), donate_argnums=0
    )
    place = [state, 0]

    def launch() -> None:
        place[0], losses = many(place[0], place[1])
        place[1] += steps
        jax.block_until_ready(losses)

    launch()
    found = []
    for _ in range(3):
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < least / 3:
            launch()
            count += 1
        found.append(count * steps * BATCH * models / (time.perf_counter() - began))
    return max(found)


def _linear(own: Any, name: str, x: Any) -> Any:
    return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]


def make_mlp(jax: Any, jnp: Any) -> Callable[..., Any]:
    def forward(own: Any, x: Any) -> Any:
        return _linear(own, "last", jax.nn.relu(_linear(own, "first", x.reshape(len(x), -1))))

    return forward


def make_lenet(jax: Any, jnp: Any) -> Callable[..., Any]:
    def convolve(own: Any, name: str, x: Any) -> Any:
        x = jax.lax.conv_general_dilated(x, own[f"{name}.weight"], (1, 1), "VALID")
        x = jax.nn.relu(x + own[f"{name}.bias"][None, :, None, None])
        rows, channels, height, width = x.shape
        return x.reshape(rows, channels, height // 2, 2, width // 2, 2).max((3, 5))

    def forward(own: Any, x: Any) -> Any:
        x = convolve(own, "second", convolve(own, "first", x))
        x = jax.nn.relu(_linear(own, "dense.0", x.reshape(len(x), -1)))
        return _linear(own, "dense.2", jax.nn.relu(_linear(own, "dense.1", x)))

    return forward


def make_transformer(jax: Any, jnp: Any) -> Callable[..., Any]:
    def norm(own: Any, name: str, x: Any) -> Any:
        apart = x - x.mean(-1, keepdims=True)
        size = jax.lax.rsqrt((apart * apart).mean(-1, keepdims=True) + 1e-5)
        return apart * size * own[f"{name}.weight"] + own[f"{name}.bias"]

    def forward(own: Any, x: Any) -> Any:
        x = _linear(own, "embed", x[:, 0]) + own["place"]
        for block in ("blocks.0", "blocks.1"):
            rows, length, width = x.shape
            parts = _linear(own, f"{block}.project", norm(own, f"{block}.before", x))
            query, key, value = parts.reshape(rows, length, 3, 4, width // 4).transpose(2, 0, 3, 1, 4)
            seen = jax.nn.softmax(query @ key.swapaxes(-1, -2) * (width // 4) ** -0.5, -1) @ value
            x = x + _linear(own, f"{block}.out", seen.swapaxes(1, 2).reshape(rows, length, width))
            wide = jax.nn.gelu(
                _linear(own, f"{block}.widen", norm(own, f"{block}.between", x)), approximate=False
            )
            x = x + _linear(own, f"{block}.narrow", wide)
        return _linear(own, "head", x.mean(1))

    return forward


JAX: dict[str, Callable[..., Callable[..., Any]]] = {
    "mlp": make_mlp, "lenet": make_lenet, "transformer": make_transformer
}  # fmt: skip


def measure_sides(sides: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return what was measured; the others are measured if one of them fails."""
    found = {}
    for side, measure in sides.items():
        try:
            found[side] = measure()
        except Exception as error:
            print(f"{side}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
    return found


def main() -> int:
    warnings.filterwarnings("ignore")
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model", choices=MODELS)
    arguments.add_argument("--models", type=int, default=64, help="trained at once")
    arguments.add_argument("--seconds", type=float, default=1.5, help="for each figure")
    given = arguments.parse_args()
    name, least = given.model, given.seconds
    torch.backends.cudnn.benchmark = True
    sides: dict[str, Callable[[], float]] = {
        "lightning": lambda: run_lightning(name),
        "loop": lambda: run_loop(name, least),
        "stacked": lambda: run_stacked(name, given.models, False, least),
        "stacked, compiled": lambda: run_stacked(name, given.models, True, least),
        "jax, one": lambda: run_jax(name, 1, least),
        "jax": lambda: run_jax(name, given.models, least),
    }
    print(json.dumps(measure_sides(sides)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
