"""Variants: found by name, written in their own layout, trained like any other run."""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import manyfit
from manyfit import ConfigError, load_config
from manyfit.cli import main
from manyfit.config.dialects.variant_files import SHIPPED
from manyfit.config.tree.reader import parse_yaml
from manyfit.core import gpus
from manyfit.core.errors import RunConflict, UsageError
from manyfit.data.tfrecord import files, indexing, metadata, verification
from manyfit.data.tfrecord.writer import write_records
from manyfit.run.resume_proof import Kill, difference, kill_and_resume
from manyfit.store.checkpoint import checkpoints
from manyfit.store.folder import RunFolder

GUIDES = Path(os.environ.get("MANYFIT_GUIDES", Path(__file__).parents[3] / "shared" / "seeds"))
GUIDE = sorted(GUIDES.glob("004_*.txt"))
needs_guide = pytest.mark.skipif(not GUIDE, reason=f"the guide does not lie in {GUIDES}")

NET = '''
import torch
from torch import nn


class Net(nn.Module):
    """Names a number that it sees."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Embedding(100, hidden)
        self.head = nn.Linear(hidden, 100)

    def forward(self, number):
        return self.head(self.body(number[:, 0]))
'''
FEEDER = """
    type: TFRecordExamplesFeeder
    batch_size: {size}
    file_patterns: {patterns}
    features_map: {{number: {{type: FixedLenFeature, shape: [1], dtype: int64}}}}
    labels_map: {{number: {{type: FixedLenFeature, shape: [1], dtype: int64}}}}
"""
VARIANT = f"""
model:
  type: 'net:Net'
  hidden: 6
train:
  epochs: 2
  loss: cross_entropy
  optimizer: {{class: adam, lr: 0.02}}
  metrics: [accuracy]
  threads: 1
  train_feeder: {FEEDER.format(size=20, patterns="data/train-*")}
  eval_feeder: {FEEDER.format(size=50, patterns="data/validation-*")}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(here):
    """A project with a variant, a model in its registry, and data of its own."""
    (here / "variants").mkdir()
    (here / "variants" / "net.yaml").write_text(VARIANT)
    registry = here / "models" / "registry"
    registry.mkdir(parents=True)
    (registry / "net.py").write_text(NET)
    shutil.copytree(SHIPPED / "data", here / "data")
    return here


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return int(stopped.value.code or 0)


def problems(*given):
    with pytest.raises(ConfigError) as caught:
        load_config(*given)
    return {problem.path: str(problem) for problem in caught.value.problems}


QUICK = ("train.epochs=1", "train.save_summary_steps=50")


def test_a_received_variant_works_where_its_code_is(project, monkeypatch, tmp_path_factory, capsys):
    assert run("train", "net", "-p", "model.model_dir", project / "out", *QUICK) == 0, capsys.readouterr().err
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for words in (("predict", "--split", "validation"), ("evaluate", "--split", "validation"), ("check",)):
        assert run(*words, "out") == 0, capsys.readouterr().err
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    for verb in ("predict", "evaluate", "check", "export"):
        assert run(verb, project / "out") == 2
        assert "--trust" in capsys.readouterr().err


# -- the document ---------------------------------------------------------------------------------


def commands():
    """The commands of the guide, with the broken continuations and the name of the program repaired."""
    for block in re.findall(r"```\n(\$ deep.*?)```", GUIDE[0].read_text(encoding="utf-8"), flags=re.DOTALL):
        text = re.sub(r"\\?\s*\n", " ", block.removeprefix("$ deep"))
        yield shlex.split(text.replace("\\", ""))


@needs_guide
def test_the_commands_of_the_guide_work(here, capsys):
    paths = {
        "/AnyPath": str(here / "any"),
        "/path_to_model_dir": str(here / "named"),
        "MODEL_NAME": "toy",
        "/path_to_training_file_patterns": str(SHIPPED / "data" / "train-*"),
        "/path_to_validation_file_patterns": str(SHIPPED / "data" / "validation-*"),
        "deephub/resources/blobs/data/toy/train-*": "data/train-*",
        "deephub/resources/blobs/data/toy/validation-*": "data/validation-*",
        "/path-to-files-folder/*": str(SHIPPED / "data" / "*"),
    }
    found = [[paths.get(word, word) for word in words] for words in commands()]
    assert [words[words.index("trainer") if "trainer" in words else 0] for words in found] == [
        "trainer",
        "trainer",
        "utils",
    ]
    for words in found:
        more = QUICK if "train" in words else ()
        assert run(*words, *more) == 0, capsys.readouterr().err
    assert RunFolder(here / "any").state() == "finished"
    assert RunFolder(here / "named").state() == "finished"


@needs_guide
def test_the_yaml_of_the_guide_loads(here):
    text = GUIDE[0].read_text(encoding="utf-8")
    blocks = [b for b in re.findall(r"```\n(.*?)```", text, flags=re.DOTALL) if not b.startswith("$")]
    whole, part, feeders = blocks
    for folder, source in (("variants", None), ("feeders", SHIPPED / "feeders")):
        (here / folder).mkdir()
        for file in source.glob("*.yaml") if source is not None else ():
            shutil.copy(file, here / folder / file.name)
    (here / "variants" / "theirs.yaml").write_text(whole)
    config = load_config("theirs")
    assert config.run.train.epochs == 10
    assert config.run.train.every.log == "1ba"
    assert config.run.train.every.checkpoint == "100ba,validation"
    assert config.run.train.every.validate == "3600s"
    assert config.run.model.params == {"num_classes": 100, "learning_rate": 0.001, "hidden_neurons": 50}
    assert parse_yaml(part, "part.yaml").items["train"].items["epochs"].value == 10
    with pytest.raises(ConfigError, match=r"feeders.yaml:17.*duplicate key 'type'.*line 2"):
        parse_yaml(feeders, "feeders.yaml")


def test_the_shipped_variant_trains_from_any_folder_and_says_where(here, caplog):
    assert run("train", "toy", *QUICK) == 0
    assert RunFolder(here / "runs" / "toy").state() == "finished"
    assert "model.model_dir is not set: the run is stored in runs/toy" in caplog.text


# -- words ----------------------------------------------------------------------------------------


def test_what_the_shell_has_expanded_is_a_list(project):
    from manyfit.cli.common import split_overrides
    from manyfit.config.tree.nodes import plain

    words = [
        "-p",
        "train.train_feeder.file_patterns",
        "data/train-00000-of-00002",
        "data/train-00001-of-00002",
    ]
    (override,), rest = split_overrides([*words, "net", "-c", "train.epochs"][:-2])
    assert plain(override.value) == [str(project / "data" / f"train-0000{i}-of-00002") for i in (0, 1)]
    assert rest == ["net"]
    (override, other), rest = split_overrides(["net", *words, "-c", "train.epochs", "3"])
    assert len(plain(override.value)) == 2
    assert (other.path, plain(other.value)) == (("train", "epochs"), 3)
    (single,), rest = split_overrides(["-p", "model.name", "data/train-00000-of-00002", "variants/net.yaml"])
    assert plain(single.value) == "data/train-00000-of-00002"
    assert rest == ["variants/net.yaml"]


@pytest.mark.parametrize("text", ["[oops", "a: b: c", "*.tfr", "@x", "train-[0-9]*"])
def test_a_value_that_is_not_yaml_is_text(project, text):
    from manyfit.cli.common import split_overrides
    from manyfit.config.tree.nodes import plain

    (override,), _ = split_overrides(["-p", "train.train_feeder.file_patterns", text])
    assert plain(override.value) == text


def test_patterns_on_the_command_line_count_from_here(project, monkeypatch):
    elsewhere = project / "deep" / "inside"
    shutil.copytree(project / "data", elsewhere / "records")
    monkeypatch.chdir(elsewhere)
    assert (
        run(
            "train",
            project / "variants" / "net.yaml",
            "-p",
            "train.train_feeder.file_patterns",
            "records/train-*",
        )
        == 0
    )
    kept = load_config(project / "runs" / "net").run.data.params["train"].params["file_patterns"]
    assert kept == str(elsewhere / "records" / "train-*")
    assert load_config(project / "runs" / "net").run.data.params["validation"].params["file_patterns"] == str(
        project / "data" / "validation-*"
    )


def test_log_level_before_and_after_the_verb(project, capsys):
    assert run("-l", "DEBUG", "trainer", "train", "net", "-p", "model.model_dir", "one") == 0
    assert "INFO evaluated 100 rows" in capsys.readouterr().err
    assert run("train", "-l", "info", "net", "-p", "model.model_dir", "two") == 0
    assert "INFO evaluated 100 rows" in capsys.readouterr().err


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("train.save_checkpoint_step=3", "train.save_checkpoint_step", ["unknown key", "save_checkpoint_steps"]),
        ("train.train_feeder.batchsize=3", "train.train_feeder.batchsize", ["unknown key", "batch_size"]),
        ("train.train_feeder.features_map.number.shap=[1]", "train.train_feeder.features_map.number.shap", ["shape"]),
        ("train.train_feeder.features_map.number.type=FixedLen", "train.train_feeder.features_map.number.type", ["FixedLenFeature"]),
        ("train.train_feeder.features_map.number.dtype=int65", "train.train_feeder.features_map.number.dtype", ["int64"]),
        ("train.train_feeder.type=TFRecordFeeder", "train.train_feeder.type", ["TFRecordExamplesFeeder"]),
        ("train.validation_secs=often", "train.validation_secs", ["seconds above 0"]),
        ("train.save_checkpoint_steps=0", "train.save_checkpoint_steps", ["above 0"]),
        ("model.hiden=3", "model.hiden", ["hidden"]),
        ("model.modeldir=x", "model.modeldir", ["did you mean: model_dir"]),
        ("model.type=nett:Net", "model.type", ["nett.py", "net:Net"]),
        ("model.type=net:Nett", "model.type", ["net:Net"]),
        ("model.model_dir=3", "model.model_dir", ["path of a folder"]),
        ("~train.train_feeder", "train.train_feeder", ["required"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_the_key_of_the_variant(project, override, key, words):
    found = problems("net", [override])
    assert key in found, found
    assert all(word in found[key] for word in words), found[key]


def test_the_schema_of_a_variant(project):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    import yaml

    from manyfit.config.json_schema import json_schema

    schema = validator(json_schema(load_config("net")))
    given = yaml.safe_load((project / "variants" / "net.yaml").read_text())
    assert not list(schema.iter_errors(given))
    for wrong in ({"save_checkpoint_steps": "x"}, {"epochz": 3}, {"train_feeder": {"batchsize": 3}}):
        assert list(schema.iter_errors({**given, "train": {**given["train"], **wrong}})), wrong


def test_a_name_that_no_variant_has(project, capsys):
    assert run("train", "nett") == 2
    assert "did you mean: net" in capsys.readouterr().err


def test_a_folder_of_variants_of_ones_own(project, capsys):
    mine = project / "mine"
    mine.mkdir()
    (mine / "other.yaml").write_text(
        VARIANT.replace("hidden: 6", "hidden: 3").replace("data/", f"{project}/data/")
    )
    shutil.copytree(project / "models", mine / "models")
    (mine / "variants").mkdir()
    assert run("config", "show", "other", "--variants-dir", mine) == 0
    assert re.search(r"model.hidden +3", capsys.readouterr().out)
    assert run("config", "show", "other", "--variants-dir", project / "nothing") == 2


# -- training -------------------------------------------------------------------------------------


def test_checkpoints_are_written_when_either_is_due_and_at_every_validation(project):
    given = ["train.save_checkpoint_steps=30", "train.validation_steps=40", "export.keep=99"]
    manyfit.train("net", given)
    steps = [found.step for found in checkpoints(project / "runs" / "net" / "checkpoints")]
    assert steps == [30, 40, 60, 80, 90, 100]
    assert (
        load_config("net", ["train.save_checkpoint_secs=5", *given]).run.train.every.checkpoint
        == "30ba,5s,validation"
    )
    with (project / "runs" / "net" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["val_accuracy"]] == ["40", "80"]


def test_whichever_is_due_first_by_steps_or_by_the_clock():
    from manyfit.config.typed.cadence import Cadence
    from manyfit.run.loop.clock import Pace
    from manyfit.run.loop.plan import Plan

    def checkpoints_at(seconds_a_step, **how):
        now = [0.0]
        plan = Plan(1000, 1, validate=Cadence.parse("7s"), auto=False, **how)
        pace, found = Pace(plan, lambda: now[0]), []
        for step in range(1, 31):
            pace.begin()
            now[0] += seconds_a_step
            if pace.pause(plan.at(step), 1).checkpoint:
                found.append(step)
        return found

    both = (Cadence.parse("10ba"), Cadence.parse("5s"))
    assert checkpoints_at(0.01, checkpoint=both) == [10, 20, 30]
    assert checkpoints_at(1.0, checkpoint=both) == [5, 10, 15, 20, 25, 30]
    assert checkpoints_at(1.0, with_validation=True) == [7, 14, 21, 28]


def test_summaries_have_their_own_cadence(project):
    manyfit.train("net", ["train.save_summary_steps=20"])
    with (project / "runs" / "net" / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["20", "40", "50", "60", "80", "100"]


@pytest.mark.parametrize("kill", [Kill("step", 33), pytest.param(Kill("write", 12), marks=pytest.mark.soak)])
def test_killed_and_resumed(project, kill):
    given = ["train.every.checkpoint=7ba", "train.train_feeder.num_parallel_reads=2"]
    whole, cut = project / "runs" / "whole", project / "runs" / "cut"
    config = project / "variants" / "net.yaml"
    assert kill_and_resume(config, given, whole, []) == 0
    assert kill_and_resume(config, given, cut, [kill]) == 1
    assert difference(RunFolder(whole), RunFolder(cut)) == ""


def test_data_that_has_changed_is_refused_unless_told(project, capsys):
    assert run("train", "net") == 0
    file = project / "data" / "train-00000-of-00002"
    write_records(file, [{"number": i % 100} for i in range(500)])
    assert run("train", "net", "train.epochs=3") == 2
    assert "not the record that was indexed" in capsys.readouterr().err
    assert run("data", "index", "data/*") == 2
    assert "--force" in capsys.readouterr().err
    assert run("data", "index", "--force", "data/*") == 0
    assert run("train", "net", "train.epochs=3") == 2
    assert "--allow-change data.train" in capsys.readouterr().err
    assert run("train", "net", "train.epochs=3", "--allow-change", "data") == 0


def test_a_swapped_record_is_found_while_it_is_read(project, capsys):
    file = project / "data" / "train-00001-of-00002"
    data = file.read_bytes()
    entry = metadata.load_index(str(project / "data"))[file.name]
    assert entry.frames is not None
    a, b, c = entry.frames.offsets[:3].tolist()
    assert data[a:b] != data[b:c]
    file.write_bytes(data[b:c] + data[a:b] + data[c:])
    assert not list(verification.verify_files("data/*"))
    assert run("train", "net") == 2
    error = capsys.readouterr().err
    assert "train-00001-of-00002, record " in error
    assert "not the record that was indexed" in error


def test_warm_start_and_fine_tuning(project):
    assert run("train", "net", "-p", "model.model_dir", "first") == 0
    words = ["--warm-start-checkpoint", "first", "--warm-start-vars", "^body", "train.fine_tune=[head]"]
    assert run("train", "net", "-p", "model.model_dir", "second", *words) == 0
    first, second = (manyfit.load_model(folder).state_dict() for folder in ("first", "second"))
    assert first["body.weight"].equal(second["body.weight"])
    assert not first["head.weight"].equal(second["head.weight"])
    assert run("train", "net", "-p", "model.model_dir", "third", "--warm-start-vars", "x") == 2
    with pytest.raises(UsageError, match="'hed' contains no parameters; did you mean head"):
        manyfit.train("net", ["train.fine_tune=[hed]"], folder="fourth")


def test_a_run_outside_of_its_project_knows_it(project, tmp_path_factory, monkeypatch):
    outside = tmp_path_factory.mktemp("outside") / "run"
    assert run("train", "net", "-p", "model.model_dir", outside) == 0
    monkeypatch.chdir(tmp_path_factory.mktemp("nowhere"))
    assert run("train", outside, "train.epochs=3") == 0
    assert len(manyfit.evaluate(outside, "validation")) == 100


def test_exporters_and_what_serves_them(project):
    torch = pytest.importorskip("torch")
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    given = ["export.exporters=[best, final, top]", "export.top=2", "export.formats=[torch, onnx]"]
    manyfit.train("net", given)
    folder = project / "runs" / "net"
    assert sorted(path.name for path in (folder / "exported-top").iterdir()) == ["1-step-100", "2-step-50"]
    numbers = np.arange(100).reshape(-1, 1)
    wanted = manyfit.load_model(folder)(torch.from_numpy(numbers)).detach().numpy()
    again = manyfit.load_model(folder / "exported-final")(torch.from_numpy(numbers)).detach().numpy()
    assert again.tolist() == wanted.tolist()
    program = torch.export.load(folder / "exported" / "model.pt2")
    assert np.allclose(program.module()(torch.from_numpy(numbers)).detach().numpy(), wanted, atol=1e-5)
    session = runtime.InferenceSession(
        str(folder / "exported" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    (name,) = [given.name for given in session.get_inputs()]
    assert np.allclose(session.run(None, {name: numbers})[0], wanted, atol=1e-4)


TWO = """
from torch import nn


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 8)
        self.words = nn.EmbeddingBag(8, 8)
        self.head = nn.Linear(8, 7)

    def forward(self, x, words):
        return self.head(self.body(x) + self.words(words))
