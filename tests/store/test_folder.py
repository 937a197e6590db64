"""The state of a run, read from its folder."""

import manyfit
from manyfit.store.folder import RunFolder


def test_a_run_that_was_extended_and_killed_is_not_finished(project, cli):
    manyfit.train("runs/a", callbacks=[])
    config = manyfit.load_config("runs/a", ["train.epochs=9"])
    (project.run / "config.resolved.yaml").write_text(config.to_resolved_yaml())
    assert RunFolder(project.run).state() == "unfinished"
    answer = cli("train", "runs/a")
    assert "train.epochs is now 2; it was 9 when the run was last started" in answer.err
    assert RunFolder(project.run).state() == "finished"
