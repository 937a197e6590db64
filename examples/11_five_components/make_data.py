"""Write the digits that ship with manyfit as JPEG images of 28 x 28 pixels, with a table of labels."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from manyfit.datasets import Digits

for split, count in {"train": 600, "validation": 150, "test": 150}.items():
    folder = Path("datasets") / "digits" / split
    folder.mkdir(parents=True, exist_ok=True)
    source = Digits().source(split)
    rows = []
    for i, (pixels, label) in enumerate(zip(source.inputs[:count], source.target[:count], strict=True)):
        image = np.kron(pixels.reshape(8, 8), np.ones((3, 3)))  # 24 x 24
        image = np.pad(255 * image / max(float(image.max()), 1e-6), 2).astype(np.uint8)
        Image.fromarray(image).save(folder / f"image_{i}.jpg", quality=95)
        rows.append((f"image_{i}.jpg", int(label)))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image name", "label"), *rows])
print("datasets/digits is ready")
