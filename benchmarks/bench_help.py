"""`manyfit --help`, compared with `python -c "import click"`: unused features must not slow down the start."""

import subprocess
import sys
from pathlib import Path

from timing import compare, where

MANYFIT = Path(sys.executable).with_name("manyfit")


def run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    print(where())
    quick = compare(
        "manyfit --help / import click",
        lambda: run(str(MANYFIT), "--help"),
        lambda: run(sys.executable, "-c", "import click"),
        rounds=25,
        at_most=3.0,
    )
    sys.exit(not quick)
