"""Forty secrets, planted in every way that was thought of, are looked for in everything that is left behind."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import timeit
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import manyfit
from manyfit.core import redaction

SHAPES = {
    "token": "ghp_{n}9sZq81LmVwX0tRb7",
    "special": "p@ss'w{n}rd\"/+= %\\ü&x",
    "pem": "-----BEGIN PRIVATE KEY-----\nMIIE{n}vQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7VJTU{n}\nt9Us8cKj{n}==\n-----END PRIVATE KEY-----\n",
    "number": "73519{n}4628",
}

LEAKS = '''
import base64, json, logging, os, warnings
from typing import Annotated
from urllib.parse import quote
from torch import nn
from manyfit import Kind


class Leaky(nn.Module):
    """Says what it was told to keep."""

    def __init__(self, how: str = "", a: Annotated[str, Kind.NEUTRAL] = "", b: Annotated[str, Kind.NEUTRAL] = "",
                 c: Annotated[str, Kind.NEUTRAL] = "", d: Annotated[str, Kind.NEUTRAL] = "") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.kept, self.how, self.seen = [a, b, c, d], how, 0

    def forward(self, x):
        self.seen += 1
        if self.seen == 9:
            getattr(self, f"do_{self.how}", lambda: None)()
        return self.layers(x)

    def do_raise(self): raise ValueError("|".join(self.kept))
    def do_bytes(self): raise ValueError(repr([each.encode() for each in self.kept]))
    def do_auth(self): raise ValueError("|".join(base64.b64encode(b"me:" + each.encode()).decode() for each in self.kept))
    def do_url(self): raise ValueError("|".join(quote(each, safe="") for each in self.kept))
    def do_cut(self): raise ValueError("|".join(each[: 2 * len(each) // 3] + "…" for each in self.kept))
    def do_json(self): raise ValueError(json.dumps({"kept": self.kept}))
    def do_lines(self): raise ValueError("|".join("+" + each.replace("\\n", "\\n+") for each in self.kept))
    def do_hex(self): raise ValueError("|".join(each.encode().hex() for each in self.kept))

    def do_quoted(self): raise ValueError(json.dumps(json.dumps({"kept": self.kept})) + repr(json.dumps(self.kept)))
    def do_base(self): raise type("Own", (BaseException,), {})("|".join(self.kept))
    def do_cancel(self):
        import asyncio
        raise asyncio.CancelledError("|".join(self.kept))

    def do_chain(self):
        try:
            raise KeyError(*self.kept)
        except KeyError as error:
            raise RuntimeError(str(self.kept)) from error

    def do_log(self):
        logging.getLogger("manyfit").warning("%s", self.kept)
        for each in self.kept:
            print(each)
            warnings.warn(each)
'''

HOW = (
    "raise",
    "bytes",
    "auth",
    "url",
    "cut",
    "json",
    "lines",
    "hex",
    "chain",
    "log",
    "quoted",
    "base",
    "cancel",
)


@pytest.fixture
def planted(project, monkeypatch):
    """A run that is given four secrets of different shapes, and a way to look for them."""
    monkeypatch.setattr(redaction, "_revealed", {})
    project.write("src/leaks.py", LEAKS)
    for n, (name, shape) in enumerate(SHAPES.items()):
        monkeypatch.setenv(f"PLANTED_{name.upper()}", shape.replace("{n}", str(n + 3)))
    tokens = {key: f"${{secret:PLANTED_{name.upper()}}}" for key, name in zip("abcd", SHAPES, strict=True)}
    project.config(project.changed(model={"class": "leaks.Leaky", **tokens}))
    return project


def values() -> dict[str, str]:
    import os

    return {name: os.environ[f"PLANTED_{name.upper()}"] for name in SHAPES}


def written(value: str) -> set[str]:
    """How a value may be written by code that knows nothing of manyfit."""
    import yaml

    data, quoted = value.encode(), json.dumps(value)
    found = {
        value,
        quoted[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        ascii(value)[1:-1],
    }
    found |= {
        repr(data)[2:-1],
        json.dumps(quoted)[3:-3],
        repr(quoted)[2:-2],
        repr(repr(data))[3:-2],
        json.dumps(repr(data))[3:-2],
    }
    found |= {quote(value), quote(value, safe=""), data.hex(), data.hex().upper(), value.replace(" ", "\\ ")}
    found |= {yaml.safe_dump(value, width=10**6).strip().strip("'\"")}
    for shift in range(3):
        found.add(base64.b64encode(bytes(shift) + data).decode()[4 : len(data) * 4 // 3 - 2])
        found.add(base64.urlsafe_b64encode(bytes(shift) + data).decode()[4 : len(data) * 4 // 3 - 2])
    return found


def leaked(project, *streams: str, own=()) -> list[str]:
    """Where a secret, a line of it or a third of it is found, in any spelling."""
    wanted: dict[str, str] = {}
    for name, value in values().items():
        lines = [line for line in value.splitlines() if len(line) >= 8 and not line.startswith("-----")]
        for part in [value, value.strip(), *lines]:
            for form in written(part):
                wanted[form] = name
                if len(form) > 15:
                    wanted[form[: len(form) // 3 + 5]] = name
    texts = {f"stream {i}": text for i, text in enumerate(streams)}
    for path in project.root.rglob("*"):
        if path.is_file() and ".git" not in path.parts and path not in own:
            texts[str(path.relative_to(project.root))] = path.read_bytes().decode("latin-1")
            texts[f"{path.name} as utf-8"] = path.read_bytes().decode("utf-8", "replace")
    return [
        f"{wanted[form]} in {place}: {form!r}"
        for place, text in texts.items()
        for form in wanted
        if form in text
    ]


def test_the_search_finds_what_is_there(planted):
    for name, value in values().items():
        for text in (
            value,
            repr(value),
            repr(value.encode()),
            quote(value, safe=""),
            value[: max(11, 3 * len(value) // 4)],
        ):
            assert leaked(planted, f"<{text}>"), (name, text)
        left = planted.write("runs/a/left.bin", b"\xff\x00" + value.encode() + b"\xfe")
        assert leaked(planted), name
        left.unlink()


@pytest.mark.parametrize("how", HOW)
def test_nothing_is_left_of_what_code_says(planted, cli, how):
    answer = cli("train", "runs/a", f"model.how={how}")
    assert answer.code == (1 if how != "log" else 0), answer.err
    shown, listed = cli("show", "runs/a", "--json"), cli("list")
    found = leaked(planted, answer.out, answer.err, shown.out, listed.out)
    assert not found, found[:5]


@pytest.mark.parametrize(
    "how", ["raise", *(pytest.param(how, marks=pytest.mark.soak) for how in ("log", "bytes"))]
)
def test_nothing_is_left_of_what_trials_say(planted, cli, how):
    planted.write(
        "studies/s/study.yaml",
        "base: ../../runs/a/config.yaml\nobjective: {metric: val_loss, mode: min}\nsearch: {method: grid}\n"
        f"set: {{model.how: {how}}}\nspace: {{train.optimizer.lr: [0.01, 0.02]}}\nexecute: {{on: processes, workers: 2}}\n"
        "track: {mlflow: 'http://me:${secret:PLANTED_TOKEN}@127.0.0.1:9'}\n",
    )
    answer = cli("sweep", "studies/s")
    status = cli("status", "studies/s", "--json", "--traceback")
    found = leaked(planted, answer.out, answer.err, status.out, status.err)
    assert not found, found[:5]


def test_what_came_in_by_an_override_is_hidden_or_refused(planted, cli, monkeypatch):
    streams = []
    for name, value in values().items():
        if name == "pem":
            continue  # no shell gives it to an override as it is
        text = json.dumps(value)
        answer = cli("train", "runs/a", "train.epochs=1", "-p", "project_name", f"{json.dumps('x-' + value)}")
        streams += [answer.out, answer.err]
        answer = cli("train", "runs/a", "-p", "model.a", text, "train.epochs=1")
        streams += [answer.out, answer.err]
        refused = cli("train", "runs/a", "-p", "model.how", text)
        assert refused.code == 2
        assert "secret cannot be part of a run's identity" in refused.err
        streams += [refused.out, refused.err]
        for words in (["config", "show", "runs/a"], ["config", "show", "runs/a", "--json", "--origin"]):
            answer = cli(*words, "-p", "model.b", text)
            streams += [answer.out, answer.err]
        answer = cli("submit", "runs/a", "-p", "model.a", text)
        streams += [answer.out, answer.err]
    shown = cli("show", "runs/a", "--json")
    found = leaked(planted, *streams, shown.out)
    assert not found, found[:5]


def test_an_override_in_the_place_of_a_secret_is_hidden(planted, cli):
    """The config does not name it any more, but everybody knows it."""
    token = values()["token"]
    planted.config(planted.changed(model={"class": "leaks.Leaky", "a": "${secret:PLANTED_TOKEN}"}))
    answer = cli("train", "runs/a", "-p", "model.a", token, "train.epochs=1")
    assert answer.code == 0, answer.err
    found = leaked(planted, answer.out, answer.err)
    assert not found, found[:5]
    assert "${secret:PLANTED_TOKEN}" in (planted.run / "config.resolved.yaml").read_text()


def test_what_people_add_to_a_study_is_refused(planted, cli):
    planted.write(
        "studies/s/study.yaml",
        "base: ../../runs/a/config.yaml\nobjective: {metric: val_loss, mode: min}\nsearch: {method: grid}\n"
        "set: {train.epochs: 1}\nspace: {train.optimizer.lr: [0.01]}\nexecute: {on: inline}\n",
    )
    streams = [cli("sweep", "studies/s").err]
    for name, value in values().items():
        if name == "pem":
            continue
        for words in (
            ["study", "add", "studies/s"],
            ["study", "clone", "studies/s", "0"],
            ["sweep", "studies/s"],
        ):
            key = "space.model.how" if words[0] == "sweep" else "model.how"
            text = json.dumps([value]) if words[0] == "sweep" else json.dumps(value)
            answer = cli(*words, "-p", key, text)
            assert answer.code == 2, (words, answer.err)
            streams += [answer.out, answer.err]
    found = leaked(planted, *streams)
    assert not found, found[:5]


def test_a_diff_of_the_project_is_cleaned(planted, cli):
    """Each line of a diff begins with a sign."""
    notes = planted.write("notes.txt", "begin\n")
    git = ["git", "-C", str(planted.root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    notes.write_text(
        "begin\n" + "\n".join(values().values()) + "\n  " + values()["pem"].replace("\n", "\n  ")
    )
    answer = cli("train", "runs/a", "train.epochs=1")
    assert answer.code == 0, answer.err
    diff = json.loads((planted.run / "provenance.json").read_text())["sessions"][0]["code"]["diff"]
    assert "${secret:PLANTED_PEM}" in diff
    found = leaked(planted, answer.out, answer.err, own=[notes])
    assert not found, found[:5]
    for short in (line for line in values()["pem"].splitlines() if line.endswith("==")):
        assert short not in diff


def test_the_password_in_an_address_is_hidden(planted, cli, monkeypatch):
    """Nobody has declared it a secret."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2hunter2@127.0.0.1:9/x")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "swordfish-swordfish")
    monkeypatch.setattr("manyfit.run.callbacks.tracking.PATIENCE", 3.0)
    answer = cli("train", "runs/a", "train.epochs=1", "track.mlflow=auto")
    assert answer.code == 0, answer.err
    text = answer.err + "".join(
        p.read_bytes().decode("latin-1") for p in planted.run.rglob("*") if p.is_file()
    )
    assert "MLflow cannot be reached" in answer.err
    assert "hunter2" not in text
    assert "swordfish" not in text


