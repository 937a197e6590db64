"""Kill a run, resume it, and compare it with an uninterrupted run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

RUNS = Path(__file__).parent / "runs"


def command(run: Path) -> list[str]:
    return [sys.executable, "-m", "manyfit", "train", str(run)]


def log(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


if __name__ == "__main__":
    alone = RUNS / "left-alone"
    alone.mkdir(exist_ok=True)
    shutil.copy(RUNS / "mlp/config.yaml", alone)
    subprocess.run(command(alone), check=True)

    process = subprocess.Popen(command(RUNS / "mlp"), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("epoch 7/"):
            process.kill()
            break
    process.wait()
    print("killed after:", line.strip())
    subprocess.run(command(RUNS / "mlp"), check=True)
    same = log(RUNS / "mlp") == log(alone)
    print("the logs are", "the same" if same else "DIFFERENT")
    sys.exit(not same)
