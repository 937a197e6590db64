"""Progress of ETL on a terminal: all rows, and those of each worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from manyfit.data.etl.run import Report


@contextmanager
def show_etl(stream: TextIO | None) -> Iterator[Report]:
    """Show progress bars on a terminal; yield the function that moves them."""
    if stream is None or not stream.isatty():
        yield lambda worker, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bars:
        whole = bars.add_task("preparing rows", total=None)
        tasks: dict[int, object] = {}
        before = 0

        def move(worker: int, done: int, total: int) -> None:
            nonlocal before
            bars.update(whole, completed=done, total=total)
            if worker:
                if worker not in tasks:
                    tasks[worker] = bars.add_task(f"  worker {len(tasks) + 1}", total=None)
                bars.advance(tasks[worker], done - before)  # type: ignore[arg-type]
            before = done

        yield move
