"""Prepared rows as the data of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from annotated_types import Gt

from manyfit.config.typed.kinds import FromProject, Kind
from manyfit.core.errors import FolderError
from manyfit.data import Split
from manyfit.data.prepared import PreparedRows, digest_layout, find_layout_folder, open_split

SPLITS: Final = {"train": "train", "validation": "val", "test": "test"}


class EtlData:
    """The rows that ETL has prepared, in the shards of its layout.

    data: {class: manyfit.spec.EtlData, etl_dir: etl, batch_size: 32}
    """

    def __init__(
        self,
        etl_dir: Annotated[str, Kind.NEUTRAL, FromProject],
        batch_size: Annotated[int, Gt(0)] = 32,
        layout: str = "",
    ) -> None:
        """`etl_dir` is the folder of one layout, or a folder with a single one.

        `layout` is the hash of the expected rows of training and validation, as an experiment writes it.
        """
        self.batch_size = batch_size
        self.folder = find_layout_folder(Path(etl_dir))
        if layout and digest_layout(self.folder, ("train", "val")) != layout:
            raise FolderError(f"{self.folder} has other rows than the config expects (data.layout)")

    def source(self, split: Split) -> PreparedRows | None:
        """Return the rows of one split."""
        return open_split(self.folder, SPLITS[split])
