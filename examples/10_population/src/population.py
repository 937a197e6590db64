"""Population-based training as a stopper: copies of the best points, with weights, replace the worst."""

from manyfit.core.seeds import derive
from manyfit.study.search.decisions import Add, Board, Decision, Go, Stop, View


class Population:
    """A stopper that, every few epochs, stops the worst points and copies the best with other rates.

    A copy starts from the current weights of its parent and is trained for the remaining epochs.
    """

    def __init__(self, key: str, every: int = 2, share: float = 0.25, factor: float = 2.0) -> None:
        self.key = key
        self.every = every
        self.share = share
        self.factor = factor

    def pauses(self, epochs: int) -> list[int]:
        return list(range(self.every, epochs, self.every))

    def decide(self, board: Board) -> list[Decision]:
        points = list(board.points)
        if any(point.state == "running" for point in points):
            return []  # wait for the whole population, so that the result does not depend on timing
        ranked = board.ranked([point for point in points if point.state == "waiting"])
        count = int(len(ranked) * self.share)
        worst = ranked[len(ranked) - count :]
        decisions: list[Decision] = [self.onwards(point, board) for point in ranked[: len(ranked) - count]]
        for bad, good in zip(worst, ranked, strict=False):
            decisions += [
                Stop(bad.number, f"replaced by a copy of point {good.number}"),
                self.copy(good, board),
            ]
        return decisions

    def onwards(self, point: View, board: Board) -> Go:
        following = point.record.granted + self.every
        return Go(point.number, following if following < self.epochs(point, board) else None)

    def copy(self, good: View, board: Board) -> Add:
        """Return a copy with a higher or lower rate. A hash decides which, so that repeated calls agree."""
        at = good.record.granted
        up = derive(board.seed, good.id, at) % 2
        rate = good.values[self.key] * (self.factor if up else 1 / self.factor)
        left = self.epochs(good, board) - at
        return Add(
            {self.key: rate, "train.epochs": left}, weights=good.number, reason=f"a copy after {at} epochs"
        )

    def epochs(self, point: View, board: Board) -> int:
        return point.values.get("train.epochs", board.epochs)
