"""Stacked optimizers make the steps of torch's, each option by name."""

import numpy as np
import pytest
import torch

from manyfit.learn.torch.fused.optimizers import STACKED

RUNS, STEPS = 5, 50
OPTIONS = {
    torch.optim.SGD: {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "nesterov": True, "maximize": True},
    torch.optim.Adam: {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True, "maximize": True,
                       "decoupled_weight_decay": True},
    torch.optim.AdamW: {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True, "maximize": True},
    torch.optim.RMSprop: {"lr": 0.1, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.8, "centered": True,
                          "maximize": True},
    torch.optim.Adagrad: {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3,
                          "maximize": True},
}  # fmt: skip
CASES = [(cls, name) for cls, options in OPTIONS.items() for name in options] + [
    (torch.optim.SGD, "momentum nesterov"), (torch.optim.SGD, "momentum dampening weight_decay"),
    (torch.optim.RMSprop, "momentum centered weight_decay"), (torch.optim.AdamW, "amsgrad betas weight_decay"),
]  # fmt: skip


def vary(value, number):
    """A value that differs between runs, if it is a number."""
    if isinstance(value, tuple):
        return tuple(v + 0.01 * number for v in value)
    return value if isinstance(value, bool) else value * (1 + 0.02 * number)


@pytest.mark.parametrize("by_run", [False, True], ids=["stacked", "kernel"])
@pytest.mark.parametrize(("cls", "names"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_every_option_is_that_of_torch(cls, names, by_run):
    rule = STACKED[cls]
    if by_run and not hasattr(rule, "update_run"):
        pytest.skip("torch has no kernel for one run")
    given = {name: OPTIONS[cls][name] for name in names.split()}
    if "nesterov" in given:
        given["momentum"] = 0.9
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(RUNS, 3, 7, generator=generator, dtype=torch.float64)
    gradients = torch.randn(STEPS, RUNS, 3, 7, generator=generator, dtype=torch.float64)
    alone, optimizers = [], []
    for i in range(RUNS):
        p = start[i].clone().requires_grad_()
        alone.append(p)
        optimizers.append(cls([p], **{name: vary(value, i) for name, value in given.items()}))
    group = optimizers[0].param_groups[0]
    on = {flag: group.get(flag, False) for flag in rule.flags} | {s: bool(group[s]) for s in rule.switches}
    stacked, p = rule(on), start.clone()

    def option(o, name):
        own = o.param_groups[0]
        return own["betas"][int(name[-1]) - 1] if name.startswith("beta") else own[name]

    numbers = {name: np.array([float(option(o, name)) for o in optimizers]) for name in rule.numbers}
    slots = stacked.begin(p, gradients[0])
    if cls is torch.optim.Adagrad:
        first = [o.defaults["initial_accumulator_value"] for o in optimizers]
        slots["sum"] += torch.tensor(first, dtype=torch.float64)[:, None, None]
    counts = [torch.zeros(()) for _ in range(RUNS)]
    for step in range(STEPS):
        for own, optimizer, gradient in zip(alone, optimizers, gradients[step], strict=True):
            own.grad = gradient.clone()
            optimizer.step()
        if by_run:
            for i in range(RUNS):
                counts[i] += 1
                views = {name: slot[i] for name, slot in slots.items()}
                values = {name: float(v[i]) for name, v in numbers.items()}
                stacked.update_run([p[i]], [gradients[step][i]], [views], [counts[i]], values)
        else:
            found = stacked.coefficients(numbers, np.full(RUNS, step + 1.0))
            spread = {name: torch.from_numpy(np.asarray(v))[:, None, None] for name, v in found.items()}
            stacked.update(p, gradients[step], slots, spread)
    for i, own in enumerate(alone):
        assert torch.allclose(p[i], own, rtol=1e-12, atol=1e-12), (p[i] - own).abs().max()
        for name, slot in slots.items():
            assert torch.allclose(slot[i], optimizers[i].state[own][name], rtol=1e-12, atol=1e-12), name
