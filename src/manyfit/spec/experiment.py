"""An experiment: from tables to prepared rows, to the best of many models, to predictions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data.etl.accounting import EtlResult
from manyfit.data.etl.plan import EtlOptions, Policy
from manyfit.data.etl.progress import show_etl
from manyfit.data.etl.run import collect_misc, run_etl
from manyfit.data.etl.tables import MODES, read_table
from manyfit.run.evaluation.row_report import format_csv
from manyfit.spec.results import FitResult, Predictions, TestResult, predict_rows
from manyfit.spec.study import describe_study, find_own_code
from manyfit.store import durable
from manyfit.study.result import read_study
from manyfit.study.sweep import sweep

if TYPE_CHECKING:
    from manyfit.data.etl.spec import ETLSpec
    from manyfit.spec.minibatch import MinibatchSpec

STUDY: Final = "study"


@dataclass(frozen=True, kw_only=True)
class ExperimentParams:
    """Where the data of an experiment is, and where its results go."""

    train_main: str
    train_dir: str = ""
    val_main: str = ""
    val_dir: str = ""
    test_main: str = ""
    test_dir: str = ""
    predict_main: str = ""
    predict_dir: str = ""
    misc: Sequence[str] = ()
    """Further files, for `read_misc`."""
    etl_dir: str = "etl"
    models_dir: str = "models"
    output_dir: str = "output"

    @staticmethod
    def read(given: Mapping[str, Any] | ExperimentParams) -> ExperimentParams:
        """Return the parameters of a dict; unknown names are errors."""
        if isinstance(given, ExperimentParams):
            return given
        known = [each.name for each in fields(ExperimentParams)]
        for name in given:
            if name not in known:
                hint = f"did you mean {best!r}? " if (best := nearest(name, known)) else ""
                there = listing(known, 20)
                raise UsageError(f"params: there is no parameter {name!r}; {hint}There are: {there}")
        if not given.get("train_main"):
            raise UsageError("params: train_main is missing: the CSV file with the training rows")
        values: dict[str, Any] = {name: str(value) for name, value in given.items() if value is not None}
        misc = given.get("misc") or ()
        values["misc"] = [str(file) for file in ([misc] if isinstance(misc, str | Path) else misc)]
        return ExperimentParams(**values)


@dataclass
class Experiment:
    """Model selection over data in shards.

    >>> experiment = Experiment({"train_main": "train.csv", "val_main": "val.csv"})   # doctest: +SKIP
    >>> experiment.run_etl(Images())                                                  # doctest: +SKIP
    >>> experiment.run_fit(Nets(), {"lr": [1e-3, 1e-2]}, num_epochs=5).best           # doctest: +SKIP
    """

    params: Mapping[str, Any] | ExperimentParams
    shards: int = 2
    """The number of shards; with `capacities`, one for each of these."""
    capacities: Sequence[float] = ()
    """The relative sizes of the shards: those of the workers that will hold them."""
    workers: int | None = None
    """The number of processes; by default, one per core."""
    progress: bool = True
    allow_overlap: bool = False
    """Whether rows of validation or test may also be training rows."""
    _etl: EtlResult | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.params = ExperimentParams.read(self.params)
        self.shards = len(self.capacities) or self.shards

    @property
    def _given(self) -> ExperimentParams:
        assert isinstance(self.params, ExperimentParams)
        return self.params

    @property
    def folder(self) -> Path:
        """The study folder of the models: `manyfit status` and the other commands accept it."""
        return Path(self._given.models_dir) / STUDY

    def run_etl(
        self,
        spec: ETLSpec,
        fraction: float = 1.0,
        seed: int = 0,
        on_error: Policy = "stop",
        *,
        on: Literal["processes", "ray"] = "processes",
        address: str | None = None,
    ) -> EtlResult:
        """Prepare the rows of all tables, or reuse what was prepared for the same spec and data.

        With `on="ray"`, rows are prepared on the nodes of a Ray cluster (`address`, `RAY_ADDRESS`, or a local
        one), where models that are trained there will find them.
        """
        if on not in ("processes", "ray"):
            raise UsageError(f"on must be 'processes' or 'ray', not {on!r}")
        if address and on != "ray":
            raise UsageError("address is for on='ray' only")
        given = self._given
        tables = [
            read_table(mode, getattr(given, f"{mode}_main"), getattr(given, f"{mode}_dir"))
            for mode in MODES
            if getattr(given, f"{mode}_main")
        ]
        options = EtlOptions(fraction, seed, self.shards, self.capacities, self.workers, on_error)
        with show_etl(sys.stderr if self.progress else None) as report:
            pool = None
            if on == "ray":
                from manyfit.study.executors.ray_etl import ray_pool

                pool = ray_pool(find_own_code(type(spec)), self.workers, address)
            misc = self._collect_misc()
            self._etl = run_etl(spec, tables, Path(given.etl_dir), options, misc, report, pool)
        for line in self._etl.proof if self.progress else ():
            print(line, file=sys.stderr)
        return self._etl

    def _collect_misc(self) -> str:
        given = self._given
        return collect_misc(given.misc, Path(given.etl_dir) / "misc") if given.misc else ""

    @property
    def etl(self) -> EtlResult:
        """The prepared data: that of `run_etl`."""
        if self._etl is None:
            raise UsageError(
                "there is no prepared data yet: call run_etl first; it is quick if nothing changed"
            )
        return self._etl

    def run_fit(
        self,
        spec: MinibatchSpec,
        param_grid: Mapping[str, Any],
        num_epochs: int,
        seed: int = 0,
        *,
        metric: str = "val_loss",
        mode: Literal["min", "max"] | None = None,
        search: str | Mapping[str, Any] = "grid",
        callback: Any = None,
        execute: Mapping[str, Any] | None = None,
        allow_change: Sequence[str] = (),
    ) -> FitResult:
        """Train a model for each point of the grid, hopping over the shards; return all results.

        `param_grid` has lists, or ranges such as `{"log": [1e-4, 1e-1]}`, for a search by `random` or `tpe`.
        `search` and `execute` are sections of a study: `{"method": "random", "trials": 20, "seeds": 3}`,
        `{"order": "free"}`. `callback` is a stopper: a class whose `decide` stops, adds and copies models.
        The same call resumes; changes that would alter results are refused unless they are named in
        `allow_change`.
        """
        tree = describe_study(
            spec, param_grid, self.etl.folder, self._collect_misc(), self.folder,
            epochs=num_epochs, seed=seed, metric=metric, mode=mode,
        )  # fmt: skip
        tree["base"]["data"] |= {"allow_overlap": True} if self.allow_overlap else {}
        given = {"method": search} if isinstance(search, str) else dict(search)
        tree["search"] = {"method": "grid", "seed": seed, **given}
        tree["search"] |= {"stop": name_class(callback)} if callback is not None else {}
        workers = {"workers": self.workers} if self.workers is not None else {}
        tree["execute"] = {"hop": True, **workers, **(execute or {})}
        tree["track"] = {"tensorboard": True}
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        study = sweep(tree, folder=self.folder, progress=self.progress, allow_change=allow_change)
        return self._write(FitResult(study))

    def _write(self, result: FitResult) -> FitResult:
        """Write the tables of the results: one row per model, and every metric of every model."""
        place = Path(self._given.output_dir)
        place.mkdir(parents=True, exist_ok=True)
        durable.write_file(place / "models.csv", format_csv(result.columns()))
        durable.write_file(place / "history.csv", format_csv(result.history_columns()))
        return result

    @property
    def result(self) -> FitResult:
        """The results so far, also while models are trained elsewhere."""
        return FitResult(read_study(self.folder))

    def run_test(self) -> TestResult:
        """Evaluate the best model on the test rows."""
        from manyfit.run.reuse import evaluate

        if "test" not in self.etl.rows:
            raise UsageError("params: test_main is missing: the CSV file with the test rows")
        place = self.result.best_folder
        moved = [] if not place.is_dir() else [f"data.etl_dir={self.etl.folder.resolve()}"]
        report = evaluate(place, "test", overrides=moved, allow_change=["data.test"], trust=True)
        return TestResult(dict(report.values), len(report))

    def run_predict(self) -> Predictions:
        """Predict the rows of `predict_main` with the best model; also written to `predictions.csv`."""
        if "predict" not in self.etl.rows:
            raise UsageError("params: predict_main is missing: the CSV file with the rows to predict")
        found = predict_rows(self.result.best_folder, self.etl.folder)
        place = Path(self._given.output_dir)
        place.mkdir(parents=True, exist_ok=True)
        durable.write_file(place / "predictions.csv", format_csv(found.columns))
        return found

    def reset(self) -> None:
        """Remove the models and the tables of results, so that `run_fit` starts anew. Prepared data stays."""
        if self.folder.is_dir():
            check_removable(self.folder)
            shutil.rmtree(self.folder)
        for name in ("models.csv", "history.csv", "predictions.csv"):
            (Path(self._given.output_dir) / name).unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Remove prepared data, too, except that of other experiments."""
        self.reset()
        if self._etl is not None:
            shutil.rmtree(self._etl.folder, ignore_errors=True)
            self._etl = None


def check_removable(folder: Path) -> None:
    """Raise an error unless a folder that is to be removed holds a study."""
    if not (folder / "ledger.db").is_file() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not a study: nothing was removed")


def name_class(found: Any) -> Any:
    """Return a class as a config names it; names and dicts are kept."""
    if isinstance(found, str | Mapping):
        return found
    if not isinstance(found, type):
        raise UsageError("callback must be a class with the methods pauses and decide, or its name")
    return {"class": f"{found.__module__}.{found.__qualname__}"}
