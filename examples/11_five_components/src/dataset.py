"""Two data loaders for the same images: a TensorFlow pipeline and a Python generator."""

import csv

import numpy as np
from PIL import Image

from manyfit.pipeline import DataLoaderBase


class Images(DataLoaderBase):
    """The common base of both loaders: the image files of a split and their labels."""

    def _set_defaults(self):
        self.shuffle = True

    def _load_params(self, config):
        self.shuffle = config.data_loader.shuffle

    def table(self, split):
        with (self.data_dir / split / "labels.csv").open() as file:
            rows = list(csv.DictReader(file))
        names = [row["image name"] for row in rows]
        return names, [str(self.data_dir / split / name) for name in names], [int(r["label"]) for r in rows]

    def get_validation_index(self):
        return self.table("validation")[0]


class DataLoaderTF(Images):
    """A loader with a `tf.data.Dataset`: TensorFlow reads and decodes the files."""

    def create_training_generator(self):
        _, paths, labels = self.table("train")
        rows = self._dataset(paths, labels, np.ones(len(paths), np.float32))
        return (rows.shuffle(len(paths)) if self.shuffle else rows), len(paths)

    def create_validation_generator(self):
        _, paths, labels = self.table("validation")
        return self._dataset(paths, labels, np.ones(len(paths), np.float32)), len(paths)

    def create_test_generator(self):
        names, paths, labels = self.table("test")
        return self._dataset(paths, labels, names), len(paths)

    @staticmethod
    def _dataset(paths, labels, third):
        import tensorflow as tf

        def read(path, label, last):
            return tf.image.decode_jpeg(tf.io.read_file(path)), label, last

        return tf.data.Dataset.from_tensor_slices((paths, labels, third)).map(read)


class DataLoader(Images):
    """A loader with a generator: Python reads the files, with any library."""

    def create_training_generator(self):
        _, paths, labels = self.table("train")
        return self._endless(paths, labels), len(paths)

    def create_validation_generator(self):
        _, paths, labels = self.table("validation")
        return self._rows(paths, labels, np.ones(len(paths))), len(paths)

    def create_test_generator(self):
        names, paths, labels = self.table("test")
        return self._rows(paths, labels, names), len(paths)

    @staticmethod
    def _rows(paths, labels, third):
        for path, label, last in zip(paths, labels, third, strict=True):
            yield np.asarray(Image.open(path)), label, last

    def _endless(self, paths, labels):
        while True:
            order = np.random.permutation(len(paths)) if self.shuffle else np.arange(len(paths))
            yield from self._rows([paths[i] for i in order], [labels[i] for i in order], np.ones(len(order)))