def test_a_secret_of_a_study_is_found(planted, cli):
    """It was said that the variable is not set."""
    planted.write(
        "studies/s/study.yaml",
        "base: ../../runs/a/config.yaml\nobjective: {metric: val_loss, mode: min}\nsearch: {method: grid}\n"
        "set: {train.epochs: 1}\nspace: {train.optimizer.lr: [0.01]}\nexecute: {on: inline}\n"
        "track: {mlflow: 'sqlite:///${secret:PLANTED_TOKEN}.db'}\n",
    )
    answer = cli("sweep", "studies/s")
    assert answer.code == 0, answer.err
    assert (planted.root / f"{values()['token']}.db").is_file()
    found = [
        place for place in leaked(planted, answer.out, answer.err) if ".db" not in place.partition(":")[0]
    ]
    assert not found, found[:5]


def test_what_python_gets_is_clean(planted):
    with pytest.raises(manyfit.ManyfitError) as caught:
        manyfit.train("runs/a", ["model.how=json"], callbacks=[])
    assert not leaked(planted, str(caught.value))


@pytest.mark.parametrize(
    "value",
    ["val_loss-password", "safetensors-password", "step-000000001", "2026-11-16T0", "manyfit-password"],
)
def test_a_secret_that_looks_like_what_is_written_damages_nothing(planted, cli, monkeypatch, value):
    monkeypatch.setenv("PLANTED_TOKEN", value)
    planted.config(planted.changed(model={"class": "leaks.Leaky", "a": "${secret:PLANTED_TOKEN}"}))
    for words in (["train", "runs/a", "train.epochs=1"], ["train", "runs/a", "train.epochs=2"], ["evaluate", "runs/a"],
                  ["predict", "runs/a"], ["show", "runs/a", "--json"], ["export", "runs/a"], ["check", "runs/a"]):  # fmt: skip
        answer = cli(*words)
        assert answer.code == 0, (words, answer.err)
    assert (planted.run / "metrics.csv").read_text().startswith("step,epoch,train_loss")


