"""A small project on disk, and ways to use it."""

from __future__ import annotations

import atexit
import copy
import logging
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: several workers share the cores
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")  # before Ray is: tests use several clusters

import pytest
from hypothesis import settings

from manyfit.cli import main
from manyfit.config.tree.reader import dump
from manyfit.core import redaction

settings.register_profile("test", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("MANYFIT_PROFILE", "test"))


def pytest_collection_modifyitems(config, items):
    """Move the cases of `tests/slow.txt` to the soak; a name that no test has is an error."""
    lines = (Path(__file__).parent / "slow.txt").read_text().splitlines()
    cases = [line for line in lines if not line.startswith("#")]
    found = {item.nodeid: item for item in items}
    for name in cases:
        if name in found:
            found[name].add_marker(pytest.mark.soak)
    if config.args == [str(config.rootpath / "tests")] or config.args == ["tests"]:
        missing = [name for name in cases if name not in found]
        if missing:
            raise pytest.UsageError(f"tests/slow.txt names a test that does not exist: {missing[0]}")


STATE = tempfile.mkdtemp(prefix="manyfit-state-")
os.environ["XDG_STATE_HOME"] = STATE  # the key of the user who runs the tests stays as it is
atexit.register(shutil.rmtree, STATE, ignore_errors=True)

MODELS = '''
from __future__ import annotations
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Annotated, Literal, NamedTuple

import numpy as np
from torch import Tensor, nn

from manyfit import Kind


class Norm(Enum):
    batch = "batch_norm"
    layer = "layer_norm"


@dataclass
class Head:
    width: int
    bias: bool = True


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Abstract(nn.Module, ABC):
    @abstractmethod
    def forward(self, images): ...


class MLP(nn.Module):
    def __init__(self, hidden: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))

    def forward(self, images):
        return self.layers(images)


class Rich(nn.Module):
    """Every kind of parameter."""

    def __init__(
        self,
        size: tuple[int, int] = (1, 2),
        mode: Literal["fast", "slow"] = "fast",
        norm: Norm = Norm.batch,
        head: Head | None = None,
        body: nn.Module | None = None,
        blocks: list[nn.Module] = (),
        rates: dict[str, float] | None = None,
        by_class: dict[int, float] | None = None,
        file: Path | None = None,
        token: Annotated[str | None, Kind.NEUTRAL] = None,
        free=None,
        flag: bool = False,
        tags: set[int] = frozenset(),
        place: str | Path = "",
        folder: Path = Path("data"),
        point: Point | None = None,
        context: AbstractContextManager | None = None,
        array=np.zeros(3),
        size_of: Annotated[Path | None, "where it is"] = None,
    ) -> None:
        super().__init__()
        self.given = dict(locals())


class Inherits(MLP):
    def __init__(self, depth: int = 1, **kwargs) -> None:
        super().__init__(**kwargs)


def make_mlp(hidden: int = 8) -> MLP:
    return MLP(hidden)


def unannotated(hidden=8):
    return MLP(hidden)


def nan_everywhere(output: Tensor, target: Tensor) -> Tensor:
    return output.sum(dim=1) * float("nan")


def halved(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target) / 2


def decay(epoch: int) -> float:
    return 0.9 ** epoch


class NotAModel:
    pass
'''

DATA = '''
from pathlib import Path

import numpy as np

from manyfit.data import ArraySource

BUILT = Path(__file__).parent / "data_was_built"


class Blobs:
    """Ten classes of points in 64 dimensions; leaves a mark when it is touched."""

    def __init__(self, batch_size: int = 16, rows: int = 64) -> None:
        BUILT.touch()
        self.batch_size = batch_size
        self.rows = rows

    def source(self, split: str) -> ArraySource:
        offset = ["train", "validation", "test"].index(split)
        state = np.random.RandomState(offset)
        target = np.arange(self.rows) % 10
        centres = np.random.RandomState(9).normal(size=(10, 64))
        inputs = (centres[target] + 0.5 * state.normal(size=(self.rows, 64))).astype(np.float32)
        return ArraySource(inputs, target, [f"{split}-{i}" for i in range(self.rows)])
'''

BASE: dict[str, Any] = {
    "project_name": "test",
    "seed": 3,
    "data": {"class": "points.Blobs", "batch_size": 16},
    "model": {"class": "models.MLP", "hidden": 8},
    "train": {
        "epochs": 2,
        "loss": "cross_entropy",
        "metrics": ["accuracy"],
        "optimizer": {"class": "adamw", "lr": 0.01},
    },
}


class Project:
    """A project with one run, whose config tests change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.src = root / "src"
        self.run = root / "runs" / "a"
        self.file = self.run / "config.yaml"
        self.run.mkdir(parents=True)
        self.src.mkdir()
        self.write("src/models.py", MODELS)
        self.write("src/points.py", DATA)
        self.config(BASE)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).lstrip("\n").encode())
        return path

    def config(self, tree: dict[str, Any], run: str = "a") -> Path:
        return self.write(f"runs/{run}/config.yaml", dump(tree))

    def changed(self, **changes: Any) -> dict[str, Any]:
        """The base config with dotted keys (written with __) changed."""
        tree = copy.deepcopy(BASE)
        for key, value in changes.items():
            *parents, last = key.split("__")
            place = tree
            for parent in parents:
                place = place[parent]
            place[last] = value
        return tree

    @property
    def data_was_built(self) -> bool:
        return (self.src / "data_was_built").exists()


@pytest.fixture(autouse=True)
def forget_secrets():
    """Secrets that a test has read are hidden until its process ends, and change what other tests do."""
    before = dict(redaction._revealed)
    yield
    if redaction._revealed != before:
        redaction._revealed.clear()
        redaction._revealed.update(before)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


class Answer:
    """What the command line said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run the command line in this process."""

    def run(*words: object) -> Answer:
        logging.getLogger("manyfit").handlers.clear()
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        logging.getLogger("manyfit").propagate = True  # for tests that look at the log
        return Answer(int(stop.value.code or 0), captured.out, captured.err)

    return run
