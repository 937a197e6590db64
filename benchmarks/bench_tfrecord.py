"""TFRecord files against `tf.data`, in the same run: 60,000 records of 0.9 kB, every column to tensors.

ROUNDS (3) says how often each is measured; the best of each is compared, and the spread is printed.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import torch

from manyfit.data import Order, once
from manyfit.data.tfrecord import files, metadata
from manyfit.data.tfrecord.writer import write
from manyfit.feeders import FixedLenFeature, ImageFeature, RawFeature, TFRecordExamplesFeeder

ROUNDS = int(os.environ.get("ROUNDS", "3"))
COUNT = int(os.environ.get("RECORDS", "60000"))
PICTURES = int(os.environ.get("PICTURES", "600"))
BATCH = 256
failed = []


def measured(functions):
    """Seconds of each, several times, taken in turns."""
    taken = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - begin)
    return taken


def ratio(label, taken, ours, theirs, limit, at_most=False):
    best = min(taken[theirs]) / min(taken[ours])
    each = sorted(a / b for a, b in zip(taken[theirs], taken[ours], strict=True))
    good = best >= limit if not at_most else 1 / best <= limit
    shown = 1 / best if at_most else best
    spread = f"{each[0]:.2f} … {each[-1]:.2f}" if not at_most else f"{1 / each[-1]:.2f} … {1 / each[0]:.2f}"
    sign = "≤" if at_most else "≥"
    print(
        f"{label}: {shown:.2f} (wanted {sign} {limit}, spread {spread}){'' if good else '  MISSED'}",
        flush=True,
    )
    if not good:
        failed.append(label)


def drain(batches):
    count = 0
    for batch in batches:
        for column in batch.inputs.values() if isinstance(batch.inputs, dict) else [batch.inputs]:
            torch.from_numpy(column)
        torch.from_numpy(np.ascontiguousarray(batch.target))
        count += len(batch)
    return count


def records(folder):
    draw = np.random.default_rng(0)
    part = COUNT // 4
    for i in range(4):
        rows = (
            {
                "image": draw.bytes(784),
                "weight": draw.random(16, np.float32),
                "label": int(draw.integers(10)),
            }
            for _ in range(part)
        )
        write(folder / f"train-{i:05d}-of-00004", rows)
    list(metadata.index(files.matched(str(folder / "*"))))


def columns(folder):
    patterns = str(folder / "train-*")
    names = files.matched(patterns)
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "weight": tf.io.FixedLenFeature([16], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def raw(parsed):
        return {**parsed, "image": tf.io.decode_raw(parsed["image"], tf.uint8)}

    auto = tf.data.AUTOTUNE
    files_of = tf.data.TFRecordDataset(names, num_parallel_reads=auto)
    together = files_of.batch(BATCH).map(lambda r: raw(tf.io.parse_example(r, spec)), auto).prefetch(auto)
    alone = tf.data.TFRecordDataset(names, num_parallel_reads=auto)
    alone = alone.map(lambda r: raw(tf.io.parse_single_example(r, spec)), auto).batch(BATCH).prefetch(auto)
    kept = tf.data.TFRecordDataset(names, num_parallel_reads=auto).batch(BATCH)
    kept = kept.map(lambda r: raw(tf.io.parse_example(r, spec)), auto).prefetch(auto)

    def feeder(**more):
        return TFRecordExamplesFeeder(
            patterns,
            {"image": RawFeature([784], "uint8"), "weight": FixedLenFeature([16], "float32")},
            {"label": FixedLenFeature([], "int64")},
            batch_size=BATCH,
            **more,
        )

    def consume(dataset):
        assert sum(int(each["label"].shape[0]) for each in dataset) == COUNT

    def first():
        assert drain(once(feeder(num_parallel_reads=2), BATCH)) == COUNT

    def shuffled():
        assert drain(feeder(num_parallel_reads=2).batches(Order(BATCH, seed=1, epochs=1))) == COUNT

    def three():
        with tempfile.TemporaryDirectory() as cache:
            source = feeder(cache=cache)
            assert drain(source.batches(Order(BATCH, seed=1, epochs=3))) == 3 * COUNT

    warm = feeder(cache=str(folder / "_cache"))
    drain(once(warm, BATCH))

    def later():
        assert drain(warm.batches(Order(BATCH, seed=2, epochs=1))) == COUNT

    taken = measured(
        {
            "together": lambda: consume(together),
            "alone": lambda: consume(alone),
            "first": first,
            "shuffled": shuffled,
            "later": later,
            "three": three,
            "three of tf.data": lambda: [consume(together) for _ in range(3)],
        }
    )
    for name in ("together", "alone", "first", "shuffled", "later"):
        print(f"  {name}: {COUNT / min(taken[name]):,.0f} records a second")
    ratio("first pass / tf.data batch-then-parse", taken, "first", "together", 0.5)
    ratio("first pass / tf.data parse-then-batch", taken, "first", "alone", 3)
    ratio("later passes with kept columns / batch-then-parse", taken, "later", "together", 10)
    ratio("three epochs with kept columns / batch-then-parse", taken, "three", "three of tf.data", 1.2)
    ratio("time shuffled / time in order", taken, "shuffled", "first", 1.5, at_most=True)


def pictures(folder):
    from PIL import Image

    draw = np.random.default_rng(1)

    def picture():
        small = draw.integers(0, 255, (20, 24, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(small).resize((400, 320), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        return out.getvalue()

    write(folder / "train-0", ({"image": picture(), "label": i % 10} for i in range(PICTURES)))
    list(metadata.index(files.matched(str(folder / "*"))))
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def one(record):
        parsed = tf.io.parse_single_example(record, spec)
        image = tf.image.convert_image_dtype(tf.io.decode_jpeg(parsed["image"], 3), tf.float32)
        return tf.image.resize(image, [224, 224]), parsed["label"]

    dataset = tf.data.TFRecordDataset(str(folder / "train-0")).map(one, 2).batch(32).prefetch(2)
    source = TFRecordExamplesFeeder(
        str(folder / "train-0"),
        {"image": ImageFeature(resize_height=224, resize_width=224)},
        {"label": FixedLenFeature([], "int64")},
        batch_size=32,
        num_parallel_maps=2,
    )

    def theirs():
        assert sum(int(images.shape[0]) for images, _ in dataset) == PICTURES

    def ours():
        assert drain(once(source, 32)) == PICTURES

    taken = measured({"theirs": theirs, "ours": ours})
    for name in taken:
        print(f"  pictures, {name}: {PICTURES / min(taken[name]):,.0f} a second")
    ratio("JPEG to 224 / tf.data", taken, "ours", "theirs", 0.8)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "records").mkdir()
        (Path(place) / "pictures").mkdir()
        records(Path(place) / "records")
        columns(Path(place) / "records")
        pictures(Path(place) / "pictures")
    sys.exit(f"missed: {', '.join(failed)}" if failed else 0)
