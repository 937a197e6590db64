"""Files over files: extend, delete, append, inherit."""

import pytest
from tests.config.mistakes import BASE, Mistake, check_mistake, swap, verbs

from manyfit.config.tree.layers import Reader, inherit
from manyfit.config.tree.nodes import plain


@pytest.fixture
def read(project):
    def go(name, **files):
        for file, text in files.items():
            project.write(file.replace("__", "/") + ".yaml", text)
        problems = []
        tree = Reader(problems).read(project.root / name)
        tree = inherit(tree, problems) if tree else tree
        return (plain(tree) if tree else None), problems

    return go


def test_mappings_merge_and_lists_replace(read):
    tree, _ = read("b.yaml", a="m: {x: 1, y: [1, 2]}\nn: 1\n", b="extend: a.yaml\nm: {y: [3]}\n")
    assert tree == {"m": {"x": 1, "y": [3]}, "n": 1}


def test_later_files_are_stronger(read):
    tree, _ = read("c.yaml", a="x: 1\ny: 1\nz: 1\n", b="y: 2\nz: 2\n", c="extend: [a.yaml, b.yaml]\nz: 3\n")
    assert tree == {"x": 1, "y": 2, "z": 3}


def test_patterns_in_sorted_order(read):
    tree, _ = read("main.yaml", parts__2="x: 2\n", parts__1="x: 1\ny: 1\n", main="extend: 'parts/*.yaml'\n")
    assert tree == {"x": 2, "y": 1}


def test_relative_to_the_file_and_each_once(read):
    tree, problems = read(
        "sub/d.yaml", base="x: [1]\n", b="extend: base.yaml\nx: [2]\n", c="extend: base.yaml\ny: 1\n",
        sub__d="extend: [../b.yaml, ../c.yaml]\n",
    )  # fmt: skip
    assert not problems
    assert tree == {"x": [2], "y": 1}, "base.yaml, which c.yaml extends too, must not undo what b.yaml says"


def test_a_circle_of_files_is_safe(read):
    tree, problems = read("a.yaml", a="extend: b.yaml\nx: 1\n", b="extend: a.yaml\nx: 2\ny: 2\n")
    assert (tree, problems) == ({"x": 1, "y": 2}, [])


def test_delete_an_inherited_key(read):
    tree, _ = read("b.yaml", a="m: {x: 1, y: 2}\n", b="extend: a.yaml\nm:\n  x: ${__del__}\n")
    assert tree == {"m": {"y": 2}}


def test_append_to_an_inherited_list(read):
    tree, _ = read("b.yaml", a="m: [1, 2]\n", b="extend: a.yaml\nm:\n  ${__extend__}: [3]\n")
    assert tree == {"m": [1, 2, 3]}


def test_append_to_nothing_is_the_list(read):
    assert read("b.yaml", b="m:\n  ${__extend__}: [3]\n")[0] == {"m": [3]}


def test_inherit_from_another_mapping(read):
    text = "train: {batch: 8, shuffle: true}\neval:\n  ${__inherit__}: train\n  shuffle: false\n"
    assert read("a.yaml", a=text)[0]["eval"] == {"batch": 8, "shuffle": False}


def test_inherit_sees_what_was_laid_over_its_source(read):
    tree, _ = read(
        "b.yaml",
        a="train: {batch: 8}\neval:\n  ${__inherit__}: train\n",
        b="extend: a.yaml\ntrain: {batch: 9}\n",
    )
    assert tree["eval"] == {"batch": 9}


def test_inherit_in_chains_and_lists(read):
    text = "a: {x: 1}\nb:\n  ${__inherit__}: a\n  y: 2\nc:\n  - ${__inherit__}: b\n    z: 3\n"
    assert read("a.yaml", a=text)[0]["c"] == [{"x": 1, "y": 2, "z": 3}]


def test_inherit_in_a_circle(read):
    _, problems = read("a.yaml", a="a:\n  ${__inherit__}: b\nb:\n  ${__inherit__}: a\n")
    assert any("circular" in problem.message for problem in problems)


def test_errors_of_all_files_come_together(read):
    _, problems = read("c.yaml", a="x: [1\n", b="y: 1\ny: 2\n", c="extend: [a.yaml, b.yaml, d.yaml]\n")
    assert [problem.origin.file for problem in problems] == ["c.yaml", "a.yaml", "b.yaml"]


MISTAKES = [
    swap(
        "extend of a missing file",
        "seed: 3",
        "seed: 3\nextend: ../../bsae.yaml",
        4,
        "extend",
        "did you mean: ../../base.yaml",
        files={"base.yaml": "seed: 4\n"},
    ),
    swap(
        "extend of a pattern without matches", "seed: 3", "seed: 3\nextend: ['*.yml']", 4, "extend", "'*.yml'"
    ),
    swap("extend of a number", "seed: 3", "seed: 3\nextend: 5", 4, "extend"),
    swap(
        "inherit from nothing",
        "epochs: 2",
        "epochs: 2\n  ${__inherit__}: dta",
        8,
        "train",
        "did you mean: data",
    ),
    Mistake(
        "append to something that is no list",
        text="extend: ../../base.yaml\ntrain:\n  epochs:\n    ${__extend__}: [1]\n",
        files={"base.yaml": BASE},
        line=4,
        says=["train.epochs", "a list"],
    ),
    swap(
        "deletion of nothing in a file",
        "export: {metric: val_loss, mode: min}",
        'export: {metrik: "${__del__}"}',
        13,
        "export.metrik",
        "nothing to delete",
    ),
    Mistake(
        "mappings that inherit too much",
        line=None,
        says=["after inheritance is expanded"],
        text=BASE
        + "a0: {x: 1}\n"
        + "".join(
            f"a{i}:\n" + "".join(f"  k{k}:\n    ${{__inherit__}}: a{i - 1}\n" for k in range(10))
            for i in range(1, 9)
        ),
    ),
]


@verbs
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    check_mistake(mistake, verb, project, cli)


def test_problems_of_extended_files_name_those_files(project, cli):
    project.write("shared/base.yaml", BASE.replace("epochs: 2", "epoch: 2"))
    project.write("runs/a/config.yaml", "extend: ../../shared/base.yaml\nmodel: {hiden: 3}\n")
    answer = cli("config", "check", "runs/a")
    assert "shared/base.yaml:7: train.epoch: unknown key" in answer.err
    assert "runs/a/config.yaml:2: model.hiden: unknown key" in answer.err
