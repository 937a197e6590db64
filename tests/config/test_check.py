"""Typed parameters: what fits and what does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from manyfit import load_config
from manyfit.core.errors import ConfigError


def build(project, **params):
    config = load_config(project.changed(model={"class": "models.Rich", **params}), project=project.root)
    return config.run.model.build().given


def refused(project, **params):
    with pytest.raises(ConfigError) as error:
        build(project, **params)
    return error.value.problems


def test_a_list_fits_a_tuple(project):
    assert build(project, size=[3, 4])["size"] == (3, 4)


def test_an_int_fits_a_float_and_becomes_one(project):
    found = build(project, rates={"a": 1})["rates"]
    assert found == {"a": 1.0}
    assert isinstance(found["a"], float)


def test_text_fits_an_enum_by_name_or_value(project):
    assert build(project, norm="layer")["norm"].name == "layer"
    assert build(project, norm="layer_norm")["norm"].name == "layer"


def test_keys_become_numbers_where_they_are_meant_to(project):
    assert build(project, by_class={"0": 0.5, "3": 2})["by_class"] == {0: 0.5, 3: 2.0}
    assert refused(project, by_class={"x": 1})[0].path == "model.by_class.x"


def test_a_dataclass_is_a_mapping(project):
    head = build(project, head={"width": 3})["head"]
    assert (type(head).__name__, head.width, head.bias) == ("Head", 3, True)


def test_a_dataclass_can_also_be_named(project):
    assert build(project, head={"class": "models.Head", "width": 4})["head"].width == 4


def test_nested_components(project):
    import torch

    found = build(project, body={"class": "torch.nn.Linear", "in_features": 2, "out_features": 3},
                  blocks=["torch.nn.ReLU", {"_target_": "torch.nn.Dropout", "p": 0.5}])  # fmt: skip
    assert isinstance(found["body"], torch.nn.Linear)
    assert [type(block).__name__ for block in found["blocks"]] == ["ReLU", "Dropout"]


def test_a_component_in_a_parameter_without_annotation(project):
    found = build(project, free=[{"a": {"class": "models.MLP", "hidden": 3}}])["free"]
    assert type(found[0]["a"]).__name__ == "MLP"


def test_a_named_tuple_is_a_list_or_a_mapping_and_nothing_is_converted(project):
    assert build(project, point=[1, 2])["point"] == (1, 2.0)
    assert build(project, point={"x": 1})["point"] == (1, 0.0)
    assert refused(project, point=["3", 2.0])[0].path == "model.point.x"
    assert refused(project, point=[1, 2, 3])[0].path == "model.point.2"


def test_paths_in_unions_and_defaults_are_relative_to_the_project_too(project):
    assert build(project, place="x")["place"] == project.root / "x"
    assert build(project)["folder"] == project.root / "data"
    assert build(project, size_of="x")["size_of"] == project.root / "x"


def test_a_path_is_relative_to_the_project(project):
    assert build(project, file="data/x.csv")["file"] == project.root / "data/x.csv"
    assert build(project, file="/data/x.csv")["file"] == Path("/data/x.csv")


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("size", [1, 2.5], "model.size.1"), ("size", [1], "model.size"), ("size", "12", "model.size"), ("mode", "medium", "model.mode"),
        ("norm", 3, "model.norm"), ("head", {"width": 2.5}, "model.head.width"), ("head", {}, "model.head.width"),
        ("head", 3, "model.head"), ("body", 3, "model.body"), ("body", {"class": "points.Blobs"}, "model.body.class"),
        ("rates", {"a": "x"}, "model.rates.a"), ("flag", 1, "model.flag"), ("flag", "true", "model.flag"), ("file", 3, "model.file"),
        ("blocks", [3], "model.blocks.0"), ("blocks", {"a": 1}, "model.blocks"), ("token", 3, "model.token"),
    ],
)  # fmt: skip
def test_refused(project, name, value, where):
    assert refused(project, **{name: value})[0].path == where


@pytest.mark.parametrize("word", ["class", "type", "_target_"])
def test_three_spellings_of_class(project, word):
    tree = project.changed(model={word: "models.MLP", "hidden": 8})
    assert load_config(tree, project=project.root).fingerprint == load_config(project.run).fingerprint


def test_colon_paths(project):
    tree = project.changed(model={"class": "models:MLP", "hidden": 8})
    assert load_config(tree, project=project.root).fingerprint == load_config(project.run).fingerprint


def test_classes_themselves_can_be_named_from_python(project):
    import sys

    load_config(project.run)
    models = sys.modules["models"]
    tree = project.changed(model={"class": models.MLP, "hidden": 8})
    assert load_config(tree, project=project.root).fingerprint == load_config(project.run).fingerprint


def test_a_function_that_says_what_it_returns_is_a_model(project):
    config = load_config(
        project.changed(model={"class": "models.make_mlp", "hidden": 4}), project=project.root
    )
    assert type(config.run.model.build()).__name__ == "MLP"


def test_a_function_of_the_users_own_is_a_loss(project):
    config = load_config(project.changed(train__loss="models.halved"), project=project.root)
    assert config.run.train.loss.build().__name__ == "halved"


def test_a_torch_function_with_parameters_is_a_loss(project):
    loss = {"class": "torch.nn.functional.cross_entropy", "label_smoothing": 0.1}
    config = load_config(project.changed(train__loss=loss), project=project.root)
    assert config.run.train.loss.build().keywords == {"label_smoothing": 0.1}


def test_a_second_project_with_modules_of_the_same_name(project, tmp_path):
    load_config(project.run)
    other = type(project)(tmp_path / "other")
    other.write(
        "src/models.py",
        "from torch import nn\nclass MLP(nn.Module):\n    def __init__(self, width: int): pass\n",
    )
    other.config(other.changed(model={"class": "models.MLP", "width": 3}))
    assert load_config(other.run).model.width == 3
    assert load_config(project.run).model.hidden == 8


def test_code_of_another_project_is_not_found(project, tmp_path_factory):
    load_config(project.run)
    other = type(project)(tmp_path_factory.mktemp("other"))
    (other.src / "models.py").unlink()
    with pytest.raises(ConfigError, match="there is no module 'models'"):
        load_config(other.run)
    assert str(project.src.resolve()) not in sys.path
    load_config(project.run)
    assert sys.path[0] == str(project.src.resolve())
    assert str(other.src.resolve()) not in sys.path
    sys.path.insert(0, str(other.src.resolve()))
    with pytest.raises(ConfigError, match="there is no module 'models'"):
        load_config(other.run)
    assert str(project.src.resolve()) not in sys.path
    sys.path.remove(str(other.src.resolve()))


def test_a_module_hidden_by_another_of_the_same_name(project):
    project.write("src/json.py", "class Model: pass\n")
    with pytest.raises(ConfigError, match="shadowed by another module of the same name"):
        load_config(project.run, ["model.class=json.Model", "~model.hidden"])


def test_a_class_with_a_parameter_named_type(project):
    project.write(
        "src/typed.py",
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self, type: str): self.kind = type\n",
    )
    config = load_config(project.changed(model={"class": "typed.M", "type": "x"}), project=project.root)
    assert config.run.model.params == {"type": "x"}
