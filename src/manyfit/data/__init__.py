"""Sources, batches and their order. Nothing here knows a learner."""

from manyfit.data.batch import Batch
from manyfit.data.dataset import DatasetSource, IterableSource, Limited
from manyfit.data.order import Order, steps_of
from manyfit.data.source import ArraySource, Data, NotASource, Source, Split, Splits, as_source, once
from manyfit.data.weighted import ClassWeighted

__all__ = [
    "ArraySource",
    "Batch",
    "ClassWeighted",
    "Data",
    "DatasetSource",
    "IterableSource",
    "Limited",
    "NotASource",
    "Order",
    "Source",
    "Split",
    "Splits",
    "as_source",
    "once",
    "steps_of",
]
