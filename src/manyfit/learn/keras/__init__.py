"""Learner of compiled Keras models, on TensorFlow and on torch."""
