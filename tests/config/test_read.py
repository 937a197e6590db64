"""YAML text to tree and back."""

import math

import pytest
from tests.config.mistakes import BASE, Mistake, check_mistake, swap, verbs

from manyfit.config.tree.nodes import plain
from manyfit.config.tree.reader import dump, parse_yaml
from manyfit.core.errors import ConfigError


def read(text):
    return plain(parse_yaml(text, "f.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E5", 1e5), (".5", 0.5), ("1.", 1.0), ("-2", -2), ("10_000", 10_000), ("010", 10), ("0x1F", 31),
        ("0o17", 15), ("on", "on"), ("yes", "yes"), ("no", "no"), ("true", True), ("False", False), ("null", None), ("~", None),
        ("", None), (".inf", math.inf), ("-.inf", -math.inf), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("'1e-3'", "1e-3"), ('"true"', "true"), ("1e-3x", "1e-3x"), ("!!str 5", "5"), ("!!float 5", 5.0), ("inf", "inf"),
    ],
)  # fmt: skip
def test_scalars(text, value):
    found = read(f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_lines_are_kept():
    node = parse_yaml("a: 1\nb:\n  c: [x,\n    y]\n", "f.yaml")
    assert str(node.items["b"].items["c"].items[1].origin) == "f.yaml:4"
    assert str(node.key_origin("b")) == "f.yaml:2"


def test_keys_are_text_as_written():
    assert read("on: 1\n3: 2\nnull: 3\n") == {"on": 1, "3": 2, "null": 3}


def test_aliases_and_merge_keys():
    text = "base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\nlist: [*base]\n"
    assert read(text) == {"base": {"a": 1, "b": 2}, "other": {"a": 1, "b": 3}, "list": [{"a": 1, "b": 2}]}


def test_a_byte_order_mark_is_no_problem(tmp_path):
    from manyfit.config.tree.reader import read_file

    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert plain(read_file(tmp_path / "f.yaml")) == {"a": 1}


@pytest.mark.parametrize("text", ["a: 1e999", f"a: {'9' * 5000}", "? [a]\n: 1", "a: &x [*x]", "<<: 1"])
def test_refused(text):
    with pytest.raises(ConfigError, match=r"f\.yaml:1"):
        read(text)


def test_dump_quotes_what_would_be_read_otherwise():
    assert dump({"a": ["1e-3", "on", 1e-3]}) == "a:\n- '1e-3'\n- on\n- 0.001\n"


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)

MISTAKES = [
    swap("reference without quotes inside braces", "hidden: 8}", "hidden: ${seed}}", 5, "needs quotes"),
    swap("duplicate key", "seed: 3", "seed: 3\nseed: 4", 4, "seed", "line 3"),
    swap("tab", "  epochs: 2", "\tepochs: 2", 7, "tab"),
    swap("unclosed bracket", "metrics: [accuracy]", "metrics: [accuracy", 10, "not valid YAML"),
    swap("tag", "seed: 3", "seed: !!python/object/apply:os.system ['touch hacked']", 3, "tag"),
    swap("unknown anchor", "seed: 3", "seed: *three", 3, "three"),
    swap("second document", "seed: 3", "---\nseed: 3", 3, "second document"),
    Mistake("not UTF-8", text=BASE.encode().replace(b"test", b"t\xff\xfest"), line=1, says=["UTF-8", "0xff"]),
    Mistake("empty file", text="", line=1, says=["empty"]),
    Mistake("only a comment", text="# nothing\n", line=1, says=["empty"]),
    Mistake("a list", text="- a\n- b\n", line=1, says=["mapping"]),
    Mistake("alias bomb", text=BOMB, line=6, says=["too many values"]),
    Mistake("10 MB file", text="a: " + "x" * 10_000_000, line=1, says=["too large"]),
    Mistake("nested too deeply", text="a: " + "[" * 5_000, line=1, says=["too deeply"]),
    Mistake("binary", text=bytes(range(256)), line=2, says=["UTF-8"]),
]


@verbs
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    check_mistake(mistake, verb, project, cli)
