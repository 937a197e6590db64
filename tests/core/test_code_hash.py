"""Hashes of user code: they change with everything that the code refers to, and with nothing else."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from manyfit.core.code_hash import hash_code

MAIN = """
import numpy as np
from helpers import scale
import tables

FACTOR = 2
TABLE = np.arange(3000)


def plain(x):
    return x * FACTOR


def unused(x):
    return x - 1


class Base:
    def base(self):
        return 1


class Spec(Base):
    '''A docstring.'''

    limit = 3

    def __init__(self, size=4):
        self.size = size

    def row(self, x):
        # a comment
        from inner.deep import shift

        return shift(scale(plain(x))) + tables.LOOKUP[0] + TABLE[0] + self.limit
"""
FILES = {
    "mine.py": MAIN,
    "helpers.py": "from others import more\n\ndef scale(x):\n    return more(x)\n",
    "others.py": "def more(x):\n    return x\n",
    "tables.py": "LOOKUP = [1, 2]\n",
    "inner/__init__.py": "",
    "inner/deep.py": "def shift(x):\n    return x + 1\n",
}


@pytest.fixture
def hashed(tmp_path, monkeypatch):
    """Write the files with changes, and return the hash of an object of the class."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(*changes, **arguments):
        for name, text in FILES.items():
            for file, old, new in changes:
                assert file != name or old in text
                text = text.replace(old, new) if file == name else text
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        names = ("mine", "helpers", "others", "tables", "inner", "inner.deep")
        for name in names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        import linecache

        linecache.checkcache()
        found = hash_code(importlib.import_module("mine").Spec(**arguments))
        for name in names:
            sys.modules.pop(name, None)
        return found

    return make


def test_the_same_code_has_the_same_hash(hashed):
    known = hashed()
    assert hashed() == known
    assert hashed(("mine.py", "# a comment", "# another")) == known
    assert hashed(("mine.py", "A docstring.", "Another.")) == known
    assert hashed(("mine.py", "return x - 1", "return x - 2")) == known


@pytest.mark.parametrize(
    "change",
    [
        ("mine.py", "+ self.limit", "- self.limit"),
        ("mine.py", "limit = 3", "limit = 4"),
        ("mine.py", "return x * FACTOR", "return x + FACTOR"),
        ("mine.py", "FACTOR = 2", "FACTOR = 3"),
        ("mine.py", "np.arange(3000)", "np.append(np.arange(2999), 7)"),
        ("mine.py", "return 1", "return 2"),
        ("mine.py", "size=4", "size=5"),
        ("helpers.py", "return more(x)", "return more(x) + 1"),
        ("others.py", "return x", "return -x"),
        ("tables.py", "[1, 2]", "[2, 2]"),
        ("inner/deep.py", "x + 1", "x + 2"),
    ],
)
def test_a_change_of_anything_that_it_refers_to_changes_the_hash(hashed, change):
    assert hashed(change) != hashed()


def test_arguments_and_large_arrays_count(hashed):
    big = np.zeros(5000)
    known = hashed(size=big)
    other = big.copy()
    other[2500] = 1e-9
    assert hashed(size=big) == known != hashed(size=other)
    assert hashed(size={"b": 1, "a": (2, {3})}) == hashed(size={"a": (2, {3}), "b": 1}) != known


def test_no_module_is_imported_for_a_hash(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lazy.py").write_text("def f():\n    import never.there, heavy_one\n    return heavy_one.x\n")
    (tmp_path / "heavy_one.py").write_text("raise SystemExit('imported')\n")
    importlib.invalidate_caches()
    known = hash_code(importlib.import_module("lazy").f)
    (tmp_path / "heavy_one.py").write_text("raise SystemExit('imported, again')\n")
    assert hash_code(importlib.import_module("lazy").f) != known


def test_names_of_attributes_are_not_globals():
    """Pickling by value keeps the globals that a function loads: the hash must not depend on others."""
    namespace = {"values": np}
    exec("def draw():\n    return values.random.rand()\n", namespace)
    namespace["draw"].__module__ = __name__
    before = hash_code(namespace["draw"])
    namespace["random"] = "something else"
    assert hash_code(namespace["draw"]) == before
    namespace["values"] = 1
    assert hash_code(namespace["draw"]) != before
