"""Masks are a function of (seed, step, layer, element), and behave like random ones."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyfit.learn.torch.fused.dropout import CounterDropout, make_keys


def mask(stream, step, layer=0, shape=(200, 100), p=0.3, part=0):
    keys = torch.from_numpy(make_keys([stream], step, part))[0]
    with CounterDropout(keys):
        for _ in range(layer):
            F.dropout(torch.ones(1), 0.5)
        return F.dropout(torch.ones(shape), p) > 0


@pytest.mark.parametrize("p", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_the_rate_is_kept(p):
    kept = mask(7, 3, p=p, shape=(400, 500)).float().mean()
    assert float(kept) == pytest.approx(1 - p, abs=5 * (p * (1 - p) / 200_000) ** 0.5 + 1e-12)


def test_what_is_kept_is_scaled_and_the_rest_is_zero():
    with CounterDropout(torch.from_numpy(make_keys([1], 1))[0]):
        found = nn.Dropout(0.25)(torch.full((1000,), 3.0))
    assert set(found.tolist()) == {0.0, 4.0}


def test_masks_of_other_steps_layers_seeds_and_parts_are_independent():
    base = mask(11, 5)
    for other in (
        mask(11, 6),
        mask(11, 5, layer=1),
        mask(12, 5),
        mask(11, 5, part=1),
        base.roll(1, 1),
        base.roll(1, 0),
    ):
        agree = float((base == other).float().mean())
        assert agree == pytest.approx(0.7**2 + 0.3**2, abs=0.02)
        both = np.corrcoef(base.flatten().numpy(), other.flatten().numpy())[0, 1]
        assert abs(both) < 0.03


def test_no_element_is_dropped_more_often_than_others():
    counts = sum(mask(3, step, shape=(50, 40)).float() for step in range(400))
    assert float(counts.min()) > 400 * 0.7 - 6 * (400 * 0.21) ** 0.5
    assert float(counts.max()) < 400 * 0.7 + 6 * (400 * 0.21) ** 0.5


def test_whole_channels_and_attention():
    keys = torch.from_numpy(make_keys([1], 1))[0]
    with CounterDropout(keys) as mode:
        found = nn.Dropout2d(0.5)(torch.ones(8, 16, 3, 3))
        assert ((found == 0).all((2, 3)) | (found == 2).all((2, 3))).all()
        q = torch.randn(2, 3, 5, 4)
        plain = F.scaled_dot_product_attention(q, q, q)
        dropped = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert mode.is_needed
    torch.testing.assert_close(plain, F.scaled_dot_product_attention(q, q, q))
    assert not torch.allclose(plain, dropped)


def test_attention_masks_and_causal_order():
    q = torch.randn(2, 3, 5, 4)
    allowed = torch.rand(5, 5) > 0.3
    allowed.fill_diagonal_(True)
    for options in (
        {"is_causal": True},
        {"attn_mask": allowed},
        {"attn_mask": torch.randn(5, 5)},
        {"scale": 0.3},
    ):
        with CounterDropout(None):
            found = F.scaled_dot_product_attention(q, q, q, **options)
        torch.testing.assert_close(found, F.scaled_dot_product_attention(q, q, q, **options))
