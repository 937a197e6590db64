"""What it takes to add a part, counted on the parts that there are: who else has to know one of them."""

import re
from pathlib import Path

import pytest

import manyfit
from manyfit.cli import VERBS
from manyfit.core.dialect_table import ENTRIES
from manyfit.learn.kind import BUILT_IN

PACKAGE = Path(manyfit.__file__).parent
ROOT = PACKAGE.parents[1]


def mentions(pattern, home):
    """The files of the package outside of a home that match a pattern."""
    found = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if re.search(pattern, p.read_text())}
    return {name for name in found if not name.startswith(home)}


BUILT_ON = {"learn.torch": ("learn/functions/", "trainers/"), "learn.functions": ("trainers/", "spec/")}
"""Kinds on which other kinds and doors are built."""


@pytest.mark.parametrize("path", BUILT_IN)
def test_a_kind_is_a_folder_and_a_line(path):
    home = path.removeprefix("manyfit.").rpartition(".")[0].rpartition(".")[0]
    found = mentions(re.escape(f"manyfit.{home}."), home.replace(".", "/"))
    assert {name for name in found if not name.startswith(BUILT_ON.get(home, ()))} == {"learn/kind.py"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.path)
def test_a_dialect_is_a_file_and_an_entry(entry):
    module = entry.path.rpartition(".")[0]
    home = module.removeprefix("manyfit.").replace(".", "/")
    assert mentions(re.escape(module), home) == {"core/dialect_table.py"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_a_file_and_a_line(verb):
    assert (PACKAGE / "cli" / f"{verb.replace('-', '_')}.py").is_file()
    assert not mentions(rf"manyfit\.cli\.{verb}\b|from manyfit\.cli import .*\b{verb}\b", "cli/")


def test_a_stopper_is_a_file():
    """The study of the example names its class; nothing else knows it."""
    files = (ROOT / "examples/10_population").rglob("*.*")
    texts = {path.name: path.read_text() for path in files if path.suffix in (".py", ".yaml")}
    assert [name for name, text in texts.items() if "def decide(" in text] == ["population.py"]
    assert [name for name, text in texts.items() if "population." in text] == ["study.yaml"]
