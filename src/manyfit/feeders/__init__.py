"""Feeders over TFRecord files and over arrays in memory, and the resources of the variant layout."""

from manyfit.data.feeders import Feeder, Feeders
from manyfit.data.memory_feeder import MemorySamplesFeeder
from manyfit.data.tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    RawFeature,
    SequenceFeature,
    VarLenFeature,
)
from manyfit.data.tfrecord.writer import RecordWriter, encode
from manyfit.data.tfrecord_feeder import TFRecordExamplesFeeder

__all__ = [
    "Feature",
    "Feeder",
    "Feeders",
    "FixedLenFeature",
    "ImageFeature",
    "MemorySamplesFeeder",
    "RawFeature",
    "RecordWriter",
    "SequenceFeature",
    "TFRecordExamplesFeeder",
    "VarLenFeature",
    "encode",
]
