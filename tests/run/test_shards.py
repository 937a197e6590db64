"""Runs on sharded data, trained alone: the reference for runs that hop."""

from __future__ import annotations

import pytest
import torch

import manyfit
from manyfit.core.errors import ManyfitError
from manyfit.store.folder import RunFolder


def weights_of(folder):
    return RunFolder(folder).checkpoints()[-1].load().tensors


def test_a_run_on_shards_resumes_in_the_middle_of_a_visit(project, tmp_path):
    tree = project.changed(data__shards=3, data__first_shard=1, train__epochs=2)
    tree["train"]["every"] = {"checkpoint": "1ba"}
    whole = manyfit.train(project.config(tree, "whole"), callbacks=[])
    again = project.config(tree, "again")
    for epochs in (1, 2):
        manyfit.train(again, [f"train.epochs={epochs}"], callbacks=[])
    one, other = weights_of(whole.folder), weights_of(project.root / "runs" / "again")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_layout_and_the_first_shard_change_results_and_are_guarded(project):
    tree = project.changed(data__shards=3, train__epochs=1)
    found = manyfit.train(project.config(tree), callbacks=[])
    with pytest.raises(ManyfitError, match=r"data.first_shard"):
        manyfit.train(found.folder, ["data.first_shard=2", "train.epochs=2"], callbacks=[])
    with pytest.raises(ManyfitError, match=r"data.shards"):
        manyfit.train(found.folder, ["data.shards=2", "train.epochs=2"], callbacks=[])


def test_a_limit_is_divided_among_the_shards(project, cli):
    tree = project.changed(data__shards=3, data__batch_size=4, train__limit={"train": 6}, train__epochs=1)
    found = manyfit.train(project.config(tree), callbacks=[])
    assert RunFolder(found.folder).checkpoints()[-1].step == 6
    place = project.config(project.changed(data__shards=3), "b").parent
    assert cli("train", place, "--fast-dev-run").code == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__shards": 0}, "data.shards: invalid value\\n +expected: greater than 0"),
        ({"data__shards": 4000}, "data.shards: .* rows cannot be divided into 4000 shards"),
        ({"data__first_shard": 1}, "data.first_shard: the data has no shards"),
        ({"data__shards": 2, "data__first_shard": 2}, "there are 2 shards, numbered from 0"),
        ({"data__shards": 2, "train__limit": {"overfit": 1}}, "train.limit.overfit: rows that are divided"),
    ],
)
def test_mistakes_about_shards_are_named(project, changes, message):
    with pytest.raises(ManyfitError, match=message):
        manyfit.train(project.config(project.changed(**changes)), callbacks=[])
