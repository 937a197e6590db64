"""Write two kinds of noisy waves as TFRecord files."""

from pathlib import Path

import numpy as np

from manyfit.data.tfrecord import files, indexing
from manyfit.feeders import RecordWriter, encode


def rows(count: int, seed: int):
    draw = np.random.RandomState(seed)
    for i in range(count):
        wave = np.sin(np.linspace(0, 3 + 3 * (i % 2), 32)) + 0.1 * draw.normal(size=32)
        yield {"wave": wave.astype(np.float32), "label": i % 2}


for name, count in (
    ("train-00000-of-00002", 150),
    ("train-00001-of-00002", 150),
    ("validation-00000-of-00001", 60),
):
    with RecordWriter(Path("data") / name) as file:
        for row in rows(count, seed=len(name) + count):
            file.write(encode(row))

for each in indexing.index_files(files.match_files("data/*"), force=True):
    print(each.file, each.entry.records)
