"""Overrides on the command line and from Python."""

import pytest
from tests.config.mistakes import check_mistake, overridden, verbs

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


MISTAKES = [
    overridden(
        "override of a key in another section", ["epochs=3"], "epochs", "did you mean: train.epochs", line=1
    ),
    overridden(
        "override of an unknown key", ["train.epoch=3"], "train.epoch", "did you mean: epochs", line=6
    ),
    overridden(
        "override of an unknown parameter",
        ["-p", "model.hiden", "3"],
        "model.hiden",
        "did you mean: hidden",
        line=5,
    ),
    overridden(
        "override of the wrong type", ["train.epochs=many"], "train.epochs", "a whole number", "'many'"
    ),
    overridden("override that adds what exists", ["+train.epochs=3"], "train.epochs", "omit the `+`", line=7),
    overridden("deletion of nothing", ["~train.epoch"], "train.epoch", "did you mean: train.epochs", line=7),
    overridden("deletion of something required", ["~train.epochs"], "train.epochs", line=6),
    overridden("deletion with a value", ["~train.epochs=3"], "train.epochs"),
    overridden(
        "item beyond the end of a list", ["train.metrics.4=accuracy"], "train.metrics", "list of 1", line=9
    ),
    overridden("key below a number", ["train.epochs.x=1"], "train.epochs", "not a mapping", line=7),
    overridden("endless index", ["train.metrics." + "9" * 5000 + "=x"], "train.metrics", "list of 1", line=9),
    overridden("bytes that are no text", ["project_name=a\udcffb"], "not UTF-8"),
    overridden("empty key", ["train..epochs=1"], "train..epochs"),
]


@verbs
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    check_mistake(mistake, verb, project, cli)


@pytest.mark.parametrize(
    ("key", "instead"),
    [("a.hidden", "m.hidden"), ("chain.hidden", "m.hidden"), ("deep.a.hidden", "m.hidden"), ("short", None),
     ("name.lr", None), ("list.hidden", None), ("missing.hidden", None), ("circle.hidden", None)],
)  # fmt: skip
def test_a_key_below_a_reference_is_overridden_where_it_leads(key, instead):
    root = from_plain({
        "m": {"class": "x", "hidden": 3}, "a": "${m}", "chain": "${a}", "deep": {"a": "${m}"}, "short": 1,
        "word": "adam", "name": "${word}", "list": "run-${m}", "missing": "${nothing}", "circle": "${circle}",
    })  # fmt: skip
    problems = []
    apply(root, pair(key, "4"), problems)
    assert [f"override {instead} instead" in problem.message for problem in problems] == [True] * bool(
        instead
    )