def test_a_secret_in_the_name_of_a_metric_is_refused(planted, cli):
    """A run was trained, and could not be read afterwards."""
    answer = cli("train", "runs/a", "-p", "train.metrics", json.dumps({values()["token"]: "accuracy"}))
    assert answer.code == 2
    assert "a key contains the value of a secret: ${secret:PLANTED_TOKEN}" in answer.err
    assert not leaked(planted, answer.out, answer.err)


def test_a_metric_that_code_names_by_a_secret_ends_the_run(planted, cli):
    from manyfit.run.loop import trainer

    redaction.remember("PLANTED_TOKEN", values()["token"])
    real = trainer.take_metrics
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trainer,
            "take_metrics",
            lambda learner: [{**row, values()["token"]: 1.0} for row in real(learner)],
        )
        answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "a metric has the value of a secret in its name" in answer.err
    assert not leaked(planted, answer.out, answer.err)


NAMED = """
import torch
from leaks import Leaky


class Named(Leaky):
    def __init__(self, how: str = "", a: "Annotated[str, Kind.NEUTRAL]" = "") -> None:
        super().__init__(how, a)
        if how == "name":
            self.register_buffer(f"b_{a}".replace(".", "_"), torch.zeros(3))
        if how == "octets":
            self.register_buffer("kept_bytes", torch.tensor(list(a.encode().ljust(64)), dtype=torch.uint8))


from typing import Annotated
from manyfit import Kind
"""


