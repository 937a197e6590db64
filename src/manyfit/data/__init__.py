"""Data sources, batches and their order, independent of any learner.

| module | contents |
|---|---|
| `files` | ready data classes for tables, images, text, HDF5 and LMDB |
| `facts` | facts of the data that a config refers to |
| `splitting`, `folds` | rows divided into splits and folds |
| `source` | the protocols `Source` and `Data`; arrays in memory, and plain data sets per split |
| `dataset` | map-style data sets as sources; a source limited to some of its rows |
| `stream`, `stream_reading` | iterables as sources; an epoch of one, read in shards |
| `loader`, `sampler` | PyTorch loaders that are taken apart, and their samplers, seeded for each epoch |
| `weighted` | a source with class weights |
| `batch`, `collate`, `padding`, `nested` | batches, collating rows into them, nested structures of arrays |
| `gather` | sources that read a batch at once from a file |
| `native` | batches that a framework reads without a conversion to NumPy |
| `order` | the order of rows: batch size, shuffling, epochs |
| `resident` | rows that are all in memory, and their numbers |
| `layout` | the shards of a split |
| `prepared`, `row_files` | rows that were prepared in advance, in memory-mapped files |
| `etl` | preparing them |
| `randomness`, `workers` | reproducible random numbers in user code; worker processes |
| `overlap`, `row_hash` | rows shared by two splits; hashes of rows |
| `feeders`, `memory_feeder`, `tfrecord_feeder` | feeders over arrays in memory and over TFRecord files |
| `post_op` | user functions that feeders apply to each row |
| `tfrecord` | TFRecord files |
"""

from manyfit.data.batch import Batch
from manyfit.data.dataset import DatasetSource, Limited
from manyfit.data.files.hdf5 import Hdf5
from manyfit.data.files.images import ImageFolder, ImagePairs
from manyfit.data.files.lmdb_file import Lmdb, write_lmdb
from manyfit.data.files.table import Table
from manyfit.data.files.text import TextFile
from manyfit.data.order import Order, order_of, steps_of
from manyfit.data.padding import pad
from manyfit.data.source import (
    ArraySource,
    Data,
    NotASource,
    Source,
    Split,
    Splits,
    as_source,
    once,
    once_over,
)
from manyfit.data.stream import IterableSource
from manyfit.data.weighted import ClassWeighted

__all__ = [
    "ArraySource",
    "Batch",
    "ClassWeighted",
    "Data",
    "DatasetSource",
    "Hdf5",
    "ImageFolder",
    "ImagePairs",
    "IterableSource",
    "Limited",
    "Lmdb",
    "NotASource",
    "Order",
    "Source",
    "Split",
    "Splits",
    "Table",
    "TextFile",
    "as_source",
    "once",
    "once_over",
    "order_of",
    "pad",
    "steps_of",
    "write_lmdb",
]
