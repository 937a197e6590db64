"""The leaderboard of a study."""

from tests.study.points import points

from manyfit.report.leaderboard import leaderboard
from manyfit.study.executors.simulated import Simulated
from manyfit.study.work.units import Failure


def test_a_point_with_a_failed_seed_is_shown_last(lab):
    points(lab, 3)

    def failing(trial):
        bad = trial.seed == 4 and trial.values["train.optimizer.lr"] == 1.0
        return Failure("not a number", "nan") if bad else None

    lab.execute(lambda *_: Simulated(1, epochs=2, failure=failing))
    rows = leaderboard(lab.folder).rows
    assert len(rows) == 3 and (rows[-1].state, rows[-1].seeds) == ("failed", "1 of 2")