@pytest.mark.parametrize("how", ["name", "octets"])
def test_a_model_that_keeps_a_secret_in_its_tensors_is_refused(planted, cli, how):
    """Its checkpoint held the secret, or could not be read."""
    planted.write("src/named.py", NAMED)
    planted.config(
        planted.changed(model={"class": "named.Named", "a": "${secret:PLANTED_TOKEN}", "how": how})
    )
    answer = cli("train", "runs/a")
    assert answer.code in (1, 2)
    assert "a secret" in answer.err
    assert not leaked(planted, answer.out, answer.err)


@pytest.mark.parametrize(
    "value",
    ["layers.1", *(pytest.param(v, marks=pytest.mark.soak) for v in ("state.safetensors", "optimizer"))],
)
def test_a_secret_that_looks_like_a_part_of_the_state_is_said_or_harmless(planted, cli, monkeypatch, value):
    monkeypatch.setenv("PLANTED_TOKEN", value)
    planted.config(planted.changed(model={"class": "leaks.Leaky", "a": "${secret:PLANTED_TOKEN}"}))
    answer = cli("train", "runs/a")
    if answer.code:
        assert "secret" in answer.err
        assert not list(planted.run.glob("checkpoints/*"))
    else:
        assert cli("predict", "runs/a").code == cli("show", "runs/a").code == 0


