"""A project with a study, whose file tests change."""

import copy
import json
import shutil
import sqlite3
from typing import Any

import pytest

from manyfit.config.study.study import load_study
from manyfit.config.tree.reader import dump
from manyfit.study.sweep import Wish, execute, sweep

STUDY: dict[str, Any] = {
    "base": "../../runs/a/config.yaml",
    "objective": {"metric": "val_loss", "mode": "min"},
    "search": {"method": "grid", "seeds": 2},
    "space": {"train.optimizer.lr": [0.001, 0.01, 0.1], "model.hidden": [4, 8]},
    "execute": {"on": "inline"},
}


class Lab:
    """A study and what can be done with it."""

    def __init__(self, project):
        self.project = project
        self.root = project.root
        self.folder = project.root / "studies" / "s"
        self.write()

    def write(self, **changes):
        """Write study.yaml: the usual one with dotted keys (written with __) changed; None removes one."""
        tree = copy.deepcopy(STUDY)
        for key, value in changes.items():
            *parents, last = key.split("__")
            place = tree
            for parent in parents:
                place = place.setdefault(parent, {})
            if value is None:
                place.pop(last, None)
            else:
                place[last] = value
        self.project.write("studies/s/study.yaml", dump(tree))
        return self.folder

    def sweep(self, *overrides, **options):
        return sweep(self.folder, overrides, progress=False, **options)

    def execute(self, choose, *overrides):
        return execute(load_study(self.folder, overrides), Wish(quiet=True), choose)

    def clear(self):
        for entry in self.folder.iterdir():
            if entry.name != "study.yaml":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def rows(self, query="select * from trials order by id"):
        db = sqlite3.connect(self.folder / "ledger.db")
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()

    def table(self):
        """What may not depend on how a study was executed."""
        return self.rows(
            "select trials.id, point, seed, trials.state, step, epoch, value, curve, is_over, points.state, points.reason,"
            ' points."values", granted from trials join points on points.number = point order by trials.id'
        )

    def steps(self):
        return sum(row[0] for row in self.rows("select steps from trials"))

    def log(self, trial):
        lines = (self.folder / "trials" / trial / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


@pytest.fixture
def lab(project):
    return Lab(project)
