"""The grammar of a space: what it offers, what it refuses, and that points can be found again."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.config.study.quantities import count_bytes, seconds
from manyfit.config.study.space import Range, lookup, to_overrides
from manyfit.config.study.space_reader import SpaceReader
from manyfit.config.study.study import load_study
from manyfit.config.tree.expressions import Expression
from manyfit.config.tree.nodes import plain
from manyfit.config.tree.reader import parse_yaml
from manyfit.core.errors import ConfigError
from manyfit.study.search.plan import plan_study
from manyfit.study.search.sampling import Sampler, find_choices
from manyfit.study.work.points import candidate

BASE = {"model.class": "models.MLP", "model.hidden": 8, "model.dropout": 0.0, "train.optimizer.lr": 0.01}


def read(text, problems=None):
    found = problems if problems is not None else []
    space = SpaceReader(list(BASE), found).read(parse_yaml(text, "study.yaml"))
    if problems is None and found:
        raise ConfigError(found)
    return space


def grid(text):
    return [{key: plain(node) for key, node in patch.items()} for patch in read(text).grid(BASE.get)]


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("a.b: [1, 2]", [{"a.b": 1}, {"a.b": 2}]),
        ("{a: [1, 2], b: [x]}", [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]),
        ("a: {linear: [0, 1], points: 3}", [{"a": 0.0}, {"a": 0.5}, {"a": 1.0}]),
        ("a: {linear: [0.1, 0.4], step: 0.1}", [{"a": 0.1}, {"a": 0.2}, {"a": 0.3}, {"a": 0.4}]),
        ("a: {log: [1e-4, 1e-1], points: 4}", [{"a": 1e-4}, {"a": 1e-3}, {"a": 1e-2}, {"a": 1e-1}]),
        ("a: {int: [1, 4]}", [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]),
        ("a: {int: [2, 9], step: 3}", [{"a": 2}, {"a": 5}, {"a": 8}]),
        ("a: {int: [1, 100], log: true, points: 3}", [{"a": 1}, {"a": 10}, {"a": 100}]),
        ("zip: {a: [1, 2], b: [x, y]}", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
        ("zip: [{a: [1, 2], b: [x, y]}, {c: [5, 6]}]", [{"a": a, "b": b, "c": c} for (a, b), c in itertools.product(((1, "x"), (2, "y")), (5, 6))]),
        ("list: [{a: 1}, {b: 2, c: 3}]", [{"a": 1}, {"b": 2, "c": 3}]),
        ("ablate: {a: 0, b: [1, 2]}", [{}, {"a": 0}, {"b": 1}, {"b": 2}]),
        ("o: [{class: sgd, lr: 1}, {class: adam}]", [{"o": {"class": "sgd", "lr": 1}}, {"o": {"class": "adam"}}]),
        ("{a: [1, 2], b: {values: [5, 6], when: {a: 2}}}", [{"a": 1}, {"a": 2, "b": 5}, {"a": 2, "b": 6}]),
        ("{b: {values: [5], when: {a: [2, 3]}}, a: [1, 2]}", [{"a": 1}, {"a": 2, "b": 5}]),  # order does not matter
        ("{b: {values: [5], when: {model.class: models.MLP}}}", [{"b": 5}]),
        ("{b: {values: [5], when: {model.class: models.CNN}}}", [{}]),
        ("{o: [{class: sgd}, {class: adam}], o.m: {values: [1, 2], when: {o.class: sgd}}}", [{"o": {"class": "sgd"}, "o.m": 1}, {"o": {"class": "sgd"}, "o.m": 2}, {"o": {"class": "adam"}}]),
        ("{a: [1, 2, 3], b: [1, 2], constraints: ['a + b <= 3', 'a != 1 or b == 1']}", [{"a": 1, "b": 1}, {"a": 2, "b": 1}]),
    ],
)  # fmt: skip
def test_grids(text, points):
    assert grid(text) == points


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "not a search space"),
        ("{}", "the search space is empty"),
        ("a: 1", "a single value cannot vary"),
        ("a: []", "the list is empty"),
        ("a: {log: [0, 1]}", "must be above 0"),
        ("a: {log: [2, 1]}", "the lower bound must come first"),
        ("a: {linear: [1]}", "a range has two bounds"),
        ("a: {linear: [1, x]}", "a range has two bounds"),
        ("a: {linear: [.nan, 1]}", "a range has two bounds"),
        ("a: {int: [1.5, 2]}", "whole numbers"),
        ("a: {lgo: [1, 2]}", "did you mean: log"),
        ("a: {log: [1, 2], step: 1}", "no step"),
        ("a: {linear: [1, 2], step: 5}", "larger than the range"),
        ("a: {linear: [1, 2], points: 0}", "a whole number above 0"),
        ("a: {int: [1, 2], log: 3}", "true or false"),
        ("a: {values: 3}", "not a list"),
        ("zip: {a: [1], b: [1, 2]}", "different lengths"),
        ("zip: 3", "cannot be zipped"),
        ("list: [1]", "not a list of points"),
        ("ablate: [1]", "not an ablation"),
        ("{a: [1], b: {values: [1], when: 3}}", "not a condition"),
        ("{b: {values: [1], when: {model.hiden: 3}}}", "did you mean: model.hidden"),
        ("{a: {values: [1], when: {b: 1}}, b: {values: [1], when: {a: 1}}}", "circular conditions"),
        ("{a: [1], zip: {a: [2]}}", "already varies"),
        ("{a: [1], constraints: ['__import__(\"os\")']}", "is not allowed"),
        ("{a: [1], constraints: ['a.__class__']}", "no such key"),
        ("{a: [1], constraints: ['a <']}", "cannot be parsed"),
        ("{a: [1], constraints: ['(lambda: 1)()']}", "is not allowed"),
        ("{a: [1], constraints: ['9 ** 9 ** 9 > a']}", "is not allowed"),
        ("{a: [1], constraints: ['[x for x in a]']}", "is not allowed"),
        ("{a: [1], constraints: [3]}", "text, in quotes"),
        ("{seed: [1]}", "seeds are replicates"),
        ("{a..b: [1]}", "not a valid key"),
    ],
)
def test_mistakes(text, says):
    problems = []
    read(text, problems)
    assert any(says in str(problem) and "study.yaml" in str(problem) for problem in problems), problems


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_grid_has_the_product_of_its_axes(sizes):
    text = "{" + ", ".join(f"k{i}: {list(range(size))}" for i, size in enumerate(sizes)) + "}"
    expected = 1
    for size in sizes:
        expected *= size
    found = grid(text)
    assert len(found) == expected == len({tuple(point.items()) for point in found})


@given(st.floats(1e-6, 1e3), st.floats(1.5, 1e4), st.integers(1, 20), st.sampled_from(["linear", "log"]))
def test_the_ends_of_a_range_are_in_its_grid(low, factor, points, kind):
    found = Range(low, low * factor, kind, None, points, kind == "log").grid()
    assert found[0] == pytest.approx(low) and (points == 1 or found[-1] == pytest.approx(low * factor))
    assert len(found) == points and found == sorted(found)


def test_probes_hold_every_option_and_both_ends():
    space = read("{a: [1, 2], b: {values: [5, 6], when: {a: 2}}, c: {log: [1e-3, 1]}}")
    found = [{key: plain(node) for key, node in patch.items()} for patch in space.probes(BASE.get)]
    for key, values in {"a": {1, 2}, "b": {5, 6}, "c": {1e-3, 1.0}}.items():
        assert {point[key] for point in found if key in point} == values
    assert all("b" not in point or point["a"] == 2 for point in found)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a < 3", True), ("a + 1 == 3 and not b == 1", True), ("a in [1, 3]", False), ("1 < a <= 2", True), ("max(a, b) == 5", True), ("-a < 0", True), ("b / a == 2.5", True), ("a % 2 == 0", True), ("c == null", True), ("true", True)],
)  # fmt: skip
def test_expressions(text, value):
    assert Expression(text)({"a": 2, "b": 5, "c": None}.get) is value


@given(st.text(max_size=40))
def test_no_text_does_anything_else_than_be_refused_or_evaluated(text):
    try:
        expression = Expression(text)
    except ValueError:
        return
    try:
        expression(lambda key: 1)
    except (TypeError, ZeroDivisionError, ValueError, OverflowError):
        return


def test_a_value_inside_a_sub_configuration_is_found():
    patch = next(read("{o: [{class: sgd, lr: 0.5}]}").grid(BASE.get))
    assert lookup(patch, "o.lr", BASE.get) == 0.5 and lookup(patch, "o.class", BASE.get) == "sgd"
    assert lookup(patch, "o.momentum", BASE.get) is None and lookup(patch, "model.hidden", BASE.get) == 8
    assert to_overrides(patch)[0].action == "set"


def test_words_for_time_and_size():
    assert [seconds(text) for text in ("90s", "1.5m", "2h", "1d", None)] == [90, 90, 7200, 86400, None]
    assert [count_bytes(text) for text in ("1GiB", "2GB", None)] == [1 << 30, 2 * 10**9, None]


SPACE = {
    "train.optimizer": [{"class": "sgd", "lr": 0.1}, {"class": "adamw", "lr": 0.01}],
    "train.optimizer.momentum": {"linear": [0.0, 0.9], "when": {"train.optimizer.class": "sgd"}},
    "model.hidden": {"int": [2, 64], "log": True},
    "model.dropout": [0.0, 0.5],
    "constraints": ["model.hidden <= 40 or model.dropout > 0"],
}


@pytest.mark.parametrize("method", ["random", "tpe", "qmc", "nsga2"])
def test_samplers_are_pure_functions_and_respect_the_space(lab, method):
    lab.write(space=SPACE, search={"method": method, "trials": 8, "seed": 3})
    study = load_study(lab.folder)
    history, sampler = [], Sampler(study)
    for number in range(12):
        patch = sampler.ask(history, number, 0).patch
        again = Sampler(study).ask(history, number, 0).patch
        values = {key: plain(node) for key, node in patch.items()}
        assert values == {key: plain(node) for key, node in again.items()}
        assert ("train.optimizer.momentum" in values) == (values["train.optimizer"]["class"] == "sgd")
        assert find_choices(study, values) is not None
        from manyfit.study.search.sampling import Observation

        history.append(Observation(values, "finished", float(values["model.hidden"])))


def test_random_points_are_drawn_by_their_numbers(lab):
    lab.write(space=SPACE, search={"method": "random", "trials": 30, "seed": 3})
    found = plan_study(load_study(lab.folder)).candidates
    assert len(found) == 30 == len({item.id for item in found})
    assert all(item.values["model.hidden"] <= 40 or item.values["model.dropout"] > 0 for item in found)
    assert [item.id for item in plan_study(load_study(lab.folder, ["search.trials=12"])).candidates] == [
        item.id for item in found[:12]
    ]
    assert [item.id for item in plan_study(load_study(lab.folder, ["search.seed=4"])).candidates] != [
        item.id for item in found
    ]


def test_a_search_ends_when_the_space_is_used_up(lab):
    lab.write(search={"method": "tpe", "trials": 50, "seeds": 1})
    found = lab.sweep()
    assert len(found.points) == 6  # all there are, each once
    assert any(row[0] == "exhausted" for row in lab.rows("select action from decisions"))


def test_the_name_of_a_point(lab):
    study = load_study(lab.folder)

    def name(values, base=None):
        from manyfit.config.study.space import to_patch
        from manyfit.study.work.points import STUDY

        if base is not None:
            lab.project.config(base)
        return candidate(
            load_study(lab.folder) if base is not None else study, to_patch(values, STUDY), "x"
        ).id

    plainly = name({"train.optimizer.lr": 0.01, "model.hidden": 8})
    assert name({"model.hidden": 8, "train.optimizer.lr": 1e-2}) == plainly  # order and spelling
    assert name({}) == plainly  # the base has these values
    assert name({"train.optimizer.lr": 0.02, "model.hidden": 8}) != plainly
    changed = lab.project.changed
    assert name({}, changed(train__epochs=99)) == plainly  # a budget is not identity
    assert name({}, changed(seed=9)) == plainly  # nor is the seed: it is part of a trial's name
    assert (
        name({}, changed(model={"class": "models.MLP", "hidden": 8, "dropout": 0.0})) != plainly
    )  # given explicitly
    assert name({}, changed(data__batch_size=8)) != plainly
