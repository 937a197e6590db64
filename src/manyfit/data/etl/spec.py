"""The ETL spec: how a row of a table and its files become the arrays that models are trained on."""

from __future__ import annotations

from typing import Any, Final


class ETLSpec:
    """How rows are prepared. Subclasses fill in the methods; others may be added."""

    features: list[str] | None = None
    """The columns that `row_prep` needs; they are checked before anything is prepared."""
    is_feature_download: list[bool] | None = None
    """Which of the features name object files, which are fetched if their folder is remote."""

    def set_features(self) -> None:
        """Set `self.features`, and `self.is_feature_download` if object files are remote."""

    def initialize_worker(self) -> None:
        """Prepare a worker. Called exactly once on each."""

    def read_misc(self, misc_path: str) -> None:
        """Read further files from a folder, on every worker. The path ends in a slash."""

    def row_prep(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        """Return the input and the target of a row, or the input and None.

        `row` has the columns of the table, by name and as attributes; `mode` is `train`, `val`, `test` or
        `predict`; object files are in the folder `object_dir`, a path that ends in a slash.
        """
        raise NotImplementedError


EXPECTED: Final = {
    "set_features": (),
    "initialize_worker": (),
    "read_misc": ("misc_path",),
    "row_prep": ("row", "mode", "object_dir"),
}
"""The parameters of each method."""
NEEDED: Final = ("row_prep",)


class TableRow(dict[str, Any]):
    """A row of a table: its columns by name, and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no column {name!r}; there are: {', '.join(self)}") from None
