"""TFRecord files: framing, `tf.train.Example`, the index of a folder, a writer. Without TensorFlow."""
