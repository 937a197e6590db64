"""What `fused_probe.py` and `jax_probe.py` of a folder measure for one model, as JSON like that of `bare_gpu`."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from bare_gpu import measure_sides

BATCH = 32


def main() -> int:
    warnings.filterwarnings("ignore")
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("model")
    arguments.add_argument("--models", type=int, default=64, help="trained at once")
    arguments.add_argument("--seconds", type=float, default=1.5, help="for each figure")
    arguments.add_argument("--sides", help="separated by semicolons; by default, all of them")
    given = arguments.parse_args()
    sys.path.insert(0, str(given.folder))
    import fused_probe
    import torch

    torch.backends.cudnn.benchmark = True
    device, (model, least) = "cuda", (fused_probe.MODELS[given.model], given.seconds)
    source = (given.folder / "jax_probe.py").read_text()
    script: dict[str, object] = {}
    exec(source.partition("\nfor prec in")[0], script)  # the loop over all models is left out
    script["jax"].config.update("jax_default_matmul_precision", "highest")  # type: ignore[attr-defined]
    run: Callable[..., tuple[float, float]] = script["run"]  # type: ignore[assignment]
    sides: dict[str, Callable[[], float]] = {
        "lightning": lambda: fused_probe.lightning(model, BATCH, device, least),
        "loop": lambda: fused_probe.hand(model, BATCH, device, least),
        "stacked": lambda: fused_probe.fused(model, given.models, BATCH, device, least, "graph"),
        "stacked, compiled": lambda: fused_probe.fused(
            model, given.models, BATCH, device, least, "compile+graph"
        ),
        "jax, one": lambda: run(given.model, 1, secs=least)[0],
        "jax": lambda: run(given.model, given.models, secs=least)[0],
    }
    wanted = given.sides.split(";") if given.sides else list(sides)
    print(json.dumps(measure_sides({side: sides[side] for side in wanted})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