"""


def test_several_features_go_to_the_model_by_name_and_are_served_so(here):
    torch = pytest.importorskip("torch")
    (here / "src").mkdir()
    (here / "src" / "two.py").write_text(TWO)
    for name in ("train-0", "validation-0"):
        write_records(here / "data" / name, [
            {"x": [float(i), 1.0, -1.0], "words": [j % 8 for j in range(i % 4 + 1)], "label": i % 7} for i in range(60)
        ])  # fmt: skip
    feeder = {
        "class": "TFRecordExamplesFeeder",
        "auto_generate_meta": True,
        "features_map": {"x": {"type": "FixedLenFeature", "shape": [3]}, "words": {"type": "VarLenFeature", "dtype": "int64", "length": 4}},
        "labels_map": {"label": {"type": "FixedLenFeature", "shape": [1], "dtype": "int64"}},
    }  # fmt: skip
    config = {
        "data": {"class": "manyfit.feeders.Feeders", "batch_size": 10, "allow_overlap": True,
                 "train": {**feeder, "file_patterns": "data/train-*"}, "validation": {**feeder, "file_patterns": "data/validation-*"}},
        "model": {"class": "two.Two"},
        "train": {"epochs": 2, "loss": "cross_entropy", "optimizer": "adam"},
        "export": {"formats": ["torch"]},
    }  # fmt: skip
    manyfit.train(config, folder="runs/two")
    program = torch.export.load(here / "runs" / "two" / "exported" / "model.pt2").module()
    model = manyfit.load_model("runs/two")
    x, words = torch.randn(5, 3), torch.randint(0, 8, (5, 4))
    assert torch.allclose(program(x=x, words=words), model(x=x, words=words), atol=1e-5)


RAGGED = """
from torch import nn


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 8)
        self.head = nn.Linear(8, 7)

    def forward(self, words):
        return self.head(self.words(words).to_padded_tensor(0.0).sum(dim=1))
