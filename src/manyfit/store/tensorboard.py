"""TensorBoard as a mirror: its files hold exactly the committed part of the log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from manyfit.core.png import read_size
from manyfit.store.events import Event


def spare_tensorflow() -> None:
    """Keep TensorBoard from importing TensorFlow, which takes seconds and is not needed to write a file."""
    if "tensorflow" not in sys.modules:
        sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))


class TensorBoardMirror:
    """A writer of events with the times of the log. On each start the files are rewritten from the log."""

    def __init__(self, folder: Path, committed: Iterable[Event]) -> None:
        spare_tensorflow()
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = EventFileWriter(str(folder))
        self._images: set[Path] = set()
        self.write(committed)

    def write(self, events: Iterable[Event]) -> None:
        """Mirror committed events."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        for event in events:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in event.values.items()]
            self._writer.add_event(
                Record(wall_time=event.time, step=event.step, summary=Summary(value=values))
            )
        self._writer.flush()

    def add(self, summary: Any) -> None:
        """Write a summary that was created by TensorBoard, such as that of its HParams page."""
        from tensorboard.compat.proto.event_pb2 import Event as Record

        self._writer.add_event(Record(summary=summary))

    def write_images(self, folder: Path) -> None:
        """Mirror the images of a run that are not mirrored yet."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        for file in sorted(folder.glob("*/step-*.png")) if folder.is_dir() else ():
            if file in self._images:
                continue
            self._images.add(file)
            png = file.read_bytes()
            width, height = read_size(png)
            image = Summary.Image(encoded_image_string=png, width=width, height=height)
            step = int(file.stem.removeprefix("step-"))
            values = [Summary.Value(tag=file.parent.name, image=image)]
            self._writer.add_event(Record(step=step, summary=Summary(value=values)))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write one value."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._writer.add_event(Record(step=step, summary=found))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
