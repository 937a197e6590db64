"""The boundaries of a run: when it logs, validates and saves."""

import manyfit


def test_checkpoints_between_rows_of_the_log(project):
    tree = project.changed(
        train__epochs=8, train__every={"log": "3ba", "validate": "2ba", "checkpoint": "5ba"}
    )
    for name in "bcd":
        assert manyfit.train(tree, folder=f"runs/{name}", callbacks=[]).step == 32


def test_by_default_only_the_end_of_a_short_run_is_written(project, monkeypatch):
    from manyfit.store import checkpoint

    written = []
    real = checkpoint.save_checkpoint
    monkeypatch.setattr(
        checkpoint,
        "save_checkpoint",
        lambda folder, state, note, *rest: (written.append(note.step), real(folder, state, note, *rest))[1],
    )
    result = manyfit.train("runs/a", ["train.epochs=10"], callbacks=[])
    assert written[-1] == 40
    assert set(written) <= {40, result.best_step}