"""


def test_ragged_features_reach_a_model_as_a_nested_tensor(here):
    (here / "src").mkdir()
    (here / "src" / "ragged.py").write_text(RAGGED)
    write_records(
        here / "data" / "train-0",
        [{"words": [j % 8 for j in range(i % 4 + 1)], "label": i % 7} for i in range(40)],
    )
    feeder = {
        "class": "manyfit.feeders.TFRecordExamplesFeeder",
        "auto_generate_meta": True,
        "file_patterns": ["data/*"],
        "features_map": {"words": {"type": "VarLenFeature", "dtype": "int64", "ragged": True}},
        "labels_map": {"label": {"type": "FixedLenFeature", "shape": [], "dtype": "int64"}},
    }
    config = {
        "data": {"class": "manyfit.data.Splits", "batch_size": 8, "train": feeder, "validation": feeder},
        "model": {"class": "ragged.Ragged"},
        "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": "adam"},
    }
    assert manyfit.train(config, folder="runs/ragged").step == 5


KERAS = """
import keras


def net(hidden: int = 8) -> keras.Model:
    model = keras.Sequential([
        keras.layers.Input((1,)), keras.layers.Embedding(100, hidden), keras.layers.Flatten(), keras.layers.Dense(100)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=False)
    return model
"""


@pytest.mark.soak
def test_a_keras_model_in_a_registry(project):
    pytest.importorskip("keras")
    (project / "models" / "registry" / "knet.py").write_text(KERAS)
    for key in ("loss", "optimizer", "metrics"):
        pattern = re.compile(rf"^  {key}:.*\n", re.MULTILINE)
        file = project / "variants" / "net.yaml"
        file.write_text(pattern.sub("", file.read_text()))
    found = manyfit.train("net", ["model.type=knet:net", "train.epochs=1"])
    assert found.step == 50
    assert "val_accuracy" in found.metrics
    given = ["--warm-start-checkpoint", "runs/net", "--warm-start-vars", "embedding"]
    words = [
        "-p",
        "model.model_dir",
        "runs/warm",
        "model.type=knet:net",
        "train.epochs=1",
        "--limit-train-batches",
        1,
    ]
    assert run("train", "net", *words, *given) == 0
    first, second = (manyfit.load_model(folder).get_weights() for folder in ("runs/net", "runs/warm"))
    assert np.abs(first[0] - second[0]).max() < 0.01
    assert np.abs(first[1] - second[1]).max() > 0.01


def test_only_the_shipped_variant_reads_shipped_records(project):
    shutil.rmtree(project / "data")
    text = (project / "variants" / "net.yaml").read_text()
    (project / "variants" / "net.yaml").write_text(
        text.replace("net:Net", "toy:DebugToyModel").replace("hidden:", "hidden_neurons:")
    )
    with pytest.raises(UsageError, match="no file matches"):
        manyfit.train("net", ["~train.loss", "~train.optimizer"])


def test_a_project_whose_name_looks_like_a_pattern(tmp_path, monkeypatch, project):
    odd = tmp_path / "p[1] #2"
    shutil.copytree(project, odd, ignore=shutil.ignore_patterns("p*"))
    monkeypatch.chdir(odd)
    assert (
        run(
            "train",
            "net",
            "-p",
            "train.train_feeder.file_patterns",
            "data/train-*",
            "-p",
            "model.model_dir",
            "../out",
        )
        == 0
    )
    monkeypatch.chdir("/")
    assert run("train", tmp_path / "out", "train.epochs=3") == 0


def test_parameters_written_together(project):
    from manyfit.cli.common import split_overrides

    for words in (["--param=train.epochs", "3"], ["-ptrain.epochs", "3"]):
        (override,), rest = split_overrides(["net", *words])
        assert (override.path, rest) == (("train", "epochs"), ["net"])


def test_a_cadence_is_said_once(project):
    file = project / "variants" / "net.yaml"
    file.write_text(
        file.read_text().replace(
            "  epochs: 2\n", "  epochs: 2\n  every: {checkpoint: 4ba}\n  save_checkpoint_steps: 3\n"
        )
    )
    assert "train.every.checkpoint is also set" in problems("net")["train.save_checkpoint_steps"]
    file.write_text(file.read_text().replace("  every: {checkpoint: 4ba}\n", ""))
    assert load_config("net", ["train.every.checkpoint=4ba"]).run.train.every.checkpoint == "4ba"


@pytest.mark.soak
def test_check_proves_that_a_variant_resumes(project, capsys):
    assert run("check", "toy", "--resume") == 0
    assert "WRONG" not in capsys.readouterr().out


def test_a_variant_from_python(project):
    import yaml

    given = yaml.safe_load((project / "variants" / "net.yaml").read_text())
    given["model"]["model_dir"] = str(project / "here")
    assert manyfit.train(given).folder == project / "here"
    del given["model"]["model_dir"]
    with pytest.raises(UsageError, match="a config without a file needs a run folder"):
        manyfit.train(given)


def test_a_study_over_a_variant(project):
    pytest.importorskip("optuna")
    (project / "studies" / "s").mkdir(parents=True)
    (project / "studies" / "s" / "study.yaml").write_text(
        "base: net\n"
        "space: {model.hidden: [4, 8], train.train_feeder.batch_size: [25, 50]}\n"
        "search: {method: grid}\nobjective: {metric: val_loss, mode: min}\nexecute: {on: inline}\n"
    )
    assert run("sweep", "studies/s") == 0
    found = [load_config(path).run for path in project.glob("studies/s/trials/*/config.resolved.yaml")]
    tried = {(each.model.params["hidden"], each.data.params["train"].params["batch_size"]) for each in found}
    assert tried == {(4, 25), (4, 50), (8, 25), (8, 50)}
    assert {
        RunFolder(path.parent).checkpoints()[-1].step
        for path in project.glob("studies/s/trials/*/config.yaml")
    } == {40, 80}


# -- GPUs -----------------------------------------------------------------------------------------


def test_gpus_are_pinned_by_number_or_because_they_are_idle(monkeypatch):
    here = [gpus.Gpu(0, 0.9, 97), gpus.Gpu(1, 0.01, 0), gpus.Gpu(2, 0.02, 2)]
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", gpus.PINNED):
        monkeypatch.setenv(name, "")
    assert gpus.pin(["idle", "idle"], here) == [1, 2]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert gpus.pin(["0", "idle"], here) == [0, 1]
    with pytest.raises(UsageError, match="there is no GPU '7'; available are 0, 1, 2, or idle"):
        gpus.pin(["7"], here)
    with pytest.raises(UsageError, match="every GPU is in use"):
        gpus.pin(["idle", "idle", "idle"], here)


def test_a_gpu_that_is_not_there(project, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(project))
    assert run("train", "net", "-g", "0") == 2
    assert "this machine has no GPU" in capsys.readouterr().err


def test_the_guard_names_the_data(project):
    manyfit.train("net")
    write_records(project / "data" / "train-00000-of-00002", [{"number": 1}] * 500)
    list(indexing.index_files(files.match_files("data/*"), force=True))
    with pytest.raises(RunConflict, match=r"data\.train"):
        manyfit.train("net", ["train.epochs=3"])
