"""Write the files that the tasks read: a table, images in folders, and short reviews."""

import csv
import random
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

DATA = Path("data")


def write_csv(name: str, header: list[str], rows: list[list[object]]) -> None:
    DATA.mkdir(exist_ok=True)
    with (DATA / name).open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_table() -> None:
    found = load_breast_cancer()
    names = [name.replace(" ", "_") for name in found.feature_names]
    kinds = found.target_names[found.target]
    write_csv(
        "cells.csv", [*names, "kind"], [[*row, kind] for row, kind in zip(found.data, kinds, strict=True)]
    )


def write_images() -> None:
    """Many images of 0 to 4, and few of 5 to 9."""
    found = load_digits()
    for number, (image, label) in enumerate(zip(found.images, found.target, strict=True)):
        if label < 5 or number < 600:
            folder = DATA / ("many" if label < 5 else "few") / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15.9).astype(np.uint8)).save(folder / f"{number:04}.png")


def write_reviews() -> None:
    """Reviews whose sentiment depends on the order of their words."""
    dice = random.Random(0)
    rows = []
    for _ in range(2000):
        words, value = [], 0
        for thing in dice.sample(["film", "plot", "cast", "sound", "end", "start"], dice.randint(1, 4)):
            sign, negated = dice.choice([-1, 1]), dice.random() < 0.5
            word = dice.choice(["good", "great", "lovely"] if sign > 0 else ["bad", "dull", "poor"])
            words += ["the", thing, "was", *(["not"] if negated else []), word]
            value += -sign if negated else sign
        if value:
            rows.append([" ".join(words), "positive" if value > 0 else "negative"])
    write_csv("reviews.csv", ["review", "sentiment"], rows)


if __name__ == "__main__":
    write_table()
    write_images()
    write_reviews()
