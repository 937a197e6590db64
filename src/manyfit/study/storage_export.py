"""Export of a study to an Optuna storage or a CSV file."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from manyfit.config.study.study import load_study
from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.study.ledger.reader import read_only
from manyfit.study.result import rows, select_seeds
from manyfit.study.search.sampling import Observation, to_optuna_trial
from manyfit.study.search.standings import View
from manyfit.study.work.folder import StudyFolder


def to_optuna(place: Path, storage: str) -> tuple[str, int]:
    """Write every point as an Optuna trial; return the name of the study and the number of trials."""
    optuna = import_optional("optuna", "search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder, study = StudyFolder(place), load_study(place)
    points, facts, _ = read_only(folder.ledger)
    found = []
    for point in select_seeds(points, facts):
        view, sign = View(point, study.objective.sign), study.objective.sign
        state = "running" if view.state == "waiting" else view.state
        trial = to_optuna_trial(
            study, Observation(point.values, state, point.value(sign), int(view.record.granted or 0))
        )
        if trial is None:
            continue
        curve = dict.fromkeys(int(epoch) for t in point.trials for epoch, _ in t.curve)
        means = {epoch: point.value(sign, epoch) for epoch in curve}
        trial.intermediate_values = {epoch: value for epoch, value in means.items() if value is not None}
        trial.user_attrs = {
            "point": point.number,
            **{study.name_replicate(t.seed): t.value for t in point.trials},
            **{
                f"folder of {study.name_replicate(t.seed)}": str(folder.trial(t.id).path)
                for t in point.trials
            },
        }
        found.append(trial)
    direction = "minimize" if study.objective.mode == "min" else "maximize"
    try:
        made = optuna.create_study(storage=storage, study_name=folder.name, direction=direction)
    except optuna.exceptions.DuplicatedStudyError:
        raise UsageError(f"{storage} already has a study {folder.name!r}; choose another storage") from None
    except Exception as error:  # a database driver may raise anything for an invalid address
        text, shown = (re.sub(r"//[^@/\s]*@", "//…@", s) for s in (str(error), storage))
        raise UsageError(f"{shown} cannot be written: {text.strip().partition(chr(10))[0]}") from None
    made.add_trials(found)
    return folder.name, len(found)


def to_csv(place: Path, file: Path) -> int:
    """Write a CSV file with one row per trial; return the number of rows."""
    found = rows(place)
    header = list(dict.fromkeys(key for row in found for key in row))
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, header)
        writer.writeheader()
        writer.writerows(found)
    return len(found)
