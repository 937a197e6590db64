"""Sources, batches and their order. Nothing here knows a learner."""

from manyfit.data.batch import Batch
from manyfit.data.dataset import DatasetSource, IterableSource, Limited
from manyfit.data.order import Order
from manyfit.data.source import ArraySource, Data, NotASource, Source, Split, Splits, as_source, once

__all__ = [
    "ArraySource",
    "Batch",
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
]
