"""Options of `manyfit train` that limit a run."""

import json

from manyfit.store.folder import RunFolder


def test_modes(project, cli):
    before = sorted(project.run.iterdir())
    for words in (["--fast-dev-run"], ["--debug"]):
        answer = cli("train", "runs/a", *words)
        assert answer.code == 0
        assert "nothing was stored" in answer.out
        assert sorted(project.run.iterdir()) == before
    assert "1 epoch, 1 step\n" in cli("train", "runs/a", "--fast-dev-run").out
    answer = cli(
        "train",
        "runs/a",
        "--limit-train-batches",
        2,
        "--limit-validation-batches",
        1,
        "--limit-test-batches",
        1,
        "--json",
    )
    assert json.loads(answer.out)["step"] == 4
    run = RunFolder(project.run)
    assert run.summary()["splits"]["validation"]["count"] == 16
    assert cli("train", "runs/a").code == 2, "a limited run is another run"
    project.config(project.changed(train__epochs=40), run="o")
    answer = cli("train", "runs/o", "--overfit-batches", 1)
    last = RunFolder(project.root / "runs/o").events()[-1].values
    assert last["val_accuracy"] > 0.9
