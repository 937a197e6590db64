"""Matrix products that are computed in parts, so that they fill a GPU."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from manyfit.learn.torch.fused.launch.products import count_parts, divide_products

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

    traced = make_fx(multiply, divide_products(gpu))(a, b, bias)
    assert count(traced, "bmm") == 2 and count(traced, "mm") == 1 and not count(traced, "addmm")
    for one, other in zip(traced(a, b, bias), multiply(a, b, bias), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_what_is_not_divided(gpu):
    a, b, bias = torch.randn(32, 784), torch.randn(784, 512), torch.randn(512)
    half = [each.bfloat16() for each in (a, b, bias)]  # the parts would be rounded
    for given_, table in ((half, divide_products(gpu)), ([a, b, bias], divide_products(a.device))):
        assert count(make_fx(torch.addmm, table)(given_[2], *given_[:2]), "addmm") == 1
    scaled = make_fx(lambda: torch.addmm(bias, a, b, beta=2), divide_products(gpu))()
    assert count(scaled, "addmm") == 1
