"""Every example runs as its README says."""

import re
import shutil
from pathlib import Path

import pytest
from tests.examples.quick import run

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


def commands(readme: Path) -> list[str]:
    """The lines of the code blocks, without their comments."""
    blocks = re.findall(r"```\n(.*?)```", readme.read_text(), flags=re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_the_ladder_is_complete():
    listed = re.findall(r"`(\d\d_\w+)`", (EXAMPLES / "README.md").read_text())
    assert listed == NAMES


SLOW = (
    "07_killed",
    "08_rows",
    "09_study",
    "10_population",
    "11_five_components",
    "13_trainers",
    "14_wrapper",
    "15_specs",
    "16_tasks",
)
"""What other tests prove as well, in less time."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in SLOW else name for name in NAMES]
)
def test_example(name, tmp_path):
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project, ignore=lambda folder, names: [n for n in names if n in IGNORED])
    lines = commands(project / "README.md")
    assert lines
    for line in lines:
        done = run(line, project)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "DIFFERENT" not in done.stdout


IGNORED = {"__pycache__", "checkpoints", "reports", "tensorboard", "metrics.jsonl", "provenance.json", "run.log",
           "config.resolved.yaml", ".lock", "left-alone", "exported", "metrics.csv"}  # fmt: skip

FIGURES = {"vae": ("val_error", 0.03, -1), "dcgan": ("val_score", 5.0, 1)}
"""The metric of each run that shows that it has learned, and what it reaches: at most or at least."""


@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(name, seed, marks=pytest.mark.soak) for name in FIGURES for seed in (0, 1, 2, 3)],
)
def test_generative_models_learn(name, seed, tmp_path, monkeypatch):
    """A reconstruction error far below that of the mean image; samples that a classifier takes for digits."""
    import manyfit

    metric, reached, sign = FIGURES[name]
    shutil.copytree(
        EXAMPLES / "13_trainers", tmp_path / "p", ignore=lambda folder, names: set(names) & IGNORED
    )
    monkeypatch.chdir(tmp_path / "p")
    result = manyfit.train(f"runs/{name}", [f"seed={seed}"], callbacks=[])
    assert sign * result.metrics[metric] > sign * reached
    pictures = list((tmp_path / "p/runs" / name / "images").glob("*/step-*.png"))
    assert pictures
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
