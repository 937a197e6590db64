"""Sources, batches and their order. Nothing here knows a learner."""

from manyfit.data.batch import Batch
from manyfit.data.order import Order
from manyfit.data.source import ArraySource, Data, Source, Split, once

__all__ = ["ArraySource", "Batch", "Data", "Order", "Source", "Split", "once"]
