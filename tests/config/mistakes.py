"""Mistakes planted in a config, and how each of them must be reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

BASE = """\
project_name: test
src_code_path: src
seed: 3
data: {class: points.Blobs, batch_size: 16}
model: {class: models.MLP, hidden: 8}
train:
  epochs: 2
  loss: cross_entropy
  metrics: [accuracy]
  optimizer:
    class: adamw
    lr: 1e-2
export: {metric: val_loss, mode: min}
"""


@dataclass
class Mistake:
    name: str
    replace: tuple[str, str] = ("", "")
    text: str | bytes | None = None
    words: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    says: list[str] = field(default_factory=list)
    line: int | None = None

    @property
    def content(self) -> str | bytes:
        if self.text is not None:
            return self.text
        assert self.replace[0] in BASE
        return BASE.replace(*self.replace, 1) if self.replace[0] else BASE


def swap(name: str, old: str, new: str, line: int, *says: str, **more: Any) -> Mistake:
    return Mistake(name, (old, new), line=line, says=list(says), **more)


def overridden(name: str, words: list[str], *says: str, line: int | None = None) -> Mistake:
    return Mistake(name, words=words, says=list(says), line=line)


verbs = pytest.mark.parametrize("verb", [["config", "check"], ["train"]], ids=["check", "train"])


def check_mistake(mistake, verb, project, cli):
    """It exits with 2, without a traceback and before any data is read.

    Its message holds the file, the line, the key and, where there is one, the right name.
    """
    project.write("runs/a/config.yaml", mistake.content)
    for name, text in mistake.files.items():
        project.write(name, text)
    answer = cli(*verb, "runs/a", *mistake.words)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert answer.out == ""
    for words in [
        "runs/a/config.yaml" if not mistake.words or mistake.line else "command line",
        *mistake.says,
    ]:
        assert words in answer.err
    if mistake.line:
        assert f"runs/a/config.yaml:{mistake.line}" in answer.err
    assert not project.data_was_built
    assert not (project.root / "hacked").exists()
    assert {entry.name for entry in project.run.iterdir()} == {"config.yaml"}
