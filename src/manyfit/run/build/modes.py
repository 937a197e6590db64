"""The threads and the precision with which a run computes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from manyfit.config.schema.run import Train

log = logging.getLogger("manyfit")


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Use this number of threads, or the current one; yield how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    if count is not None:
        tensorflow_threads(count)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextmanager
def round_products(precision: str) -> Iterator[None]:
    """Let a GPU round the inputs of products in float32 as the precision of a run says."""
    before = torch.get_float32_matmul_precision()
    if precision == "tf32" and torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def compute_as(train: Train) -> Iterator[int]:
    """Compute with the threads and the precision of a config; yield the number of threads."""
    with threads(train.threads) as count, round_products(train.precision):
        yield count


def tensorflow_threads(count: int) -> None:
    """Set the number of threads of TensorFlow, whether it is already imported or not."""
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ[name] = str(count)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    threading = tensorflow.config.threading
    if threading.get_intra_op_parallelism_threads() == count:
        return
    try:
        threading.set_intra_op_parallelism_threads(count)
        threading.set_inter_op_parallelism_threads(count)
    except RuntimeError:
        log.info("TensorFlow is already initialized in this process: its number of threads stays unchanged")
