"""Studies on GPUs: workers are pinned to them, and memory that runs out is met with smaller batches."""

import json

import pytest
import torch

from manyfit.core.errors import UsageError
from manyfit.core.gpus import gpus
from manyfit.study.executors.choose import visible_gpus

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def sessions(lab):
    return [json.loads(p.read_text())["sessions"][-1] for p in lab.folder.glob("trials/*/provenance.json")]


@gpu
def test_workers_are_pinned_to_gpus(lab):
    lab.write(search__seeds=1, execute={"on": "processes", "workers": 2})
    found = lab.sweep()
    assert not found.failures
    assert all(session["device"].startswith("cuda") for session in sessions(lab))
    facts = json.loads((lab.folder / "provenance.json").read_text())["sessions"][-1]
    assert facts["places"] == ["0", "0"] or set(facts["places"]) <= set(visible_gpus())


@gpu
def test_gpus_by_index_and_idle_ones(lab):
    lab.write(search__seeds=1, space={"model.hidden": [4, 8]}, execute={"on": "processes", "gpus": [0]})
    assert not lab.sweep().failures
    with pytest.raises(UsageError, match="there is no GPU 77"):
        lab.sweep("execute.gpus=[77]")
    assert [str(each.number) for each in gpus()] == visible_gpus()


HUNGRY = '''
import torch
from torch import nn


class Hungry(nn.Module):
    """Needs {share} of the memory for a whole batch, and half of that for half of one."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        if self.training:
            {need}
        return self.layers(x)
'''
ON_GPU = "\n            if len(x) > 8: torch.empty(10**15, dtype=torch.uint8, device=x.device)"
ON_CPU = "\n            if len(x) > 8: raise torch.OutOfMemoryError('made up')"


@pytest.mark.parametrize("need", [pytest.param(ON_GPU, marks=gpu), ON_CPU], ids=["gpu", "cpu"])
def test_memory_that_suffices_for_half_a_batch(lab, need):
    lab.project.write("src/hungry.py", HUNGRY.format(share="more than all", need=need))
    lab.project.config(lab.project.changed(model={"class": "hungry.Hungry"}))
    lab.write(search__seeds=1, space={"model.hidden": [4, 8]}, execute={"on": "processes", "workers": 1})
    found = lab.sweep()
    assert not found.failures
    assert {row[0] for row in lab.rows("select split from trials")} == {2}
    resolved = next(lab.folder.glob("trials/*/config.resolved.yaml")).read_text()
    assert "accumulate: 2" in resolved
    assert lab.sweep().best == found.best  # and it can be started again


@gpu
@pytest.mark.parametrize("on", ["inline", "processes"])
def test_trials_hop_on_a_gpu(lab, on):
    from tests.study.test_hopping import train_alone, trained

    lab.project.config(lab.project.changed(data__shards=3, train__device="cuda", model__dropout=0.2))
    lab.write(search__seeds=1, execute={"hop": True, "on": on, "workers": 2})
    assert not lab.sweep().failures
    assert all(session["device"].startswith("cuda") for session in sessions(lab))
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir())[:3]:
        (state, events), (alone, rows) = (
            trained(p) for p in (lab.folder / "trials" / trial, train_alone(lab, trial))
        )
        assert [row[:2] for row in events] == [row[:2] for row in rows]
        assert all(torch.equal(tensor, alone.tensors[name]) for name, tensor in state.tensors.items())
