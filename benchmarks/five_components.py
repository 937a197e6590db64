"""Five components for the benchmarks: 28 x 28 images in memory, as a TensorFlow pipeline and as a generator."""

import numpy as np

from manyfit.pipeline import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase, batched

COUNTS = {"train": 1000, "validation": 500, "test": 500}


def images(split):
    state = np.random.RandomState(len(split))
    count = COUNTS[split]
    return state.randint(0, 256, (count, 28, 28)).astype(np.uint8), np.arange(count) % 10


class LoaderTF(DataLoaderBase):
    def rows(self, split):
        import tensorflow as tf

        pixels, labels = images(split)
        ids = np.array([f"image-{i}" for i in range(len(labels))])
        third = ids if split == "test" else np.ones(len(labels), np.float32)
        rows = tf.data.Dataset.from_tensor_slices((pixels, labels, third))
        return (rows.shuffle(len(labels)) if split == "train" else rows), len(labels)

    def create_training_generator(self):
        return self.rows("train")

    def create_validation_generator(self):
        return self.rows("validation")

    def create_test_generator(self):
        return self.rows("test")


class Loader(LoaderTF):
    def rows(self, split):
        pixels, labels = images(split)
        return self.endless(pixels, labels, split == "train", split == "test"), len(labels)

    def endless(self, pixels, labels, shuffle, has_ids):
        order = np.arange(len(labels))
        while True:
            if shuffle:
                np.random.shuffle(order)
            for i in order:
                yield pixels[i], labels[i], f"image-{i}" if has_ids else 1.0


class PreprocessorTF(PreprocessorBase):
    batch_size: int = 8

    def image_preprocess(self, image):
        import tensorflow as tf

        return tf.reshape(tf.cast(image, tf.float32), (784,)) / 255

    def label_preprocess(self, label):
        return label

    def add_image_preprocess(self, generator):
        return generator.map(lambda x, y, w: (self.image_preprocess(x), y, w))

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n_data_points):
        return generator.batch(self.batch_size).repeat(), -(-n_data_points // self.batch_size)


class Preprocessor(PreprocessorTF):
    def image_preprocess(self, image):
        return image.reshape(784).astype(np.float32) / 255

    def add_image_preprocess(self, generator):
        for x, y, w in generator:
            yield self.image_preprocess(x), y, w

    def batchify(self, generator, n_data_points):
        return self.batches(generator), -(-n_data_points // self.batch_size)

    def batches(self, generator):
        while True:
            rows = [next(generator) for _ in range(self.batch_size)]
            yield tuple(np.array(column) for column in zip(*rows, strict=True))


class Builder(ModelBuilderBase):
    def get_compiled_model(self):
        import keras

        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(512, activation="relu"),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
        return model


def as_in_the_guide(y_true, y_pred):
    """Return the loss of one row, with a new loss object and converted to NumPy: it cannot be vectorized."""
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=False)(y_true, y_pred).numpy()


@batched
def cross_entropy(y_true, y_pred):
    return -np.log(y_pred[np.arange(len(y_true)), y_true])


class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {}


class Guide(EvaluatorBase):
    def get_eval_funcs(self):
        return {"ce": as_in_the_guide}


class Named(EvaluatorBase):
    def get_eval_funcs(self):
        return {"ce": "sparse_categorical_crossentropy"}


class Batched(EvaluatorBase):
    def get_eval_funcs(self):
        return {"ce": cross_entropy}
