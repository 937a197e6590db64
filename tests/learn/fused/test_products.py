"""Products and convolutions that are computed in another way on a GPU."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from manyfit.learn.torch.fused.launch import convolutions
from manyfit.learn.torch.fused.launch.convolutions import multiply_convolutions
from manyfit.learn.torch.fused.launch.products import count_parts, replace_products

H200 = 132
"""The processors of a GPU."""


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((32, 784, 512), 16),
        ((32, 512, 10), 16),
        ((128, 896, 128), 16),
        ((32, 10, 512), 1),  # a short sum
        ((512, 32, 784), 1),  # a short sum, and a large result
        ((896, 128, 384), 1),  # a large result
        ((32, 67, 10), 1),  # a prime number
    ],
)
def test_small_results_of_long_sums_are_divided(shape, parts):
    rows, length, columns = shape
    assert count_parts(rows, columns, length, H200) == parts


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 4096), st.integers(1, 200))
def test_parts_are_alike_and_not_too_many(rows, columns, length, processors):
    parts = count_parts(rows, columns, length, processors)
    tiles = -(-rows // 32) * -(-columns // 32)
    assert length % parts == 0 and (parts == 1 or tiles * parts <= 2 * processors)


@pytest.fixture
def gpu(monkeypatch):
    """What a GPU would compute, computed here."""
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=H200)
    )
    return torch.device("cuda")


def count(traced, name):
    return sum(node.target is getattr(torch.ops.aten, name).default for node in traced.graph.nodes)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_products_of_parts_are_those_of_the_whole(gpu, is_transposed):
    a = torch.randn(784, 32).t() if is_transposed else torch.randn(32, 784)
    b = torch.randn(512, 784).t() if is_transposed else torch.randn(784, 512)
    bias = torch.randn(512)

    def multiply(a, b, bias):
        found = a @ b
        return torch.addmm(bias, a, b), found, found[:, :8] @ b[:8, :20]

    traced = make_fx(multiply, replace_products(gpu, 4))(a, b, bias)
    assert count(traced, "bmm") == 2 and count(traced, "mm") == 1 and not count(traced, "addmm")
    for one, other in zip(traced(a, b, bias), multiply(a, b, bias), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_what_is_not_divided(gpu):
    a, b, bias = torch.randn(32, 784), torch.randn(784, 512), torch.randn(512)
    half = [each.bfloat16() for each in (a, b, bias)]  # the parts would be rounded
    for given_, table in ((half, replace_products(gpu, 4)), ([a, b, bias], replace_products(a.device, 4))):
        assert count(make_fx(torch.addmm, table)(given_[2], *given_[:2]), "addmm") == 1
    scaled = make_fx(lambda: torch.addmm(bias, a, b, beta=2), replace_products(gpu, 4))()
    assert count(scaled, "addmm") == 1


def test_gradients_of_stacked_weights_have_their_layout(gpu):
    x, weight = torch.randn(4, 9, 48), torch.randn(4, 63, 48)

    def differentiate(x, weight):
        weight = weight.detach().requires_grad_()
        return torch.autograd.grad((x @ weight.transpose(1, 2)).square().sum(), weight)[0]

    for runs, is_weight in ((4, True), (3, False)):  # otherwise the products belong to something else
        traced = make_fx(differentiate, replace_products(gpu, runs))(x, weight)
        found, products = traced(x, weight), [n for n in traced.graph.nodes if "bmm" in str(n.target)]
        assert tuple(products[-1].meta["tensor_meta"].shape[1:]) == ((63, 48) if is_weight else (48, 63))
        assert len(products) == 2
        torch.testing.assert_close(found, differentiate(x, weight))


@pytest.mark.parametrize(("rows", "is_one"), [(8, True), (49, False)])
def test_a_small_shared_batch_is_multiplied_once(gpu, rows, is_one):
    x, weight = torch.randn(rows, 48), torch.randn(4, 63, 48)

    def multiply(x, weight):
        return x.expand(4, rows, 48) @ weight.transpose(1, 2)

    traced = make_fx(multiply, replace_products(gpu, 4))(x, weight)
    assert count(traced, "mm") == is_one and count(traced, "bmm") == (not is_one)
    found = traced(x, weight)
    torch.testing.assert_close(found, multiply(x, weight))
    assert found.is_contiguous()  # models may take views


def convolve(x, weight, padding, groups):
    """A convolution and its gradients."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    found = torch.conv2d(x, weight, padding=padding, groups=groups)
    return found, *torch.autograd.grad(found.sin().sum(), (x, weight))


@given(
    st.integers(1, 3), st.integers(2, 4), st.integers(1, 3), st.integers(4, 6), st.integers(5, 8),
    st.tuples(st.integers(1, 5), st.integers(1, 5)), st.tuples(st.integers(0, 2), st.integers(0, 2)),
)  # fmt: skip
def test_convolutions_of_several_runs_are_products(rows, runs, channels, results, size, kernel, padding):
    x, weight = (
        torch.randn(rows, runs * channels, size, size + 1),
        torch.randn(runs * results, channels, *kernel),
    )
    table = multiply_convolutions(torch.device("cuda"), runs)
    traced = make_fx(lambda x, w: convolve(x, w, padding, runs), table)(x, weight)
    assert not count(traced, "convolution") and not count(traced, "convolution_backward")
    for one, other in zip(traced(x, weight), convolve(x, weight, padding, runs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert one.is_contiguous() and other.is_contiguous()  # models may take views


def test_convolutions_with_a_bias_and_with_named_padding(gpu):
    x, weight, bias = torch.randn(2, 6, 7, 8), torch.randn(8, 3, 3, 2), torch.randn(8)

    def compute(x, weight, bias):
        one = torch.nn.functional.conv2d(x, weight, bias, padding="valid", groups=2)
        other = torch.nn.functional.conv2d(x, weight, bias, padding="same", groups=2)
        return one.relu().view(2, -1), other.view(2, -1)

    traced = make_fx(compute, multiply_convolutions(gpu, 2))(x, weight, bias)
    assert not count(traced, "convolution")
    for one, other in zip(traced(x, weight, bias), compute(x, weight, bias), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    ["one run", "few channels", "many channels", "large windows", "half", "stride", "a large kernel", "cpu"],
)
def test_convolutions_that_are_no_products(monkeypatch, change):
    runs, stride = 1 if change == "one run" else 2, 2 if change == "stride" else 1
    size = 6 if change == "a large kernel" else 3
    channels = {"few channels": 2, "many channels": 33}.get(change, 4)
    weight = torch.randn(channels * runs, 3, size, size)
    x = torch.randn(2, 3 * runs, 8, 8)
    if change == "half":
        x, weight = x.bfloat16(), weight.bfloat16()
    if change == "large windows":
        monkeypatch.setattr(convolutions, "LARGEST", 1000)
    table = multiply_convolutions(torch.device("cpu" if change == "cpu" else "cuda"), runs)
    traced = make_fx(lambda x, w: torch.conv2d(x, w, stride=stride, groups=runs), table)(x, weight)
    assert count(traced, "convolution") == 1