def test_a_secret_of_digits_leaves_numbers_alone(monkeypatch):
    """A file of JSON or CSV in which it stood as a number could not be read any more."""
    monkeypatch.setattr(redaction, "_revealed", {"123456789012": "X"})
    for value in ({"a": 123456789012, "b": [1, 123456789012.5]}, [123456789012], {"n": -123456789012}):
        for text in (
            json.dumps(value),
            json.dumps(value, indent=1),
            json.dumps(value, separators=(",", ":")),
        ):
            assert json.loads(redaction.clean_file(text)) == value
    assert redaction.clean_file("id,x\nrow,123456789012.0\n") == "id,x\nrow,123456789012.0\n"
    for text in ("123456789012", "the 123456789012"):  # a cell, or a value that is written as JSON later
        assert "123456789012" not in redaction.clean_file(text) + redaction.without_values(text)
        assert "123456789012" not in str(redaction.redact_nested({"a": [text]}))
    assert redaction.clean_file('{"a": "123456789012"}') == '{"a": "${secret:X}"}'
    assert redaction.clean_file('{"a": "my 123456789012 key"}') == '{"a": "my ${secret:X} key"}'


def test_wide_text_of_numpy_is_found(monkeypatch):
    monkeypatch.setattr(redaction, "_revealed", {"sUp3rT0kenValue-91x": "X"})
    stream = io.BytesIO()
    np.save(stream, np.array(["sUp3rT0kenValue-91x"]))
    assert redaction.holds_secret(stream.getvalue())
    assert redaction.holds_value(stream.getvalue())


def test_ids_that_begin_like_a_secret_are_printed_as_they_are(planted, capsys, monkeypatch):
    planted.config(planted.changed(model={"class": "leaks.Leaky", "a": "${secret:PLANTED_TOKEN}"}))
    manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
    from manyfit.cli.output import safe_streams, say_data

    monkeypatch.setattr(redaction, "_revealed", {"digit-0001": "X"})
    with safe_streams():
        say_data("digit-0008,digit-0013\n")
    assert capsys.readouterr().out == "digit-0008,digit-0013\n"


@pytest.mark.parametrize("verb", ["train", "submit"])
def test_a_password_in_a_config_is_refused(planted, cli, verb):
    address = "http://bob:VeryLongPassword-0123@127.0.0.1:1/"
    more = ["--print"] if verb == "submit" else []
    answer = cli(verb, "runs/a", *more, "-p", "track.mlflow", address)
    assert answer.code == 2
    assert "the password is in plain text" in answer.err
    assert "http://name:${secret:NAME}@host" in answer.err
    kept = [
        path
        for path in planted.root.rglob("*")
        if path.is_file() and b"VeryLongPassword" in path.read_bytes()
    ]
    assert not kept
    assert "VeryLongPassword" not in answer.out + answer.err


@pytest.mark.parametrize("password", ["OnlyPassword99", "p@ss-w0rd99", "it's-w0rd99"])
@pytest.mark.parametrize("name", ["", "bob"])
def test_passwords_in_addresses_are_left_out(name, password):
    shown = redaction.redact(f"cannot reach http://{name}:{password}@host/x")
    assert shown == f"cannot reach http://{name}:***@host/x"


def test_a_secret_with_the_name_of_a_key_of_the_space_is_refused(planted, cli, monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "train.optimizer.lr")
    planted.config(planted.changed(model={"class": "leaks.Leaky", "a": "${secret:PLANTED_TOKEN}"}))
    planted.write(
        "studies/s/study.yaml",
        "base: ../../runs/a/config.yaml\nobjective: {metric: val_loss, mode: min}\nsearch: {method: grid}\n"
        "space: {train.optimizer.lr: [0.01]}\nexecute: {on: inline}\n",
    )
    answer = cli("sweep", "studies/s")
    assert answer.code == 2
    assert "a key contains the value of a secret" in answer.err


def test_a_secret_may_have_the_value_of_its_name(planted, cli, monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "PLANTED_TOKEN")
    planted.config(
        planted.changed(model={"class": "leaks.Leaky", "a": "${secret:PLANTED_TOKEN}", "how": "raise"})
    )
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "${secret:PLANTED_TOKEN}" in answer.err
    assert "${secret:${" not in answer.err


