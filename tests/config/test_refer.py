"""References."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.config.mistakes import BASE, Mistake, check_mistake, swap, verbs

from manyfit.config.tree.nodes import from_plain, plain
from manyfit.config.tree.references import Resolver, escape, unescape_references


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


MISTAKES = [
    swap(
        "reference to nothing",
        "hidden: 8",
        "hidden: '${data.batch_sise}'",
        5,
        "model.hidden",
        "did you mean: data.batch_size",
    ),
    swap("reference to itself", "seed: 3", "seed: ${seed}", 3, "seed", "circular"),
    Mistake(
        "reference cycle",
        text=BASE.replace("seed: 3", "seed: ${model.hidden}").replace("hidden: 8", "hidden: '${seed}'"),
        line=5,
        says=["seed", "circular", "model.hidden"],
    ),
    swap(
        "unclosed reference",
        "project_name: test",
        "project_name: ${seed",
        1,
        "project_name",
        "unclosed reference",
    ),
    swap(
        "unknown resolver",
        "project_name: test",
        "project_name: ${oc.evn:HOME}",
        1,
        "project_name",
        "did you mean: oc.env",
    ),
    swap(
        "missing environment variable",
        "project_name: test",
        "project_name: ${oc.env:MANYFIT_NOT_SET}",
        1,
        "project_name",
        "MANYFIT_NOT_SET",
    ),
    swap(
        "missing secret",
        "project_name: test",
        "project_name: ${secret:MANYFIT_NOT_SET}",
        1,
        "project_name",
        "MANYFIT_NOT_SET",
    ),
    swap(
        "mapping inside text",
        "project_name: test",
        "project_name: x-${train}",
        1,
        "project_name",
        "into text",
    ),
    swap(
        "secret where none can stand", "metric: val_loss", "metric: '${secret:HOME}'", 13, "export", "secret"
    ),
    swap(
        "reference to nothing where a list is meant",
        "metrics: [accuracy]",
        "metrics: ${metrics}",
        9,
        "train.metrics",
    ),
    swap(
        "reference to nothing where a section is meant",
        "{metric: val_loss, mode: min}",
        "${exports}",
        13,
        "export",
    ),
    swap(
        "reference to nothing deep in free data",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, free: {a: ['${x.y}']}",
        5,
        "model.free.a.0",
    ),
    swap(
        "select of itself",
        "project_name: test",
        "project_name: ${oc.select:project_name}",
        1,
        "project_name",
        "circular",
    ),
    Mistake(
        "endless chain of references",
        line=1,
        says=["project_name", "more than"],
        text=BASE.replace("name: test", "name: ${x0}")
        + "".join(f"x{i}: ${{x{i + 1}}}\n" for i in range(400))
        + "x400: 1\n",
    ),
    swap(
        "secret that is also plain",
        "project_name: test",
        "project_name: ${secret:HOME}-${oc.env:HOME}",
        1,
        "project_name",
        "HOME",
    ),
]


@verbs
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    check_mistake(mistake, verb, project, cli)


def test_an_environment_variable_that_is_no_text(project, cli, monkeypatch):
    monkeypatch.setenv("MANYFIT_ODD", "a\udcffb")
    for words in ("project_name=${oc.env:MANYFIT_ODD}", "project_name=${secret:MANYFIT_ODD}"):
        answer = cli("config", "show", "runs/a", words)
        assert answer.code == 2
        assert "is not UTF-8" in answer.err


@given(st.text(alphabet="\\${}a.: ", max_size=12))
def test_escaped_text_is_read_back(text):
    assert unescape_references(escape(text)) == text
