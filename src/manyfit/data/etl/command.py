"""ETL from the command line: a class by its path, and files by name."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from manyfit.core.errors import UsageError
from manyfit.core.names import nearest
from manyfit.core.tracebacks import user_frame
from manyfit.data.etl.accounting import EtlResult
from manyfit.data.etl.plan import EtlOptions
from manyfit.data.etl.progress import show_etl
from manyfit.data.etl.run import Pool, check_first_rows, collect_misc, run_etl
from manyfit.data.etl.spec import ETLSpec
from manyfit.data.etl.tables import MODES, EtlTable, read_table


def prepare_from_files(
    path: str, given: Mapping[str, Any], stream: TextIO | None, pool: Pool | None = None
) -> EtlResult:
    """Prepare the rows of the given tables with a spec; `given` has the options of the command."""
    tables = read_tables(given)
    spec = load_spec(path, Path(given["src"]))
    capacities = tuple(given["capacities"])
    options = EtlOptions(
        given["fraction"], given["seed"], len(capacities) or given["shards"], capacities, given["workers"],
        given["on_error"],
    )  # fmt: skip
    place = Path(given["etl_dir"])
    misc = collect_misc(given["misc"], place / "misc") if given["misc"] else ""
    with show_etl(stream) as report:
        return run_etl(spec, tables, place, options, misc, report, pool)


def check_from_files(path: str, given: Mapping[str, Any]) -> list[str]:
    """Check a spec on the first row of each of the given tables, without writing anything; describe them."""
    tables = read_tables(given)
    spec = load_spec(path, Path(given["src"]))
    with tempfile.TemporaryDirectory(prefix="manyfit-etl-") as place:
        misc = collect_misc(given["misc"], Path(place) / "misc") if given["misc"] else ""
        return check_first_rows(spec, tables, Path(place), misc)


def read_tables(given: Mapping[str, Any]) -> list[EtlTable]:
    """Return the tables that the options name."""
    mains = {mode: given[f"{mode}_main"] for mode in MODES if given.get(f"{mode}_main")}
    if not mains:
        raise UsageError("name at least one table: --train-main, --val-main, --test-main or --predict-main")
    return [read_table(mode, main, given[f"{mode}_dir"]) for mode, main in mains.items()]


def load_spec(path: str, source: Path) -> Any:
    """Return an object of the class that a path names, from the folder of the user's code."""
    module, _, name = path.rpartition(".")
    if not module:
        raise UsageError(f"{path!r} is not a class path; expected: module.Class")
    sys.path.insert(0, str(source.resolve()))
    try:
        here = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"there is no module {error.name!r} in {source}/") from None
        text = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"the module {module!r} cannot be imported: {text}\n  at {user_frame(error)}"
        ) from error
    found = getattr(here, name, None)
    if found is None:
        hint = f"; did you mean {best!r}?" if (best := nearest(name, vars(here))) else ""
        raise UsageError(f"the module {module!r} has no class {name!r}{hint}")
    if not isinstance(found, type) or not issubclass(found, ETLSpec):
        raise UsageError(f"{path} is not an ETL spec: derive it from manyfit.spec.ETLSpec")
    try:
        return found()
    except Exception as error:
        raise UsageError(
            f"{path}() failed: {type(error).__name__}: {error}\n  at {user_frame(error)}"
        ) from error
