"""ETL of PNG files on two processes, against a bare pool that prepares the same rows and writes the same files."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from timing import compare, where

from manyfit.data.etl.plan import EtlOptions
from manyfit.data.etl.run import run_etl
from manyfit.data.etl.spec import ETLSpec
from manyfit.data.etl.tables import read_table
from manyfit.data.row_files import flatten_row, serialize_rows

COUNT = int(os.environ.get("COUNT", "20000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
PART = 312


class Pictures(ETLSpec):
    """Reads an image and its label."""

    def row_prep(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        """Return the pixels and the class."""
        pixels = np.asarray(Image.open(object_dir + row["file"]), dtype=np.float32) / 255
        return pixels[None], int(row["label"])


def prepare_bare(job: tuple[str, list[dict[str, Any]], str]) -> None:
    """Prepare some rows and write them as one file."""
    path, rows, folder = job
    spec, columns, form = Pictures(), dict[str, list[Any]](), None
    for row in rows:
        form, arrays = flatten_row(*spec.row_prep(row, "train", folder))
        for name, array in arrays.items():
            columns.setdefault(name, []).append(array)
    assert form is not None
    stacked = {name: np.stack(arrays) for name, arrays in columns.items()}
    Path(path).write_bytes(serialize_rows([row["id"] for row in rows], form, stacked))


def write_pictures(folder: Path) -> None:
    """Write the images and their table."""
    (folder / "objects").mkdir()
    dice, lines = np.random.RandomState(0), ["id,file,label"]
    for i in range(COUNT):
        pixels = dice.randint(0, 256, (64, 64), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "objects" / f"{i}.png")
        lines.append(f"r{i},{i}.png,{i % 10}")
    (folder / "train.csv").write_text("\n".join(lines) + "\n")


def main() -> bool:
    """Compare the two."""
    with tempfile.TemporaryDirectory() as place:
        root, number = Path(place), iter(range(1000))
        write_pictures(root)
        objects = f"{root}/objects/"

        def ours() -> None:
            table = read_table("train", str(root / "train.csv"), objects)
            run_etl(Pictures(), [table], root / f"etl-{next(number)}", EtlOptions(shards=2, workers=2))

        def bare() -> None:
            table = read_table("train", str(root / "train.csv"), objects)
            rows = table.take(list(range(len(table))))
            target = root / f"bare-{next(number)}"
            target.mkdir()
            jobs = [
                (str(target / f"{begin}.arrow"), rows[begin : begin + PART], objects)
                for begin in range(0, len(rows), PART)
            ]
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                for _ in pool.imap_unordered(prepare_bare, jobs):
                    pass

        return compare(f"bare pool / ETL, {COUNT:,} PNG files", bare, ours, ROUNDS, at_least=0.85)


if __name__ == "__main__":
    print(f"ETL ({where()})")
    sys.exit(not main())
