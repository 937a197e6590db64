"""References."""

import pytest

from manyfit.config.tree.nodes import from_plain, plain
from manyfit.config.tree.references import Resolver, escape


def resolve(tree, environ=None):
    resolver = Resolver(from_plain(tree), environ or {})
    result = resolver.resolve()
    return plain(result), resolver


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${n}", 3), ("${m.x}", 1.5), ("a-${n}-b", "a-3-b"), ("${list.1}", "q"), ("${list[0]}", "p"), ("${m}", {"x": 1.5, "y": 1.5}),
        ("${m.y}", 1.5), ("${${name}}", 3), (r"\${n}", "${n}"), (r"\\${n}", "\\3"), ("${oc.env:HOME}", "/h"), ("${flag}", True),
        ("${oc.env:NOPE,7}", "7"), ("${oc.decode:${oc.env:NUM}}", 12), ("${oc.select:nope}", None), ("${oc.select:nope,5}", "5"),
        ("$n {n}", "$n {n}"), ("${ n }", 3), ("x${flag}", "xtrue"), ("${.n}", 3),
    ],
)  # fmt: skip
def test_values(text, value):
    tree = {"n": 3, "name": "n", "flag": True, "m": {"x": 1.5, "y": "${.x}"}, "list": ["p", "q"], "it": text}
    found, resolver = resolve(tree, {"HOME": "/h", "NUM": "12"})
    assert not resolver.problems
    assert found["it"] == value


def test_environment_is_recorded_and_secrets_are_not(monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2-hunter2")
    import os

    found, resolver = resolve(
        {"a": "${oc.env:HOME}", "b": "x:${secret:TOKEN}@y"}, {**os.environ, "HOME": "/h"}
    )
    assert resolver.environment == {"HOME": "/h"}
    assert found["b"] == "x:${secret:TOKEN}@y"


def test_a_chain_and_a_mapping_with_references_inside():
    found, _ = resolve({"a": "${b}", "b": "${c}", "c": {"d": "${e}"}, "e": 1})
    assert found["a"] == {"d": 1}


@pytest.mark.parametrize(
    "tree",
    [
        {"a": "${a}"}, {"a": "${b}", "b": "${a}"}, {"a": {"b": "${a}"}}, {"a": {"b": "${a.c}", "c": "${a.b}"}},
        {"a": ["${a}"]}, {"a": "${a.b}"}, {"a": "x${b}", "b": "${a}y"}, {"a": "${${a}}"},
    ],
)  # fmt: skip
def test_circles_end(tree):
    _, resolver = resolve(tree)
    assert resolver.problems


def test_one_bad_reference_does_not_hide_another():
    _, resolver = resolve({"a": "${x}", "b": "${y}", "c": "${a}"})
    assert [problem.path for problem in resolver.problems] == ["a", "b"]


def test_growth_is_bounded():
    tree = {"a0": ["x"] * 10} | {f"a{i}": [f"${{a{i - 1}}}"] * 10 for i in range(1, 9)}
    _, resolver = resolve(tree)
    assert any("more than" in problem.message for problem in resolver.problems)
    tree = {"a0": "x" * 100} | {f"a{i}": f"${{a{i - 1}}}" * 10 for i in range(1, 9)}
    _, resolver = resolve(tree)
    assert any("longer than" in problem.message for problem in resolver.problems)


@pytest.mark.parametrize("text", ["${n}", r"\${n}", r"\\${n}", "a${", "\\", "$", "${${"])
def test_escape(text):
    found, resolver = resolve({"n": 3, "a": escape(text)})
    assert not resolver.problems
    assert found["a"] == text


def test_an_override_reaches_every_reference(project, cli):
    import json

    project.config(project.changed(model__hidden="${data.batch_size}", seed="${model.hidden}"))
    answer = cli("config", "show", "runs/a", "--json", "data.batch_size=11")
    values = json.loads(answer.out)["values"]
    assert values["model.hidden"]["value"] == values["seed"]["value"] == 11


def test_a_default_can_be_referred_to(project):
    from manyfit import load_config

    config = load_config(project.run, ["model.hidden=${data.rows}", "project_name=${export.metric}"])
    assert config.model.hidden == 64
    assert config.project_name == "val_loss"
