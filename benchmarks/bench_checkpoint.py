"""How long a checkpoint of a 100 MB model blocks training, compared with `torch.save` of the same state."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from timing import compare, where
from torch import nn

from manyfit.learn.packing import pack
from manyfit.store.checkpoint import Keep
from manyfit.store.events import EventLog
from manyfit.store.manifest import Note
from manyfit.store.writer import Writer

torch.set_num_threads(1)
ROUNDS = 7

module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(25)))
size = sum(p.numel() * p.element_size() for p in module.parameters()) / 1e6


def main() -> int:
    print(where(), f"torch {torch.__version__}, 1 thread; {size:.0f} MB of weights")
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(Path(folder) / "metrics.jsonl")
        writer = Writer(Path(folder) / "checkpoints", Keep("val_loss", "min"), log)
        step = 0

        def ours():
            nonlocal step
            yield
            writer.put(pack({"model": module.state_dict()}), Note(step, 0.0, {}, 0))
            yield
            writer.flush()  # not timed: training continues meanwhile
            step += 1

        def theirs():
            yield
            torch.save(module.state_dict(), Path(folder) / "theirs.pt")
            yield

        good = compare("blocking time / torch.save", ours, theirs, ROUNDS, at_most=0.3)
        writer.close()
        log.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
