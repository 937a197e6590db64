"""A tenth of the trials is hostile: each failure has its kind, and the others do not notice."""

import pytest

from manyfit.study.status import status

MODEL = '''
import ctypes, os, sys, time
from pathlib import Path
from torch import nn


class Hostile(nn.Module):
    """Goes wrong in one of many ways, after some steps."""

    def __init__(self, how: str = "", hidden: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.how = how
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps > 8 and self.training:
            getattr(self, f"do_{self.how or 'nothing'}")()
        out = self.layers(x)
        return out * float("nan") if self.steps > 8 and self.how == "nan" else out

    def do_nothing(self): pass
    do_nan = do_nothing
    def do_raises(self): raise RuntimeError("I was told to")
    def do_leaves(self): sys.exit(3)
    def do_segfault(self): ctypes.string_at(0)
    def do_aborts(self): os.abort()
    def do_hangs(self): time.sleep(600)
    def do_exits(self): os._exit(0)
    def do_memory(self): self.kept = [bytearray(200_000_000) for _ in range(100)]

    def do_garbage(self):
        for path in Path(os.environ["MANYFIT_TEST_TRIALS"]).glob("*/config.yaml"):
            if "how: garbage" in path.read_text():
                (path.parent / "checkpoints").mkdir(exist_ok=True)
                for file in path.parent.glob("checkpoints/*/*"):
                    file.write_bytes(b"garbage")
                (path.parent / "config.resolved.yaml").write_text("garbage")
                (path.parent / "metrics.jsonl").write_text("garbage")
'''

EXPECTED = {
    "raises": "user error",
    "leaves": "user error",
    "nan": "not a number",
    "segfault": "infrastructure",
    "aborts": "infrastructure",
    "hangs": "timeout",
    "exits": "user error",
    "memory": "out of memory",
}


@pytest.fixture
def hostile(lab, monkeypatch):
    lab.project.write("src/hostile.py", MODEL)
    lab.project.config(lab.project.changed(model={"class": "hostile.Hostile", "how": ""}, train__epochs=3))
    monkeypatch.setenv("MANYFIT_TEST_TRIALS", str(lab.folder / "trials"))
    return lab


def study(lab, ways):
    healthy = [{"train.optimizer.lr": 0.001 * (i + 1)} for i in range(9)]
    bad = [{"train.optimizer.lr": 0.05, "model.how": how} for how in ways]
    execute = {"on": "processes", "workers": 2, "timeout": "12s", "memory": "2GiB", "retries": 1}
    lab.write(space={"list": [*healthy, *bad]}, search={"method": "grid", "seeds": 1}, execute=execute)


def values(lab):
    return {
        row[0]: row[1:]
        for row in lab.rows("select id, value, curve, step from trials where state = 'finished'")
    }


@pytest.mark.parametrize(
    "ways",
    [
        ["raises", "nan", "segfault", "hangs", "exits", "memory", "garbage"],
        pytest.param([*EXPECTED, "garbage"], marks=pytest.mark.soak),
    ],
)
def test_each_is_typed_and_the_others_do_not_notice(hostile, ways):
    study(hostile, [])
    hostile.sweep()
    alone = values(hostile)
    assert len(alone) == 9
    hostile.clear()
    study(hostile, ways)
    found = hostile.sweep()
    assert values(hostile) == alone
    failed = {p.values["model.how"]: p for p in found.points if p.state != "finished"}
    kinds = {row[0]: row[1] for row in hostile.rows("select id, json_extract(failure, '$.kind') from trials")}
    expected = {**EXPECTED, "garbage": "infrastructure"}
    for how, point in failed.items():
        trial = next(iter(point.folders.values())).name
        assert kinds[trial] == expected[how], (
            how,
            hostile.rows(f"select failure from trials where id = '{trial}'"),
        )
    assert set(failed) == set(ways)
    assert status(hostile.folder)["state"] == "finished"


def test_what_a_trial_prints_lies_in_its_folder(hostile, capfd):
    hostile.project.write(
        "src/hostile.py",
        MODEL.replace("def do_nothing(self): pass", "def do_nothing(self): print('so far so good')"),
    )
    study(hostile, ["segfault"])
    hostile.sweep()
    printed = [p.read_text() for p in hostile.folder.glob("trials/*/output.log")]
    assert sum("so far so good" in text for text in printed) == 9
    assert sum("Segmentation fault" in text for text in printed) == 1  # with a traceback, by faulthandler
    assert "so far" not in capfd.readouterr().out


def test_inline_isolates_exceptions(hostile):
    study(hostile, ["raises", "leaves", "nan"])
    found = hostile.sweep("execute.on=inline")
    assert found.failures == {"user error": 2, "not a number": 1}
    assert sum(p.state == "finished" for p in found.points) == 9
