"""Overrides on the command line and from Python."""

import pytest

from manyfit.config.tree.nodes import from_plain, plain
from manyfit.config.tree.overrides import apply, collect, pair

TREE = {"a": {"b": 1, "c": [1, {"d": 2}]}, "text": "adamw", "none": None}


def changed(*overrides):
    problems = []
    tree = from_plain(TREE)
    for override in collect(overrides, problems):
        tree = apply(tree, override, problems)
    assert not problems, problems
    return plain(tree)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("a.b=2", "a.b", 2), ("a.b=1e-3", "a.b", 0.001), ("a.b='2'", "a.b", "2"), ("a.b=null", "a.b", None), ("a.b=", "a.b", None),
        ("a.b=[1, x]", "a.b", [1, "x"]), ("a.c.0=5", "a.c.0", 5), ("a.c[1].d=5", "a.c.1.d", 5), ("a.new=1", "a.new", 1),
        ("a.b={x: 1}", "a.b", {"x": 1}), ("+a.z.y=1", "a.z.y", 1), ("none.x=1", "none.x", 1), ("a.b=x=y", "a.b", "x=y"),
        ("text.lr=1", "text", {"class": "adamw", "lr": 1}), ("+a.c=3", "a.c", [1, {"d": 2}, 3]), ("a.b=a: b: c", "a.b", "a: b: c"),
        (pair("a.b", "2"), "a.b", 2), (pair("+a.n", "-1"), "a.n", -1), ("a.b=${x}", "a.b", "${x}"),
    ],
)  # fmt: skip
def test_set_and_add(override, path, value):
    found = changed(override)
    for step in path.split("."):
        found = found[int(step)] if isinstance(found, list) else found[step]
    assert found == value


def test_a_mapping_replaces_and_is_merged_with_a_plus():
    assert changed("a={b: 2}")["a"] == {"b": 2}
    assert changed("+a={b: 2}")["a"] == {"b": 2, "c": [1, {"d": 2}]}


@pytest.mark.parametrize(
    ("override", "left"), [("~a.b", {"c": [1, {"d": 2}]}), ("~a.c.0", {"b": 1, "c": [{"d": 2}]})]
)
def test_delete(override, left):
    assert changed(override)["a"] == left


def test_later_ones_win():
    assert changed("a.b=2", pair("a.b", "3"), "a.b=4")["a"]["b"] == 4


def test_the_original_tree_is_untouched():
    tree = from_plain(TREE)
    apply(tree, collect(["a.c.0=9"], [])[0], [])
    assert plain(tree) == TREE


def test_from_a_mapping():
    problems = []
    tree = from_plain(TREE)
    for override in collect({"a.b": [1, 2], "a.x": {"y": 1}}, problems):
        tree = apply(tree, override, problems)
    assert plain(tree)["a"]["b"] == [1, 2]


def test_order_on_the_command_line(project, cli):
    import json

    answer = cli(
        "config",
        "show",
        "runs/a",
        "--json",
        "train.epochs=5",
        "-p",
        "train.epochs",
        "6",
        "model.hidden=${train.epochs}",
    )
    values = json.loads(answer.out)["values"]
    assert values["train.epochs"]["value"] == 6
    assert values["model.hidden"]["value"] == 6
    assert values["train.epochs"]["origin"] == "command line (-p train.epochs 6)"


def test_p_without_a_value(project, cli):
    answer = cli("config", "show", "runs/a", "-p", "train.epochs")
    assert answer.code == 2
    assert "-p requires a key and a value" in answer.err
