"""The boundaries of a run: when it logs, validates and saves."""

import manyfit


def test_checkpoints_between_rows_of_the_log(project):
    tree = project.changed(
        train__epochs=8, train__every={"log": "3ba", "validate": "2ba", "checkpoint": "5ba"}
    )
    for name in "bcd":
        assert manyfit.train(tree, folder=f"runs/{name}", callbacks=[]).step == 32
