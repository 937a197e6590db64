"""Typed parameters: what fits and what does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.config.mistakes import BASE, check_mistake, swap, verbs

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


MISTAKES = [
    # keys, at each depth
    swap("typo in a parameter", "hidden: 8", "hiden: 8", 5, "model.hiden", "did you mean: hidden"),
    swap(
        "typo in a nested parameter",
        "lr: 1e-2",
        "learning_rate: 1e-2",
        12,
        "train.optimizer.learning_rate",
        "one of lr",
    ),
    swap(
        "typo deep inside a nested component",
        "model: {class: models.MLP, hidden: 8}",
        "model: {class: models.Rich, body: {class: torch.nn.Linear, in_feature: 2, out_features: 2}}",
        5,
        "model.body.in_feature",
        "did you mean: in_features",
    ),
    swap(
        "typo in an item of a list",
        "metrics: [accuracy]",
        "metrics: [accuracy, {class: top_k_accuracy, kk: 3}]",
        9,
        "train.metrics.1.kk",
    ),
    swap(
        "parameter that manyfit supplies", "lr: 1e-2", "params: []", 12, "train.optimizer.params", "supplied"
    ),
    # types
    swap(
        "fraction for a whole number", "hidden: 8", "hidden: 2.5", 5, "model.hidden", "a whole number", "2.5"
    ),
    swap("text for a number", "lr: 1e-2", "lr: fast", 12, "train.optimizer.lr", "a number", "'fast'"),
    swap("number for text", "project_name: test", "project_name: 5", 1, "project_name", "text", "5"),
    swap(
        "text for a flag",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, flag: yes",
        5,
        "model.flag",
        "true or false",
        "'yes'",
    ),
    swap("null for a number", "epochs: 2", "epochs:", 7, "train.epochs", "a whole number", "null"),
    swap("mapping for a number", "epochs: 2", "epochs: {a: 1}", 7, "train.epochs", "a whole number"),
    swap("list of the wrong length", "lr: 1e-2", "betas: [0.9]", 12, "train.optimizer.betas", "2 items"),
    swap("wrong item in a tuple", "lr: 1e-2", "betas: [0.9, x]", 12, "train.optimizer.betas.1", "'x'"),
    swap(
        "not one of the choices",
        "mode: min",
        "mode: mim",
        13,
        "export.mode",
        "'min', 'max'",
        "did you mean: min",
    ),
    swap(
        "not a member of an enum",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, norm: bach",
        5,
        "model.norm",
        "did you mean: batch",
    ),
    swap("negative epochs", "epochs: 2", "epochs: -2", 7, "train.epochs", "greater than 0", "-2"),
    swap("negative seed", "seed: 3", "seed: -3", 3, "seed", "greater than or equal to 0"),
    swap(
        "wrong type in a dataclass",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, head: {width: wide}",
        5,
        "model.head.width",
        "a whole number",
    ),
    swap(
        "typo in a dataclass",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, head: {widht: 3}",
        5,
        "model.head.widht",
        "did you mean: width",
    ),
    # missing
    swap(
        "missing parameter of a class",
        "class: models.MLP, hidden: 8",
        "class: torch.nn.Linear, in_features: 64",
        5,
        "model.out_features",
        "a whole number",
    ),
    swap("mapping without a class", "{class: models.MLP, hidden: 8}", "{hidden: 8}", 5, "model", "class"),
    # classes
    swap("unknown class", "models.MLP", "models.MPL", 5, "model.class", "did you mean: models.MLP"),
    swap("unknown module", "models.MLP", "modells.MLP", 5, "model.class", "did you mean: models"),
    swap("unknown short name", "adamw", "sdg", 11, "train.optimizer.class", "did you mean: sgd"),
    swap("class path that is no path", "models.MLP", "'models/MLP.py'", 5, "model.class"),
    swap("class of the wrong role", "models.MLP", "models.NotAModel", 5, "model.class", "torch.nn.Module"),
    swap(
        "optimizer where a model is needed",
        "models.MLP, hidden: 8",
        "torch.optim.SGD",
        5,
        "model.class",
        "torch.nn.Module",
    ),
    swap(
        "function where a model is needed",
        "models.MLP",
        "models.unannotated",
        5,
        "model.class",
        "-> torch.nn.Module",
    ),
    swap(
        "os.system as a model",
        "models.MLP, hidden: 8",
        "os.system, command: 'touch hacked'",
        5,
        "model.class",
        "system",
    ),
    swap("os.system as a loss", "loss: cross_entropy", "loss: os.system", 8, "train.loss", "system"),
    swap("os.rename as a loss", "loss: cross_entropy", "loss: os.rename", 8, "train.loss", "rename"),
    swap(
        "subprocess.Popen in a free parameter",
        "hidden: 8}",
        "hidden: 8}\nextra: {class: subprocess.Popen, args: [touch, hacked]}",
        6,
        "extra",
        "dataclass",
    ),
    swap(
        "eval in a parameter without annotation",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, free: {class: builtins.eval}",
        5,
        "model.free",
    ),
    swap(
        "Popen in a parameter without annotation",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, free: {class: subprocess.Popen, args: [touch, hacked]}",
        5,
        "model.free",
    ),
    swap(
        "nested component of another class",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, body: {class: collections.Counter}",
        5,
        "model.body",
    ),
    swap("module as a component", "models.MLP, hidden: 8", "torch.nn", 5, "model.class"),
    swap(
        "user module that does not import",
        "models.MLP",
        "broken.MLP",
        5,
        "model.class",
        "broken.py:2",
        "no_such_package",
        files={"src/broken.py": "import torch\nimport no_such_package\n"},
    ),
    swap(
        "user module with a syntax error",
        "models.MLP",
        "broken.MLP",
        5,
        "model.class",
        "broken.py:2",
        "SyntaxError",
        files={"src/broken.py": "import torch\nclass MLP(:\n"},
    ),
    swap(
        "user module that raises",
        "models.MLP",
        "broken.MLP",
        5,
        "model.class",
        "broken.py:1",
        "ZeroDivisionError",
        files={"src/broken.py": "1 / 0\n"},
    ),
    swap(
        "user module that exits",
        "models.MLP",
        "broken.MLP",
        5,
        "model.class",
        "broken.py:1",
        "SystemExit",
        files={"src/broken.py": "raise SystemExit(0)\n"},
    ),
    swap(
        "missing source folder", "src_code_path: src", "src_code_path: source", 2, "src_code_path", "'source'"
    ),
    swap(
        "torch.load as a loss",
        "loss: cross_entropy",
        "loss: torch.load",
        8,
        "train.loss",
        "torch.serialization.load",
    ),
    swap(
        "torch.hub.load as a metric",
        "metrics: [accuracy]",
        "metrics: [torch.hub.load]",
        9,
        "train.metrics.0",
        "load",
    ),
    swap(
        "torch.load in a parameter without annotation",
        "class: models.MLP, hidden: 8",
        "class: torch.nn.MultiheadAttention, embed_dim: 8, num_heads: 2, dropout: {class: torch.load, f: x}",
        5,
        "model.dropout.class",
    ),
    swap(
        "torch.hub.load where a function is asked for",
        "    lr: 1e-2",
        "    lr: 1e-2\n  scheduler: {class: lambda, lr_lambda: torch.hub.load}",
        13,
        "train.scheduler.lr_lambda",
    ),
    swap(
        "metric of one argument",
        "metrics: [accuracy]",
        "metrics: [models.decay]",
        9,
        "train.metrics.0",
        "(output, target)",
    ),
    swap(
        "abstract class",
        "models.MLP, hidden: 8",
        "models.Abstract",
        5,
        "model.class",
        "it does not implement forward",
    ),
    swap(
        "function of torch in an open signature",
        "class: models.MLP, hidden: 8",
        "class: torch.nn.Identity, x: {class: torch.utils.collect_env.run, command: touch hacked}",
        5,
        "model.x.class",
    ),
    swap(
        "what only looks like the annotation",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, context: {class: subprocess.Popen, args: [touch, hacked]}",
        5,
        "model.context.class",
        "Popen",
    ),
    swap("program as a module", "models.MLP", "venv.__main__.X", 5, "model.class", "program"),
    swap("endless class path", "models.MLP", "a" + ".a" * 3000, 5, "model.class"),
    swap("endless folder", "src_code_path: src", "src_code_path: " + "x" * 5000, 2, "src_code_path"),
    swap("folder with a null byte", "src_code_path: src", 'src_code_path: "a\\0b"', 2, "src_code_path"),
    # what fields say about each other
    swap(
        "schedule inside a schedule with a misspelt length",
        "    lr: 1e-2",
        "    lr: 1e-2\n  scheduler: {class: sequential, milestones: [1], schedulers: [{class: cosine, T_mx: 3}]}",
        13,
        "train.scheduler.schedulers.0.T_mx",
    ),
    swap(
        "item that a set cannot hold",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, tags: [[1]]",
        5,
        "model.tags",
    ),
]


@verbs
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    check_mistake(mistake, verb, project, cli)


def test_there_are_enough_of_them():
    from tests.config import test_consistency, test_layers, test_override, test_read, test_refer, test_schema

    modules = (test_consistency, test_layers, test_override, test_read, test_refer, test_schema)
    mistakes = MISTAKES + [mistake for module in modules for mistake in module.MISTAKES]
    assert len(mistakes) >= 30
    assert len({mistake.name for mistake in mistakes}) == len(mistakes)


def test_the_base_itself_is_right(project, cli):
    project.write("runs/a/config.yaml", BASE)
    assert cli("config", "check", "runs/a").code == 0


def test_in_a_process_of_its_own(project):
    project.write("runs/a/config.yaml", BASE.replace("epochs: 2", "epoch: 2"))
    done = subprocess.run(
        [sys.executable, "-m", "manyfit", "train", "runs/a"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "did you mean: epochs" in done.stderr
    assert "Traceback" not in done.stderr
