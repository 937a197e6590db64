"""What counts as the user's code, and when it has changed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from manyfit.core.source_code import dump_tree, hash_source

CODE = """
import torch
from torch import nn

SIZES: dict[str, int] = {"a": 1, **{}}


class Net(nn.Module, metaclass=type):
    def __init__(self, *sizes, bias=True, **rest) -> None:
        super().__init__()
        self.sizes = [size for size in sizes if size]

    @property
    def name(self):
        return f"{self.sizes!r:>10} of {len(self.sizes)} {{}}"

    async def wait(self):
        async with self as other, other:
            await other
        return lambda x=1, /, *, y=None: (yield x)


def choose(value):
    match value:
        case {"a": [first, *_]} | Net(sizes=first):
            return first
        case _:
            pass
    try:
        return value[1:, ..., ::2]
    except (ValueError, TypeError) as error:
        raise RuntimeError from error
    finally:
        del value
"""
KNOWN = "84df4269f5139d5ccfb91d0e67589a272d1b32ae7e08bf0d567d1675da98cf50"


def test_a_hash_is_the_same_on_every_version_of_python(tmp_path):
    """This one was taken on Python 3.11."""
    file = tmp_path / "code.py"
    file.write_text(CODE)
    assert hash_source(file) == KNOWN


def test_comments_docstrings_and_blank_lines_do_not_count(tmp_path):
    files = [tmp_path / name for name in ("a.py", "b.py", "c.py")]
    files[0].write_text("def f(x):\n    return x + 1\n")
    files[1].write_text('"""Adds."""\n\n\ndef f(x):\n    """Add one."""\n    return (x + 1)  # one\n')
    files[2].write_text("def f(x):\n    return x + 2\n")
    assert hash_source(files[0]) == hash_source(files[1]) != hash_source(files[2])


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="this is how Python 3.11 writes trees")
def test_trees_are_written_as_python_3_11_does():
    for file in sorted(Path(ast.__file__).parent.glob("*.py"))[:60]:
        tree = ast.parse(file.read_bytes())
        assert dump_tree(tree) == ast.dump(tree), file
