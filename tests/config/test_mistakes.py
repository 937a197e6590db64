"""Planted mistakes: each exits with 2, without a traceback and before any data is read.

Its message holds the file, the line, the key and, where there is one, the right name.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

BASE = """\
project_name: test
src_code_path: src
seed: 3
data: {class: points.Blobs, batch_size: 16}
model: {class: models.MLP, hidden: 8}
train:
  epochs: 2
  loss: cross_entropy
  metrics: [accuracy]
  optimizer:
    class: adamw
    lr: 1e-2
export: {metric: val_loss, mode: min}
"""


@dataclass
class Mistake:
    name: str
    replace: tuple[str, str] = ("", "")
    text: str | bytes | None = None
    words: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    says: list[str] = field(default_factory=list)
    line: int | None = None

    @property
    def content(self) -> str | bytes:
        if self.text is not None:
            return self.text
        assert self.replace[0] in BASE
        return BASE.replace(*self.replace, 1) if self.replace[0] else BASE


def swap(name: str, old: str, new: str, line: int, *says: str, **more: Any) -> Mistake:
    return Mistake(name, (old, new), line=line, says=list(says), **more)


def override(name: str, words: list[str], *says: str, line: int | None = None) -> Mistake:
    return Mistake(name, words=words, says=list(says), line=line)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)

MISTAKES = [
    # keys, at each depth
    swap("typo in a section", "export:", "exprot:", 13, "exprot", "did you mean: export"),
    swap("typo in a key of a section", "epochs: 2", "epoch: 2", 7, "train.epoch", "did you mean: epochs"),
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
    swap("derived value", "epochs: 2", "epochs: 2\n  horizon: 3", 8, "train.horizon", "derived"),
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
        "missing section",
        "model: {class: models.MLP, hidden: 8}\n",
        "",
        1,
        "model",
        "requires the parameter 'model'",
    ),
    swap(
        "missing parameter of a class",
        "class: models.MLP, hidden: 8",
        "class: torch.nn.Linear, in_features: 64",
        5,
        "model.out_features",
        "a whole number",
    ),
    swap("missing required key", "  loss: cross_entropy\n", "", 6, "train.loss", "cross_entropy"),
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
        "metric that nobody measures",
        "metric: val_loss",
        "metric: val_acuracy",
        13,
        "export.metric",
        "did you mean: val_accuracy",
    ),
    swap(
        "two metrics of one name",
        "metrics: [accuracy]",
        "metrics: [accuracy, accuracy]",
        9,
        "train.metrics.1",
        "distinct names",
    ),
    swap(
        "metric with the name of a column",
        "metrics: [accuracy]",
        "metrics: {loss: accuracy}",
        9,
        "train.metrics.loss",
    ),
    swap("unknown device", "epochs: 2", "epochs: 2\n  device: gpu", 8, "train.device", "'gpu'"),
    swap(
        "schedule inside a schedule with a misspelt length",
        "    lr: 1e-2",
        "    lr: 1e-2\n  scheduler: {class: sequential, milestones: [1], schedulers: [{class: cosine, T_mx: 3}]}",
        13,
        "train.scheduler.schedulers.0.T_mx",
    ),
    swap(
        "section with the name of an attribute",
        "seed: 3",
        "seed: 3\nproject: {class: models.Head, width: 1}",
        4,
        "project",
        "attribute",
    ),
    swap(
        "section without a class", "seed: 3", "seed: 3\nnotes: {a: 1}", 4, "notes", "a mapping with `class`"
    ),
    swap(
        "item that a set cannot hold",
        "class: models.MLP, hidden: 8",
        "class: models.Rich, tags: [[1]]",
        5,
        "model.tags",
    ),
    # references
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
    swap("reference without quotes inside braces", "hidden: 8}", "hidden: ${seed}}", 5, "needs quotes"),
    # files
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
    # the command line
    override(
        "override of a key in another section", ["epochs=3"], "epochs", "did you mean: train.epochs", line=1
    ),
    override("override of an unknown key", ["train.epoch=3"], "train.epoch", "did you mean: epochs", line=6),
    override(
        "override of an unknown parameter",
        ["-p", "model.hiden", "3"],
        "model.hiden",
        "did you mean: hidden",
        line=5,
    ),
    override("override of the wrong type", ["train.epochs=many"], "train.epochs", "a whole number", "'many'"),
    override("override that adds what exists", ["+train.epochs=3"], "train.epochs", "omit the `+`", line=7),
    override("deletion of nothing", ["~train.epoch"], "train.epoch", "did you mean: train.epochs", line=7),
    override("deletion of something required", ["~train.epochs"], "train.epochs", line=6),
    override("deletion with a value", ["~train.epochs=3"], "train.epochs"),
    override(
        "item beyond the end of a list", ["train.metrics.4=accuracy"], "train.metrics", "list of 1", line=9
    ),
    override("key below a number", ["train.epochs.x=1"], "train.epochs", "not a mapping", line=7),
    override("endless index", ["train.metrics." + "9" * 5000 + "=x"], "train.metrics", "list of 1", line=9),
    override("bytes that are no text", ["project_name=a\udcffb"], "not UTF-8"),
    override("empty key", ["train..epochs=1"], "train..epochs"),
]


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 30
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize("verb", [["config", "check"], ["train"]], ids=["check", "train"])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    project.write("runs/a/config.yaml", mistake.content)
    for name, text in mistake.files.items():
        project.write(name, text)
    answer = cli(*verb, "runs/a", *mistake.words)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert answer.out == ""
    for words in [
        "runs/a/config.yaml" if not mistake.words or mistake.line else "command line",
        *mistake.says,
    ]:
        assert words in answer.err
    if mistake.line:
        assert f"runs/a/config.yaml:{mistake.line}" in answer.err
    assert not project.data_was_built
    assert not (project.root / "hacked").exists()
    assert {entry.name for entry in project.run.iterdir()} == {"config.yaml"}


def test_the_base_itself_is_right(project, cli):
    project.write("runs/a/config.yaml", BASE)
    assert cli("config", "check", "runs/a").code == 0


def test_every_mistake_is_reported_at_once(project, cli):
    text = (
        BASE.replace("hidden: 8", "hiden: 2.5").replace("epochs: 2", "epochs: -1").replace("adamw", "adamv")
    )
    project.write("runs/a/config.yaml", text.replace("seed: 3", "seed: ${sed}"))
    answer = cli("config", "check", "runs/a")
    assert answer.code == 2
    assert "4 problems" in answer.err
    for line in (3, 5, 7, 11):
        assert f"runs/a/config.yaml:{line}: " in answer.err


def test_problems_of_extended_files_name_those_files(project, cli):
    project.write("shared/base.yaml", BASE.replace("epochs: 2", "epoch: 2"))
    project.write("runs/a/config.yaml", "extend: ../../shared/base.yaml\nmodel: {hiden: 3}\n")
    answer = cli("config", "check", "runs/a")
    assert "shared/base.yaml:7: train.epoch: unknown key" in answer.err
    assert "runs/a/config.yaml:2: model.hiden: unknown key" in answer.err


def test_as_json(project, cli):
    import json

    project.write("runs/a/config.yaml", BASE.replace("epochs: 2", "epoch: 2"))
    answer = cli("config", "check", "runs/a", "--json")
    assert answer.code == 2
    problem = next(p for p in json.loads(answer.out)["problems"] if p["key"] == "train.epoch")
    assert (problem["file"], problem["line"], problem["suggestion"]) == ("runs/a/config.yaml", 7, "epochs")


@pytest.mark.parametrize(
    "words", [["train", "runs/b"], ["config", "show", "runs/b"], ["train", "nowhere/x.yaml"]]
)
def test_a_missing_run(project, cli, words):
    answer = cli(*words)
    assert answer.code == 2
    assert "no such config" in answer.err
    assert not (project.root / "runs/b").exists()


def test_a_name_that_no_file_can_have(project, cli):
    from manyfit import ConfigError, load_config

    answer = cli("train", "x" * 5000)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    with pytest.raises(ConfigError, match="not a valid path of a config"):
        load_config("a\0b")


def test_an_environment_variable_that_is_no_text(project, cli, monkeypatch):
    monkeypatch.setenv("MANYFIT_ODD", "a\udcffb")
    for words in ("project_name=${oc.env:MANYFIT_ODD}", "project_name=${secret:MANYFIT_ODD}"):
        answer = cli("config", "show", "runs/a", words)
        assert answer.code == 2
        assert "is not UTF-8" in answer.err


def test_a_missing_run_is_guessed(project, cli):
    project.write("runs/digits-mlp/config.yaml", BASE)
    assert "did you mean: runs/digits-mlp" in cli("train", "runs/digit-mlp").err


def test_in_a_process_of_its_own(project):
    project.write("runs/a/config.yaml", BASE.replace("epochs: 2", "epoch: 2"))
    done = subprocess.run(
        [sys.executable, "-m", "manyfit", "train", "runs/a"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "did you mean: epochs" in done.stderr
    assert "Traceback" not in done.stderr
