"""Two preprocessors, one for each kind of generator: they scale pixels and group rows into batches."""

import numpy as np

from manyfit.pipeline import PreprocessorBase


class Scaling(PreprocessorBase):
    """Parameters as annotations: `preprocessor.normalize_by` and the top-level `batch_size`."""

    normalize_by: float = 255.0
    batch_size: int = 8

    def label_preprocess(self, label):
        return label

    def add_label_preprocess(self, generator):
        return generator


class PreprocessorTF(Scaling):
    def image_preprocess(self, image):
        import tensorflow as tf

        return tf.reshape(tf.cast(image, tf.float32), (28 * 28,)) / self.normalize_by

    def add_image_preprocess(self, generator):
        return generator.map(lambda x, y, w: (self.image_preprocess(x), y, w))

    def batchify(self, generator, n_data_points):
        return generator.batch(self.batch_size).repeat(), -(-n_data_points // self.batch_size)


class Preprocessor(Scaling):
    def image_preprocess(self, image):
        return np.reshape(image, 28 * 28).astype(np.float32) / self.normalize_by

    def add_image_preprocess(self, generator):
        for x, y, w in generator:
            yield self.image_preprocess(x), y, w

    def batchify(self, generator, n_data_points):
        return self._batches(generator), -(-n_data_points // self.batch_size)

    def _batches(self, generator):
        while True:
            rows = [next(generator) for _ in range(self.batch_size)]
            yield tuple(np.array(column) for column in zip(*rows, strict=True))
