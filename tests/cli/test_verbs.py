"""Verbs: init, list, show, config, doctor, completion."""

import json
import os
import subprocess
import sys

import jsonschema
import pytest
import yaml


def test_init_writes_a_project_that_trains_at_once(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    answer = cli("init", "demo")
    assert answer.out.startswith("Train it:       cd demo && manyfit train runs/digits-mlp\n")
    monkeypatch.chdir(tmp_path / "demo")
    assert (tmp_path / "demo/.gitignore").is_file()
    assert cli("config", "check", "runs/digits-mlp").code == 0
    answer = cli("train", "runs/digits-mlp", "--json", "train.epochs=8")
    assert json.loads(answer.out)["test"]["accuracy"] > 0.9


def test_init_overwrites_nothing(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/models.py").write_text("mine")
    answer = cli("init")
    assert answer.code == 2
    assert "src/models.py" in answer.err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["models.py"]


def test_list(project, cli):
    project.config(project.changed(), run="b")
    cli("train", "runs/a")
    answer = cli("list")
    assert [line.split()[:3] for line in answer.out.splitlines()] == [
        ["run", "state", "epoch"],
        ["a", "finished", "2"],
        ["b", "new", "0"],
    ]
    found = json.loads(cli("list", "runs", "--json").out)
    assert found[0]["test"]["accuracy"] >= 0
    assert cli("list", "nowhere").code == 2


def test_a_damaged_log_is_said(project, cli):
    project.config(project.changed())
    assert cli("train", "runs/a").code == 0
    assert "finished" in cli("list").out
    log = project.root / "runs/a/metrics.jsonl"
    data = log.read_bytes()
    for wrong in (data[:-20], data[:10] + b"\n" + data[11:], b""):
        log.write_bytes(wrong)
        assert "damaged" in cli("list").out
    log.write_bytes(data)
    assert "finished" in cli("list").out


def test_list_survives_a_damaged_run(project, cli):
    cli("train", "runs/a")
    (project.run / "reports/summary.json").write_text("{")
    assert "damaged" in cli("list").out


def test_show(project, cli):
    cli("train", "runs/a")
    answer = cli("show", "runs/a")
    assert "finished" in answer.out
    assert "model.hidden" in answer.out
    facts = json.loads(cli("show", "runs/a", "--json").out)
    assert facts["config"]["model.hidden"] == 8
    assert facts["starts"][0]["from_step"] == 0
    assert facts["events"] == 2
    assert cli("show", "runs").code == 2
    assert json.loads(cli("show", project.run, "--json").out)["state"] == "finished"


def test_config_show_says_where_each_value_was_written(project, cli):
    project.write("base.yaml", "train:\n  epochs: 5\n  threads: 1\n")
    project.write("runs/a/config.yaml", "extend: ../../base.yaml\n" + (project.file).read_text())
    answer = cli("config", "show", "runs/a", "--origin", "model.hidden=4")
    lines = {line.split()[0]: line.split(maxsplit=3)[1:] for line in answer.out.splitlines()}
    assert lines["train.threads"] == ["1", "neither", "base.yaml:3"]
    assert lines["train.epochs"] == ["2", "budget", "runs/a/config.yaml:11"]
    assert lines["model.hidden"] == ["4", "identity", "command line (model.hidden=4)"]
    assert lines["model.dropout"] == ["0.0", "identity", "default"]


def test_schema(project, cli):
    project.write("runs/b/config.yaml", "extend: ../a/config.yaml\nmodel: {hidden: 3}\n")
    schema = json.loads(cli("config", "schema", "runs/a").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name in ("a", "b"):
        validator.validate(yaml.safe_load((project.root / f"runs/{name}/config.yaml").read_text()))
    generic = jsonschema.Draft202012Validator(json.loads(cli("config", "schema").out))
    generic.validate(
        project.changed(train__scheduler="cosine", train__optimizer={"class": "sgd", "lr": "${x}"})
    )
    for bad in [project.changed(train__epoch=3), project.changed(model__hiden=3), project.changed(train__epochs="many"),
                project.changed(train__optimizer={"class": "adamw", "lrr": 1}), project.changed(export={"mode": "mean"})]:  # fmt: skip
        assert not validator.is_valid(bad)


def test_schema_to_a_file(project, cli):
    assert cli("config", "schema", "-o", "config.schema.json").code == 0
    assert json.loads((project.root / "config.schema.json").read_text())["title"] == "manyfit run config"
    assert cli("config", "schema", "-o", "nowhere/x.json").code == 2


def test_doctor(cli):
    answer = cli("doctor")
    assert "torch" in answer.out
    assert "pip install 'manyfit[ray]'" in answer.out or "ray 2" in answer.out
    found = json.loads(cli("doctor", "--json").out)
    assert {"manyfit", "python", "cores", "free disk", "torch", "devices"} <= set(found["facts"])
    assert {"keras", "tensorflow", "mlflow", "ray", "ui"} <= set(found["extras"])


def test_doctor_names_what_is_wrong(cli, monkeypatch):
    from importlib import metadata

    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.0" if name == "torch" else real(name))
    answer = cli("doctor")
    assert answer.code == 1
    assert "torch 1.0 does not satisfy >=" in answer.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli, shell):
    assert "_MANYFIT_COMPLETE" in cli("completion", shell).out


def test_completion_knows_verbs_and_runs(project):
    def complete(words):
        env = {
            **os.environ,
            "_MANYFIT_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        return subprocess.run(
            [sys.executable, "-m", "manyfit"], env=env, capture_output=True, text=True, check=False
        ).stdout

    assert "plain,train" in complete("manyfit tr")
    assert "runs/a" in complete("manyfit train runs/")
    found = complete("manyfit train runs/a train.opt")
    assert "train.optimizer" in found and "train.epochs" not in found
    assert "plain,train.optimizer.lr=" in complete("manyfit train runs/a train.optimizer.l")
    assert "plain,train." in complete("manyfit train runs/a tr")
    assert "plain,model.hidden=" in complete("manyfit train runs/a seed=3 model.h")


def test_an_unknown_verb_is_guessed(cli):
    answer = cli("trian", "runs/a")
    assert answer.code == 2
    assert "Did you mean 'train'?" in answer.err


@pytest.mark.parametrize("words", [["-l", "INFO", "train", "runs/a"], ["train", "runs/a", "-l", "info"]])
def test_the_log_level_stands_before_or_after_the_verb(project, cli, words):
    assert "INFO evaluated 64 rows" in cli(*words).err


def test_results_go_to_stdout_and_the_rest_to_stderr(project, cli):
    answer = cli("train", "runs/a", "--json")
    assert json.loads(answer.out)["step"] == 8
    assert "epoch 2/2" in answer.err


def test_a_closed_pipe_is_no_error(project):
    done = subprocess.run(
        f"{sys.executable} -m manyfit config show runs/a | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


def on_terminal(*words):
    """Run a command whose stderr is a terminal: its exit code, its results, and what was drawn."""
    import pty

    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "manyfit", *words],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "140"},
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    return process, process.communicate()[0], shown.decode()


@pytest.mark.soak
def test_a_bar_on_a_terminal(project):
    """On a terminal there is a bar with the time left; results still arrive."""
    process, out, shown = on_terminal("train", "runs/a")
    assert process.returncode == 0
    assert "━" in shown
    assert "2/2" in shown
    assert "a finished" in out


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_slow_evaluation_shows_a_bar_on_a_terminal(verb, project, cli):
    project.write(
        "src/slow.py",
        """
        import time
        from models import MLP

        class Slow(MLP):
            def forward(self, images):
                if not self.training:
                    time.sleep(0.4)
                return super().forward(images)
        """,
    )
    project.config(project.changed(model={"class": "slow.Slow"}, train__epochs=1))
    assert cli("train", "runs/a").code == 0
    process, out, shown = on_terminal(verb, "runs/a")
    assert process.returncode == 0
    assert "/64" in shown and {"evaluate": "evaluating test", "predict": "predicting"}[verb] in shown
    assert "accuracy" in out or "test-63" in out