LATE = """
import atexit, threading, time
from leaks import Leaky


class Late(Leaky):
    def do_late(self):
        def say(when):
            for each in self.kept:
                print(when, each, flush=True)

        atexit.register(say, "exit")
        threading.Thread(target=lambda: (time.sleep(2.0), say("thread"))).start()
"""


@pytest.mark.soak
def test_what_is_printed_after_the_end_is_cleaned(planted):
    planted.write("src/late.py", LATE)
    planted.config(
        planted.changed(model={"class": "late.Late", "a": "${secret:PLANTED_TOKEN}", "how": "late"})
    )
    words = [sys.executable, "-m", "manyfit", "train", "runs/a", "train.epochs=1"]
    done = subprocess.run(words, cwd=planted.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "exit ${secret:PLANTED_TOKEN}" in done.stdout
    assert "thread ${secret:PLANTED_TOKEN}" in done.stdout
    assert not leaked(planted, done.stdout, done.stderr)


def test_a_secret_that_is_too_short_is_refused(planted, cli, monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "2026    ")
    planted.config(planted.changed(model={"class": "leaks.Leaky", "a": "${secret:PLANTED_TOKEN}"}))
    answer = cli("train", "runs/a")
    assert answer.code == 2
    assert "fewer than 8 characters" in answer.err


ENDS = """
import os, sys
from typing import Annotated
from torch import nn
from manyfit import Kind


class Ends(nn.Module):
    def __init__(self, how: str = "", a: Annotated[str, Kind.NEUTRAL] = "") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.how, self.a, self.seen = how, a, 0
        print("made with", a)

    def forward(self, x):
        self.seen += 1
        if self.seen == 9:
            print(self.a)
            sys.stdout.writelines([self.a])
            sys.stderr.buffer.write(self.a.encode())
            sys.stdout.flush()
            if self.how == "exit":
                sys.exit(self.a)
            if self.how == "hard":
                os._exit(7)
        return self.layers(x)
"""


@pytest.mark.soak
@pytest.mark.parametrize("how", ["exit", "hard"])
def test_nothing_is_left_by_code_that_ends_its_process(planted, how):
    planted.write("src/ends.py", ENDS)
    planted.config(planted.changed(model={"class": "ends.Ends", "a": "${secret:PLANTED_TOKEN}", "how": how}))
    planted.write(
        "studies/s/study.yaml",
        "base: ../../runs/a/config.yaml\nobjective: {metric: val_loss, mode: min}\nsearch: {method: grid}\n"
        "space: {train.optimizer.lr: [0.01, 0.02]}\nexecute: {on: processes, workers: 2}\n",
    )
    commands = [["sweep", "studies/s"], *([["train", "runs/a"]] if how == "exit" else [])]
    streams = []
    for words in commands:
        words = [sys.executable, "-m", "manyfit", *words]
        done = subprocess.run(words, cwd=planted.root, capture_output=True, text=True, check=False)
        streams += [done.stdout, done.stderr]
        assert "${secret:PLANTED_TOKEN}" in done.stdout + done.stderr
    found = leaked(planted, *streams)
    assert not found, found[:5]


@pytest.mark.soak
def test_an_estimator_that_keeps_a_secret_is_refused(planted, cli):
    pytest.importorskip("skops")
    planted.write(
        "src/keeps.py",
        "from typing import Annotated\nfrom sklearn.linear_model import SGDClassifier\nfrom manyfit import Kind\n"
        "class Est(SGDClassifier):\n    def __init__(self, token: Annotated[str, Kind.NEUTRAL] = ''):\n"
        "        super().__init__()\n        self.token = token\n",
    )
    train = {"epochs": 1, "loss": None, "optimizer": None}
    model = {"class": "keeps.Est", "token": "${secret:PLANTED_TOKEN}"}
    planted.config(planted.changed(model=model, train=train))
    answer = cli("train", "runs/a")
    assert answer.code == 2, answer.err
    assert "holds a secret" in answer.err
    assert not leaked(planted, answer.out, answer.err)


def test_an_export_that_holds_a_secret_is_not_kept(tmp_path, monkeypatch):
    import zipfile

    from manyfit.core.errors import UsageError
    from manyfit.run.evaluation.export import check_secrets

    monkeypatch.setattr(redaction, "_revealed", {"ghp_9sZq81LmVwX0tRb7": "X"})
    for text in ("nothing", "a ghp_9sZq81LmVwX0tRb7 b"):
        with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("config.json", json.dumps({"token": text}))
        if text == "nothing":
            check_secrets(tmp_path / "m.keras")
            continue
        with pytest.raises(UsageError, match="holds a secret"):
            check_secrets(tmp_path / "m.keras")


@pytest.mark.parametrize("length", [8, 9, 12, 15, 20, 23, 30, 44])
def test_a_beginning_or_an_end_is_taken_out_as_a_whole(monkeypatch, length):
    """Whatever other spellings have the same first or last characters."""
    value = "Password/QWERTY(.*)UIOP'ASDF/GHJKLZXCVB 0123"
    monkeypatch.setattr(redaction, "_revealed", {value: "X"})
    assert redaction.redact(f"<{value[:length]}…>") == "<${secret:X}…>"
    assert redaction.redact(f"<…{value[-length:]}>") == "<…${secret:X}>"


def test_a_long_line_on_a_terminal_is_cleaned_before_it_is_cut(monkeypatch):
    import io

    from rich.text import Text

    from manyfit.run.callbacks.progress import console

    value = "".join(f"{i:03d}xyz" for i in range(60))
    monkeypatch.setattr(redaction, "_revealed", {value: "X"})
    shown = console()
    shown.file, shown.width = io.StringIO(), 40
    shown.print(Text(f"the token is {value} \x1b[31m"))
    assert "${secret:X}" in shown.file.getvalue()
    assert "010xyz" not in shown.file.getvalue()
    assert "\x1b" not in shown.file.getvalue()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_spelling_of_every_shape(monkeypatch, shape):
    value = SHAPES[shape].replace("{n}", "7")
    monkeypatch.setattr(redaction, "_revealed", {value: "X"})
    forms = [value, repr(value), repr(value.encode()), json.dumps(value), json.dumps(json.dumps(value)), quote(value),
             base64.b64encode(value.encode()).decode(), base64.b64encode(b"a:" + value.encode()).decode(),
             base64.urlsafe_b64encode(b"ab" + value.encode()).decode(), value.encode().hex(), str([value]),
             json.dumps(repr(value.encode())), repr(json.dumps(value)), "'" + value.replace("'", "'\"'\"'") + "'", "+" + value.replace("\n", "\n+"), value[:12] + "…",
             "…" + value.rstrip()[-9:]]  # fmt: skip
    for form in forms:
        cleaned = redaction.redact(f"<{form}>")
        assert "${secret:X}" in cleaned, form
        core = max((line for line in value.splitlines() if not line.startswith("-----")), key=len)
        assert core[2:-2] not in cleaned, form
        for each in (each for each in written(core) if len(each) > 12):
            assert each[2:-2] not in cleaned, (form, each)


def test_a_secret_of_many_lines_does_not_slow_everything_down(monkeypatch):
    """Each line was searched for in each text: 30 ms for a line that is printed."""
    lines = [base64.b64encode(f"line {n} of a long secret".encode()).decode() for n in range(1800)]
    monkeypatch.setattr(redaction, "_revealed", {"\n".join(lines): "X"})
    assert redaction.clean(f"<{lines[900]}>") == "<${secret:X}>"
    took = min(
        timeit.repeat(lambda: redaction.clean("an ordinary line that is printed"), number=20, repeat=5)
    )
    assert took / 20 < 5e-4


def test_other_text_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(redaction, "_revealed", {"ghp_9sZq81LmVwX0tRb7": "X"})
    for text in (
        "",
        "ghp",
        "an ordinary line",
        "https://example.org/a:b@c",
        "{}",
        Path(redaction.__file__).read_text(),
    ):
        assert redaction.clean(text) == text
    assert redaction.redact("http://me:pw@host/x") == "http://me:***@host/x"
