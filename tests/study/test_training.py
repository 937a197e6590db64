"""The work of an executor: trials that are trained in their run folders."""

import json

import pytest
from tests.study.points import points

from manyfit.study.executors.inline import Inline


def test_code_that_changes_the_folder_or_prints_disturbs_nobody(lab, cli, monkeypatch):
    lab.project.write(
        "src/wanders.py",
        "import os\nfrom models import MLP\nclass Wanders(MLP):\n    def forward(self, x):\n        os.chdir('/'); print('hello')\n        return super().forward(x)\n",
    )
    lab.project.config(lab.project.changed(model={"class": "wanders.Wanders", "hidden": 4}))
    points(lab, 2, search__seeds=1)
    monkeypatch.chdir(lab.root)
    said = cli("sweep", "studies/s", "--json")
    assert said.code == 0 and json.loads(said.out)["state"] == "finished"
    assert len(list(lab.folder.glob("trials/*/metrics.jsonl"))) == 2


@pytest.mark.soak
def test_a_slow_validation_is_a_sign_of_life(lab):
    lab.project.write(
        "src/slow.py",
        "import time\nfrom models import MLP\nclass Slow(MLP):\n    def forward(self, x):\n        time.sleep(0.0 if self.training else 0.35)\n        return super().forward(x)\n",
    )
    lab.project.config(lab.project.changed(model={"class": "slow.Slow", "hidden": 4}, train__epochs=1))
    points(lab, 1, search__seeds=1, execute={"on": "processes", "workers": 1, "timeout": "1s"})
    assert not lab.sweep().failures


def test_an_interrupt_during_the_validation_at_a_rung_changes_nothing(lab):
    """What was trained but not measured yet has not reached the rung."""
    points(
        lab,
        4,
        search={"method": "grid", "seeds": 1, "stop": {"class": "halving", "factor": 2}},
        set={"train.epochs": 4},
    )
    lab.sweep()
    expected = lab.table()
    lab.clear()
    import manyfit.run.loop.trainer as trainer
    from manyfit.core.signals import StopRequested

    real, count = trainer.validate, [0]

    def validate(*args):
        count[0] += 1
        if count[0] == 2:
            raise StopRequested
        return real(*args)

    class Signalled(Inline):
        """The signal comes while the second trial is validated."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "validate", validate)
        patch.setattr("manyfit.core.signals.signal.Signals", lambda number: signal_name(number))
        lab.execute(lambda study, work, watch, trials: Signalled(work, watch))
    assert lab.table() == expected


def signal_name(number):
    class Name:
        name = "SIGTERM"

    return Name


def test_the_config_of_a_trial_is_the_base_with_its_values(lab, cli):
    lab.project.config(lab.project.changed(model__hidden="${data.batch_size}"))
    points(lab, 1, search__seeds=1)
    trial = lab.sweep().points[0]
    folder = next(iter(trial.folders.values()))
    text = (folder / "config.yaml").read_text()
    assert text.startswith("# Written by manyfit: one trial of a study.") and "${data.batch_size}" in text
    assert cli("train", folder).code == 0  # it is finished: that is said, and nothing is trained again
    assert (folder / "config.yaml").read_text() == text
    assert cli("evaluate", folder).code == 0
