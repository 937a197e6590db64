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
        self._samples: set[Path] = set()
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

    def write_samples(self, images: Path, texts: Path) -> None:
        """Mirror the images and texts of a run that are not mirrored yet."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        for file in [*sorted(images.glob("*/step-*.png")), *sorted(texts.glob("*/step-*.txt"))]:
            if file not in self._samples:
                self._samples.add(file)
                make = make_image if file.suffix == ".png" else make_text
                value = make(file.parent.name, file.read_bytes())
                step = int(file.stem.removeprefix("step-"))
                self._writer.add_event(Record(step=step, summary=Summary(value=[value])))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write one value."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._writer.add_event(Record(step=step, summary=found))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def make_image(name: str, png: bytes) -> Any:
    """Return an image as TensorBoard shows it."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    width, height = read_size(png)
    image = Summary.Image(encoded_image_string=png, width=width, height=height)
    return Summary.Value(tag=name, image=image)


def make_text(name: str, text: bytes) -> Any:
    """Return a text as TensorBoard shows it, line by line: it reads Markdown, so each line is set as code."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    shown = b"\n".join(b"    " + line for line in text.splitlines())
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    return Summary.Value(
        tag=name,
        metadata=SummaryMetadata(plugin_data=plugin),
        tensor=TensorProto(dtype=DT_STRING, string_val=[shown], tensor_shape=shape),
    )
