"""Runs and studies, read-only: what one comes back to after a month."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit.core.errors import FolderError, ManyfitError, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import nearest
from manyfit.report.charts import Figure
from manyfit.report.conditions import Condition, sort_key
from manyfit.report.curves import draw_history, frame_of_events
from manyfit.store.events import Event
from manyfit.store.folder import RunFolder, run_folders
from manyfit.store.lock import is_owned
from manyfit.store.run_index import describe_runs
from manyfit.study.result import Study, read_study

if TYPE_CHECKING:
    import pandas

NAMED: tuple[str, ...] = ("name", "state", "epoch", "step", "started", "changed")


@dataclass(frozen=True)
class RunRecord:
    """A run folder: its state, its results, its config and its curves.

    >>> run = manyfit.open("runs/digits-mlp")          # doctest: +SKIP
    >>> run.test["accuracy"], run.config["train.optimizer.lr"]     # doctest: +SKIP
    """

    folder: Path
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return str(self.facts["name"])

    @property
    def state(self) -> str:
        """`new`, `unfinished`, `running`, `finished`, `failed` or `damaged`."""
        return str(self.facts["state"])

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the best checkpoint."""
        found: Mapping[str, float] = self.facts["metrics"]
        return found

    @property
    def test(self) -> Mapping[str, float]:
        """The metrics of the test split."""
        found: Mapping[str, float] = self.facts["test"]
        return found

    @property
    def config(self) -> Mapping[str, Any]:
        """The values of the config by key, with defaults."""
        found: Mapping[str, Any] = self.facts["config"]
        return found

    @cached_property
    def history(self) -> list[Event]:
        """All entries of the log."""
        return RunFolder(self.folder).events()

    @property
    def values(self) -> dict[str, Any]:
        """Everything that a condition can refer to: facts, metrics, test metrics as `test_…`, config."""
        test = {f"test_{name}": value for name, value in self.test.items()}
        return {**self.config, **test, **self.metrics, **{name: self.facts.get(name) for name in NAMED}}

    def frame(self) -> pandas.DataFrame:
        """Return the curves: one row per entry of the log, one column per value."""
        return frame_of_events(self.history)

    def rows(self, split: str = "test") -> pandas.DataFrame:
        """Return the row report of a split."""
        file = RunFolder(self.folder).reports / f"{split}.csv"
        if not file.is_file():
            raise FolderError(f"{self.folder} has no report of the split {split!r}")
        return import_optional("pandas", "search").read_csv(file, dtype={"id": str})

    def plot(self, *metrics: str, by: str = "step", smooth: float = 0.0) -> Figure:
        """Draw the curves of some metrics; in a notebook, the figure is shown."""
        return Figure(draw_history([self.folder], metrics, by, smooth))

    def _repr_html_(self) -> str:
        shown = {"state": self.state, "epoch": f"{self.facts['epoch']:g}"}
        shown |= {f"best {name}": f"{value:.4g}" for name, value in self.metrics.items()}
        shown |= {f"test {name}": f"{value:.4g}" for name, value in self.test.items()}
        cells = "".join(
            f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in shown.items()
        )
        return f"<b>{html.escape(self.name)}</b><table>{cells}</table>"


class Runs(Sequence[RunRecord]):
    """Several runs, which can be filtered, sorted and turned into a table.

    >>> manyfit.runs("runs").where("train.optimizer.lr<1e-3").sort("val_loss").frame()   # doctest: +SKIP
    """

    def __init__(self, found: Iterable[RunRecord]) -> None:
        self._found = list(found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        return Runs(self._found[index]) if isinstance(index, slice) else self._found[index]

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self._found)

    def where(self, *conditions: str) -> Runs:
        """Return the runs that satisfy all conditions."""
        parsed = [Condition.parse(text) for text in conditions]
        self.check(*(each.key for each in parsed))
        return Runs(run for run in self._found if all(each.holds(run.values) for each in parsed))

    def sort(self, key: str, descending: bool = False) -> Runs:
        """Return the runs sorted by a metric, a config key, or another fact; runs without it come last."""
        self.check(key)
        known = [run for run in self._found if run.values.get(key) is not None]
        rest = [run for run in self._found if run.values.get(key) is None]
        return Runs([*sorted(known, key=lambda r: sort_key(r.values[key]), reverse=descending), *rest])

    def frame(self, *columns: str) -> pandas.DataFrame:
        """Return one row per run: facts, metrics and config, or some columns."""
        self.check(*columns)
        shown = [
            run.values if not columns else {c: run.values.get(c) for c in columns} for run in self._found
        ]
        pandas = import_optional("pandas", "search")
        return pandas.DataFrame(shown, index=[run.name for run in self._found])

    def check(self, *keys: str) -> None:
        """Raise an error for a key that no run has."""
        known = {name for run in self._found for name in run.values} if keys and self._found else set()
        for key in keys if known else ():
            if key not in known:
                best = nearest(key, sorted(known))
                raise UsageError(f"no run has {key!r}" + (f"; did you mean {best}?" if best else ""))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(run.name)}</td><td>{run.state}</td><td>"
            + html.escape(" ".join(f"{n}={v:.4g}" for n, v in run.metrics.items()))
            + "</td></tr>"
            for run in self._found
        )
        return f"<table><tr><th>run</th><th>state</th><th>best</th></tr>{rows}</table>"


def runs(folder: str | Path = ".") -> Runs:
    """Return the runs in a folder, read-only."""
    return Runs(RunRecord(Path(facts["folder"]), facts) for facts in describe_runs(run_folders(Path(folder))))


def open(place: str | Path) -> RunRecord | Study:
    """Open a run or a study, read-only."""
    path = Path(place)
    if (path / "study.yaml").is_file() or (path / "ledger.db").is_file():
        return read_study(path)
    if not path.is_dir():
        raise FolderError(f"there is no folder {path}")
    if not (path / "config.yaml").is_file() and not (path / "config.resolved.yaml").is_file():
        raise FolderError(f"{path} is neither a run nor a study: it has no config.yaml and no study.yaml")
    (facts,) = describe_runs([RunFolder(path)])
    return RunRecord(path, facts)


def list_studies(folder: Path) -> list[tuple[str, str, str, str, str]]:
    """Return name, state, number of points, best value and its point for each study in a folder."""
    found = []
    for file in sorted(
        [*folder.glob("study.yaml"), *folder.glob("*/study.yaml"), *folder.glob("studies/*/study.yaml")]
    ):
        name = file.parent.name
        if not (file.parent / "ledger.db").is_file():
            found.append((name, "new", "0", "–", "–"))
            continue
        try:
            study = read_study(file.parent)
        except ManyfitError:
            found.append((name, "damaged", "–", "–", "–"))
            continue
        state = "running" if is_owned(file.parent) else "unfinished" if study.unfinished else "finished"
        ranked = study.ranked
        best = f"{study.metric}={ranked[0].value:.4g}" if ranked else "–"
        values = (
            " ".join(f"{k.rpartition('.')[2]}={v}" for k, v in ranked[0].values.items()) if ranked else "–"
        )
        found.append((name, state, str(len(study.points)), best, values or "–"))
    return found
