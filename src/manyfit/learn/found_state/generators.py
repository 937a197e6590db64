"""The states of objects that can return and load it, and of random generators."""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import torch

from manyfit.learn.found_state.values import decode_value, encode_value

GENERATORS: Final = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def read_object(value: Any) -> Any:
    """Return the state of an object or of a generator."""
    if isinstance(value, torch.Generator):
        return {"torch": value.get_state()}
    if isinstance(value, random.Random):
        return {"python": encode_value(value.getstate())}
    if isinstance(value, np.random.Generator):
        return {"numpy": encode_value(dict(value.bit_generator.state))}
    if isinstance(value, np.random.RandomState):
        return {"legacy": encode_value(value.get_state())}
    return value.state_dict()


def load_object(value: Any, state: Any) -> None:
    """Load the state of an object or of a generator."""
    if isinstance(value, torch.Generator):
        value.set_state(state["torch"].cpu())
    elif isinstance(value, random.Random):
        value.setstate(decode_value(state["python"]))
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = decode_value(state["numpy"])
    elif isinstance(value, np.random.RandomState):
        value.set_state(decode_value(state["legacy"]))
    else:
        value.load_state_dict(state)
