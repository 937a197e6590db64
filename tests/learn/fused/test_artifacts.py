"""What was compiled is loaded for the same graph, and compiled again for another one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from manyfit.learn.torch.fused.launch import artifacts
from manyfit.learn.torch.fused.launch.artifacts import compile_graph, hash_graph
from manyfit.learn.torch.fused.launch.compiling import MODES, NotCompiled, Tolerance, compile_step, use_cache

OPTIONS = MODES["default"]


class Store(dict):
    """Compiled steps in memory."""

    def read(self, key):
        return self.get(key)

    def write(self, key, data):
        self[key] = data


CONSTANT, OTHER = torch.tensor([[0.0, 5.0], [1.0, 5.0], [3.0, 5.0]])[:, 0], torch.tensor(0.5).expand(3)


def change(state, x):
    """A step that changes its state in place, with constants."""
    state.mul_(0.5).add_(x.sin() * torch.arange(3.0)).add_(CONSTANT * OTHER).mul_(OTHER)
    return state.sum() + torch.tensor([2.0]).sum()


def trace(step=change, rows=4):
    examples = [torch.ones(rows, 3), torch.randn(rows, 3)]
    return make_fx(step)(*(each.clone() for each in examples)), examples


def check(compiled, graph, examples):
    mine, other = [[each.clone() for each in examples] for _ in range(2)]
    compiled(*mine)
    change(*other)
    torch.testing.assert_close(mine, other)


def test_what_was_compiled_is_loaded(monkeypatch):
    use_cache()
    store, (graph, examples) = Store(), trace()
    check(compile_graph(graph, examples, OPTIONS, store)[0], graph, examples)
    assert len(store) == 1

    def refuse(*given, **more):
        raise AssertionError("compiled again")

    monkeypatch.setattr("torch._inductor.standalone_compile", refuse)
    monkeypatch.setattr(torch, "compile", refuse)
    CONSTANT.mul_(3)  # constants are not part of what is kept
    graph, examples = trace()  # as another process would
    check(compile_graph(graph, examples, OPTIONS, store)[0], graph, examples)
    with pytest.raises(AssertionError, match="compiled again"):
        compile_graph(*trace(rows=5), OPTIONS, store)


@pytest.mark.parametrize("data", [b"", b"nothing that could be loaded"])
def test_what_cannot_be_loaded_is_compiled(data):
    store, (graph, examples) = Store(), trace()
    compile_graph(graph, examples, OPTIONS, store)
    (key,) = store
    store[key] = data
    check(compile_graph(*trace(), OPTIONS, store)[0], graph, examples)
    assert store.keys() == {key} and store[key] != data


def test_what_cannot_be_compiled_alone_is_compiled_by_torch(monkeypatch):
    def fail(*given, **more):
        raise RuntimeError("not today")

    monkeypatch.setattr("torch._inductor.standalone_compile", fail)
    store, (graph, examples) = Store(), trace()
    check(compile_graph(graph, examples, OPTIONS, store)[0], graph, examples)
    assert not store


def test_what_cannot_be_saved_is_used(monkeypatch):
    def fail(*given):
        raise OSError("no space left on device")

    monkeypatch.setattr(artifacts, "_dump", fail)
    store, (graph, examples) = Store(), trace()
    check(compile_graph(graph, examples, OPTIONS, store)[0], graph, examples)
    assert not store


def test_keys(monkeypatch):
    """Everything that changes the code changes the key."""

    def other(state, x):
        state.mul_(0.25).add_(x.sin() * torch.arange(3.0))
        return state.sum()

    traced = [trace(), trace(other), trace(rows=5)]
    keys = [hash_graph(*each, OPTIONS) for each in traced]
    assert hash_graph(*trace(), OPTIONS) == keys[0]
    graph, examples = traced[0]
    strided = [torch.ones(3, 4).t(), examples[1]]
    keys += [hash_graph(graph, strided, OPTIONS), hash_graph(graph, examples, MODES["max-autotune"])]
    monkeypatch.setenv("TORCHINDUCTOR_MAX_FUSION_SIZE", "8")
    keys.append(hash_graph(graph, examples, OPTIONS))
    assert len(set(keys)) == len(keys)


VALUES = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


@given(values=VALUES, factor=st.floats(-0.5, 0.5), share=st.sampled_from([0.0, 1.0]))
def test_tolerance(values, factor, share):
    one = torch.tensor(values)
    other = one * (1 + factor)
    distance = float((other.double() - one.double()).norm())
    limit = 0.1 * max(float(one.double().norm()), 1e-6)
    tolerance = Tolerance(0.1, [share])
    if distance < 0.999 * limit:
        tolerance.check([one], [other])
    elif distance > 1.001 * limit and not share and not torch.isclose(one, other, rtol=0.1, atol=0.11).all():
        with pytest.raises(NotCompiled, match="of their norm"):
            tolerance.check([one], [other])


def test_tolerance_of_rounding_noise():
    """Tensors whose values are all near zero, such as gradients in front of a batch norm, may differ."""
    noise = [1e-9 * torch.randn(8) for _ in range(2)]
    Tolerance(1e-3, [0.0]).check(noise[:1], noise[1:])


def test_what_was_kept_and_differs_is_compiled_anew():
    """It is another graph's, under the key of this one."""
    store, slot = Store(), [torch.randn(4, 3)]

    def step(changed, slot):
        change(changed[0], slot[0])

    def other(changed, slot):
        changed[0].add_(1.0).mul_(slot[0] + 1)

    state = [torch.ones(4, 3)]
    compile_step(other, state, slot, "default", Tolerance(1e-3, [0.0]), store)
    (kept,) = store.values()
    store.clear()
    compile_step(step, state, slot, "default", Tolerance(1e-3, [0.0]), store)
    (key,) = store
    store[key] = kept
    compiled = compile_step(step, state, slot, "default", Tolerance(1e-3, [0.0]), store)
    mine, expected = [state[0].clone()], [state[0].clone()]
    compiled(mine, slot)
    step(expected, slot)
    torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.complex64])
def test_tolerance_of_all_kinds_of_numbers(dtype):
    one = torch.tensor([1, 0, 1, 1]).to(dtype)
    Tolerance(0.1, [0.0]).check([one], [one.clone()])
    with pytest.raises(NotCompiled):
        Tolerance(0.1, [0.0]).check([one], [torch.zeros_like(one)])
    Tolerance(0.1, [0.5]).check([one], [torch.tensor([1, 1, 1, 1]).to(dtype)])
