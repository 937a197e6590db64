"""The best point of a study, and its run folder."""

from tests.study.points import points

from manyfit.report.leaderboard import leaderboard
from manyfit.study.executors.simulated import Simulated


def test_a_best_that_could_not_be_evaluated_is_mended_later(lab, monkeypatch):
    points(lab, 2, search__seeds=1)
    import manyfit.run.trial as trial

    real = trial.finish
    monkeypatch.setattr(trial, "finish", lambda *a, **k: (_ for _ in ()).throw(OSError("no")))
    lab.sweep()
    assert not (lab.folder / "best").exists()
    monkeypatch.setattr(trial, "finish", real)
    lab.sweep()
    assert (lab.folder / "best" / "reports" / "test.csv").exists()


def test_the_best_is_the_same_for_everybody(lab):
    points(lab, 5, search__seeds=1)
    found = lab.execute(lambda *_: Simulated(1, epochs=2, curve=lambda values, seed, epoch: 1.0))
    assert found.best.number == leaderboard(lab.folder).rows[0].point
    from manyfit.study.ledger.best import rank_points
    from manyfit.study.ledger.reader import read_only

    assert rank_points(read_only(lab.folder / "ledger.db")[0], 1, 2)[0].number == found.best.number


def test_what_was_trained_longer_counts_up_to_the_same_epoch(lab):
    points(lab, 1, search__seeds=1, set={"train.epochs": 5})
    lab.sweep()
    points(lab, 2, search__seeds=1, set={"train.epochs": 2})
    found = lab.sweep()
    rows = [row["val_loss"] for row in lab.log(found.points[0].folders[3].name)]
    assert len(rows) == 5 and found.points[0].value == min(rows[:2])
