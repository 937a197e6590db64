"""Buffers that copies of a state are kept in."""

import torch

from manyfit.core.state import State
from manyfit.store.buffers import Buffers


def test_buffers_of_several_shapes():
    def state(n):
        return State({"w": torch.zeros(3), "r": torch.zeros(n)}, {})

    buffers = Buffers()
    first, second = buffers.copy(state(2)), buffers.copy(state(4))
    buffers.give_back(first)
    buffers.give_back(second)
    assert buffers.copy(state(4)).tensors["r"].shape == (4,)
