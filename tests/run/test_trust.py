"""What came from elsewhere is data: nothing in it is imported or called that is not on the list, or your own."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import pkgutil
import random
import shutil
import time
import zipfile
from pathlib import Path

import pytest

import manyfit
from manyfit.config.typed import checker as checking
from manyfit.config.typed.allowed_classes import ALLOWED
from manyfit.config.typed.component import Component
from manyfit.config.typed.moved_classes import current_path
from manyfit.core.errors import FolderError, UsageError
from manyfit.store import checkpoint as checkpoints

GRAPH = "torch.fx.graph_module.reduce_graph_module"


@pytest.fixture
def stranger(monkeypatch, tmp_path_factory):
    """From now on, what was trained before was trained by somebody else."""

    def become():
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))

    return become


@pytest.fixture
def received(project, stranger):
    """A run that somebody else has trained, in the project of a user who stands in it."""
    manyfit.train("runs/a", callbacks=[])
    stranger()
    return project


def graph(mark: Path) -> dict:
    """A model that is text, which torch executes."""
    body = f"import os\nos.system('touch {mark}')\ndef forward(self, x):\n    return x\n"
    return {"class": GRAPH, "body": {"_graphmodule_cls_name": "M", "_code": body}, "import_block": body}


def writers(mark: Path) -> list[dict]:
    """Classes of manyfit that write when they are made."""
    return [
        {"class": "manyfit.store.events.EventLog", "path": str(mark)},
        {"class": "manyfit.study.ledger.ledger.Ledger", "path": str(mark)},
        {"class": "manyfit.feeders.RecordWriter", "path": str(mark)},
        {"class": "manyfit.store.tensorboard.TensorBoardMirror", "folder": str(mark), "events": []},
        {"class": "manyfit.study.drive.inbox.Inbox", "folder": str(mark)},
    ]


def rewrite_card(folder: Path, component: dict) -> None:
    card = json.loads((folder / "model.json").read_text())
    card["model"]["component"] = component
    (folder / "model.json").write_text(json.dumps(card))


def rewrite_manifests(run: Path, component: dict) -> None:
    for file in run.glob("checkpoints/*/manifest.json"):
        found = json.loads(file.read_text())
        found.pop("digest")
        found["model"]["component"] = component
        text = json.dumps(found, sort_keys=True, separators=(",", ":"))
        found["digest"] = hashlib.sha256(text.encode()).hexdigest()
        file.write_text(json.dumps(found))
        checkpoints.read(file.parent)  # it is whole


def rewrite_config(run: Path, change) -> None:
    """Change the config that a run says it was trained with, and keep whatever seal it had."""
    import yaml

    for file in (run / "config.resolved.yaml", run / "config.yaml"):
        tree = yaml.safe_load(file.read_text())
        change(tree.get("config", tree))
        file.write_text(yaml.safe_dump(tree, sort_keys=False))


READERS = (
    lambda run: manyfit.load_model(run),
    lambda run: manyfit.load_model(run / "exported"),
    lambda run: manyfit.load_model(next((run / "checkpoints").iterdir())),
    lambda run: manyfit.predict(run),
    lambda run: manyfit.evaluate(run),
    lambda run: manyfit.export(run),
)
VERBS = (
    ["predict"], ["evaluate"], ["export"], ["check"], ["check", "--resume"], ["config", "show"],
    ["config", "check"], ["config", "schema"],
)  # fmt: skip


def spoiled(run: Path, component: dict) -> None:
    rewrite_card(run / "exported", component)
    rewrite_manifests(run, component)
    rewrite_config(run, lambda tree: tree.update(model=component))


@pytest.mark.parametrize("place", ["received", "own"])
def test_text_that_torch_would_execute_is_not(project, stranger, cli, tmp_path, place):
    """Also in a run folder of one's own whose files somebody has changed."""
    manyfit.train("runs/a", callbacks=[])
    if place == "received":
        stranger()
    mark = tmp_path / "mark"
    spoiled(project.run, graph(mark))
    for reader in READERS:
        with pytest.raises(manyfit.ConfigError, match="was not made here"):
            reader(project.run)
    for words in VERBS:
        answer = cli(*words, "runs/a")
        assert answer.code == 2, words
        assert "was not made here" in answer.err
        assert "--trust" in answer.err
    assert not mark.exists()


def test_a_config_of_ones_own_may_name_what_it_likes_but_not_writers(project, cli, tmp_path):
    mark = tmp_path / "kept"
    for writer in writers(mark):
        mark.write_text("kept\n")
        project.config(project.changed(model={"class": "torch.nn.Identity", "args": [writer]}))
        answer = cli("check", "runs/a")
        assert answer.code == 2, writer
        assert "neither your own code nor a class for building models" in answer.err
        assert mark.read_text() == "kept\n"


@pytest.mark.parametrize("around", ["torch.nn.Identity", "manyfit.feeders.Feeders", "torch.nn.Sequential"])
def test_writers_inside_an_artifact(received, tmp_path, around):
    mark = tmp_path / "kept"
    for writer in writers(mark):
        mark.write_text("kept\n")
        spoiled(received.run, {"class": around, "args": [writer]})
        for reader in READERS:
            with pytest.raises(manyfit.ManyfitError):
                reader(received.run)
        assert mark.read_text() == "kept\n"


@pytest.mark.parametrize(
    "component",
    [
        {"class": "keras.Sequential", "layers": [{"class": "keras.layers.TFSMLayer", "filepath": "x"}]},
        {"class": "keras.Sequential", "layers": [{"class": "keras.layers.Lambda", "function": "x"}]},
        {"class": "keras.saving.deserialize_keras_object", "config": {}},
        {
            "class": "keras.Sequential",
            "layers": [
                {
                    "class": "keras.layers.Dense",
                    "units": 3,
                    "activation": {"class_name": "function", "config": "system", "module": "os"},
                }
            ],
        },
        {
            "class": "keras.Sequential",
            "layers": [{"class_name": "TFSMLayer", "module": "keras.layers", "config": {"filepath": "x"}}],
        },
    ],
)
def test_layers_of_keras_that_carry_code(received, component):
    spoiled(received.run, component)
    for reader in READERS:
        with pytest.raises(manyfit.ConfigError, match="was not made here"):
            reader(received.run)


@pytest.mark.parametrize(
    "part",
    [
        {"module": "keras.layers", "class_name": "Lambda", "config": {}},
        {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "x"}},
        {
            "module": "keras.layers",
            "class_name": "TextVectorization",
            "config": {"vocabulary": "/etc/passwd"},
        },
        {"module": "keras.utils", "class_name": "get_file", "config": {}},
        {"module": "keras.losses", "class_name": "deserialize", "config": {}},
        {"module": "keras.src.ops.core", "class_name": "WhileLoop", "config": {}},
        {"module": "builtins", "class_name": "function", "config": "get_file"},
        {"module": "os", "class_name": "system", "config": {}},
        {"module": "keras.layers", "class_name": "Dense", "registered_name": "Custom>Dense", "config": {}},
        {"class_name": "__lambda__", "config": {}},
        {"class_name": "__typespec__", "config": {}},
        {"class_name": "__tensor__", "module": "os", "config": {}},
        {"class_name": ["Dense"], "module": "keras.layers"},
        {"class_name": "JaxLayer", "config": {}},
        {"module": "keras", "class_name": "layers.Lambda", "config": {}},
        {"module": "keras", "class_name": "layers.Dense", "config": {}},
    ],
)
def test_parts_of_a_keras_file_that_are_not_listed(tmp_path, part):
    """Refused by what they are called, before Keras looks at them."""
    file = tmp_path / "model.keras"
    dense = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2, "activation": part}}
    for config in (part, {"module": "keras", "class_name": "Sequential", "config": {"layers": [dense]}}):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("config.json", json.dumps(config))
        with pytest.raises(UsageError, match="contains code"):
            manyfit.load_model(file)


EVIL = """
from pathlib import Path
from torch import nn
Path({mark!r}).touch()
class MLP(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0), nn.Linear(hidden, 10))
    def forward(self, images): return self.layers(images)
"""


def test_code_inside_a_received_run_folder(received, cli, tmp_path):
    mark = tmp_path / "mark"
    received.write("runs/a/code/stranger.py", EVIL.format(mark=str(mark)))
    rewrite_config(
        received.run,
        lambda tree: tree.update(src_code_path="runs/a/code", model={"class": "stranger.MLP", "hidden": 8}),
    )
    for reader in (READERS[0], *READERS[3:]):
        with pytest.raises(manyfit.ConfigError, match=r"stranger\.MLP"):
            reader(received.run)
    for words in VERBS:
        assert cli(*words, "runs/a").code == 2, words
    assert not mark.exists()


def test_a_received_folder_with_code_beside_it(received, cli, tmp_path, monkeypatch):
    """Its own `src` does not make it a project of the user's, who stands elsewhere."""
    mark = tmp_path / "mark"
    (received.src / "models.py").write_text(EVIL.format(mark=str(mark)))
    here = tmp_path / "elsewhere"
    here.mkdir()
    shutil.copytree(received.src, here / "received/src")
    shutil.copytree(received.run, here / "received/runs/exp")
    (here / "runs").mkdir()
    monkeypatch.chdir(here)
    run = Path("received/runs/exp")
    for reader in READERS:
        with pytest.raises(manyfit.ConfigError, match="was not made here"):
            reader(run)
    for words in VERBS:
        assert cli(*words, run).code == 2, words
    assert not mark.exists()
    assert cli("predict", run, "--trust", "--allow-change", "code").code == 0
    assert mark.exists()


def test_an_export_of_a_received_run_takes_no_code_from_it_and_is_not_sealed(received, tmp_path):
    """The model is built once more, to compare it with the original."""
    mark = tmp_path / "mark"
    received.write("runs/a/payload/models.py", EVIL.format(mark=str(mark)))
    rewrite_config(received.run, lambda tree: tree.update(src_code_path="runs/a/payload"))
    manyfit.export("runs/a")
    assert not mark.exists()
    assert "seal" not in json.loads((received.run / "exported/model.json").read_text())["model"]


def test_who_stands_in_an_artifact_does_not_stand_in_a_project(
    received, tmp_path, tmp_path_factory, monkeypatch
):
    mark = tmp_path / "mark"
    far = tmp_path_factory.mktemp("far") / "run"
    shutil.copytree(received.run, far)
    (far / "src").mkdir()
    (far / "src/models.py").write_text(EVIL.format(mark=str(mark)))
    monkeypatch.chdir(far)
    for place in (".", "exported", "../run/exported", next(Path("checkpoints").iterdir())):
        with pytest.raises(manyfit.ConfigError, match="was not made here"):
            manyfit.load_model(place)
    for file in ("config.resolved.yaml", "config.yaml"):
        (far / file).unlink()
    with pytest.raises(manyfit.ConfigError, match="was not made here"):
        manyfit.load_model("exported")
    assert not mark.exists()


def test_a_seal_holds_for_one_folder(project, cli):
    """A copy of one's own run that came back with another config is not one's own."""
    manyfit.train("runs/a", callbacks=[])
    shutil.copytree(project.run, project.root / "runs/returned")
    project.write("runs/returned/p/evilmod.py", EVIL.format(mark=str(project.root / "mark")))
    rewrite_to = {**project.changed(model={"class": "evilmod.MLP"}), "src_code_path": "runs/returned/p"}
    project.config(rewrite_to, "returned")
    for words in (["config", "check"], ["config", "show"], ["check"]):
        assert cli(*words, "runs/returned").code == 2
    assert not (project.root / "mark").exists()


@pytest.mark.parametrize("where", ["beside", "runs"])
def test_a_seal_holds_for_no_copy_of_a_run_outside_of_its_project(
    project, tmp_path_factory, monkeypatch, cli, where
):
    """Such a run names its project, and was taken for one's own wherever it lay."""
    home, away = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("away")
    place = "out" if where == "beside" else "work/runs/a"
    manyfit.train("runs/a", folder=home / place, callbacks=[])
    assert "project_path" in (home / place / "config.resolved.yaml").read_text()
    monkeypatch.chdir(away)
    copied = away / ("evil" if where == "beside" else "bundle/runs/a")
    shutil.copytree(home / place, copied)
    mark = away / "ran"
    (copied / "src").mkdir()
    (copied / "src/evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    rewrite = project.changed(model={"class": "evil.M"}, project_path=str(copied))
    (copied / "config.yaml").write_text(json.dumps(rewrite))
    for words in (["config", "check"], ["check"], ["config", "show"]):
        answer = cli(*words, copied)
        assert answer.code == 2, answer.out
        assert "was not made here" in answer.err
    assert not mark.exists()
    with pytest.raises(manyfit.ManyfitError, match=r"evil\.M|models\.MLP"):
        manyfit.predict(copied)
    assert manyfit.predict(home / place) is not None


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "run.log"])
def test_a_file_that_has_another_name_keeps_its_content_there(received, name):
    """An archive may hold a link to a file that lies where it is unpacked."""
    other = received.root / "src/precious.py"
    if name != ".lock" and (received.run / name).exists():
        other.write_bytes((received.run / name).read_bytes())
    else:
        other.write_text("precious\n")
    before = other.read_bytes()
    (received.run / name).unlink(missing_ok=True)
    (received.run / name).hardlink_to(other)
    manyfit.evaluate("runs/a")
    manyfit.train("runs/a", ["train.epochs=3"], callbacks=[])
    assert other.read_bytes() == before


def test_links_inside_of_a_checkpoint_are_refused_by_whoever_writes(received, cli):
    state = next((received.run / "checkpoints").glob("*/state.safetensors"))
    shutil.move(state, received.root / "elsewhere")
    state.symlink_to(received.root / "elsewhere")
    for verb in ("evaluate", "export"):
        answer = cli(verb, "runs/a")
        assert answer.code == 2
        assert "is a link" in answer.err


@pytest.mark.parametrize(
    "value", [{"dict": True}, *(pytest.param(v, marks=pytest.mark.soak) for v in ([1], "x", None))], ids=str
)
@pytest.mark.parametrize("key", ["optimizer", "model", "sums", "step"])
def test_a_state_that_is_not_what_manyfit_writes(received, cli, key, value):
    for file in received.run.glob("checkpoints/*/manifest.json"):
        found = json.loads(file.read_text())
        found.pop("digest")
        found["values"][key] = value
        text = json.dumps(found, sort_keys=True, separators=(",", ":"))
        found["digest"] = hashlib.sha256(text.encode()).hexdigest()
        file.write_text(json.dumps(found))
    answer = cli("predict", "runs/a")
    assert answer.code == 2 or (value is None and answer.code == 0)
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("extra", [[1], "s", 5, None], ids=str)
def test_an_export_whose_rest_is_strange(received, extra):
    card = json.loads((received.run / "exported/model.json").read_text())
    (received.run / "exported/model.json").write_text(json.dumps({**card, "extra": extra}))
    with pytest.raises(FolderError):
        manyfit.load_model(received.run / "exported")


def keras_file(folder: Path, **changes) -> Path:
    """A model of Keras, with other members in its archive."""
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.save(folder / "whole.keras")
    with (
        zipfile.ZipFile(folder / "whole.keras") as archive,
        zipfile.ZipFile(folder / "x.keras", "w") as other,
    ):
        for name in archive.namelist():
            if changes.get(name, b"") is not None:
                other.writestr(name, changes.get(name) or archive.read(name))
    return folder / "x.keras"


@pytest.mark.parametrize(
    "changes",
    [
        {"config.json": b"[" * 200_000 + b"]" * 200_000},
        {"config.json": b"[]"},
        {"config.json": b"{}"},
        {"model.weights.h5": b"garbage"},
        {"model.weights.h5": None},
    ],
    ids=["deep", "list", "empty", "weights", "none"],
)
def test_a_damaged_file_of_keras_is_one_message(tmp_path, changes):
    with pytest.raises(FolderError):
        manyfit.load_model(keras_file(tmp_path, **changes))


def test_text_of_many_backslashes_is_read_at_once():
    from manyfit.config.tree.references import parse_references

    began = time.process_time()
    parse_references("\\" * 400_000)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("how", ["dangling", "gone"])
def test_a_trained_folder_without_its_resolved_config_is_still_one(received, cli, how):
    (received.run / "config.resolved.yaml").unlink()
    if how == "dangling":
        (received.run / "config.resolved.yaml").symlink_to("nowhere.yaml")
    received.write("runs/a/p/evilmod.py", EVIL.format(mark=str(received.root / "mark")))
    received.config({**received.changed(model={"class": "evilmod.MLP"}), "src_code_path": "runs/a/p"})
    for words in (["config", "check"], ["check"]):
        assert cli(*words, "runs/a").code == 2
    assert not (received.root / "mark").exists()


def test_track_sync_imports_nothing_and_sends_nothing(received, cli, monkeypatch):
    """Also where a run folder looks like a study, and where a study is somebody else's."""
    mark = received.root / "mark"
    received.write("src/evil7.py", EVIL.format(mark=str(mark)))
    base = received.changed(model={"class": "evil7.MLP"})
    study = {"base": base, "objective": {"metric": "val_loss", "mode": "min"}, "search": {"method": "grid"},
             "space": {"train.optimizer.lr": [0.1]}, "track": {"mlflow": "sqlite:///there.db"}}  # fmt: skip
    received.write("runs/a/study.yaml", json.dumps(study))
    received.write("runs/a/ledger.db", "")
    received.write("studies/s/study.yaml", json.dumps(study))
    received.write("studies/s/ledger.db", "")
    cli("track", "sync", "runs/a")
    answer = cli("track", "sync", "studies/s")
    assert answer.code == 2
    assert "was not created by you on this machine" in answer.err
    assert not mark.exists()
    rewrite_config(received.run, lambda tree: tree.update(track={"mlflow": "auto"}))
    assert cli("track", "sync", "runs/a").code == 0
    assert cli("track", "sync", "runs/a", "--mlflow", "sqlite:///mine.db").code == 2
    assert not list(received.root.glob("*.db"))


def test_nothing_is_written_through_a_link_at_a_temporary_name(tmp_path):
    import os

    from manyfit.store import durable

    kept = tmp_path / "kept"
    kept.write_text("kept\n")
    (tmp_path / f".x.json.{os.getpid()}.tmp").symlink_to(kept)
    durable.write_file(tmp_path / "x.json", "new\n")
    assert kept.read_text() == "kept\n"
    assert (tmp_path / "x.json").read_text() == "new\n"


@pytest.mark.parametrize("target", ["secret.txt", "/dev/zero"])
def test_an_export_copies_no_links(received, target):
    received.write("secret.txt", "TOPSECRET\n")
    extra = received.run / "exported/extra"
    extra.mkdir()
    (extra / "notes").symlink_to(received.root / target)
    with pytest.raises(FolderError, match=r"is a link|neither a file nor a folder"):
        manyfit.export("runs/a")


def test_modules_are_imported_only_from_where_they_are_ones_own(received):
    """A folder of one's own does not open a package of the same name; attributes lead to no import."""
    import sys

    (received.src / "test").mkdir()
    for path in ("test.support.threading_helper.X", "models.nn.functional.torch._dynamo.config.X"):
        before = set(sys.modules)
        spoiled(received.run, {"class": path})
        with pytest.raises(manyfit.ConfigError, match="was not made here"):
            manyfit.load_model(received.run / "exported")
        assert not {name for name in set(sys.modules) - before if name.startswith(("test.", "torch._dynamo"))}


def blob(names: dict[str, str]) -> bytes:
    """An estimator in the form of skops with an attribute of another class, by module and name."""
    import io

    import skops.io
    from sklearn.linear_model import LogisticRegression

    data = skops.io.dumps(LogisticRegression())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        schema = json.loads(archive.read("schema.json"))
    module, _, name = names["class"].rpartition(".")
    state = {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode", "content": '"x"', "is_json": True,
             "__id__": 98}  # fmt: skip
    schema["content"]["content"]["extra"] = {
        "__class__": name, "__module__": module, "__loader__": names["loader"], "content": state, "__id__": 99,
    }  # fmt: skip
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("schema.json", json.dumps(schema))
    return made.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "torch.utils.data.datapipes.datapipe._IterDataPipeSerializationWrapper", marks=pytest.mark.soak
        ),
        "manyfit.core.files.read_text",
        "torch.hub.load",
        "sklearn.datasets._base.urlretrieve",
        "os.system",
    ],
)
def test_an_estimator_holds_what_its_class_may_hold(name):
    """Whatever its parameters are: they come with the state."""
    import torch

    from manyfit.core.errors import RunFailed
    from manyfit.core.state import State
    from manyfit.data import ArraySource
    from manyfit.learn.estimator.learner import KEPT, EstimatorLearner

    linear = pytest.importorskip("sklearn.linear_model")
    pytest.importorskip("skops")
    import numpy as np

    built = linear.LogisticRegression(class_weight=torch.nn.Identity())
    learner = EstimatorLearner(built, ArraySource(np.zeros((0, 1))))
    for loader in ("ObjectNode", "ConstructorFromReduceNode"):
        data = np.frombuffer(bytearray(blob({"class": name, "loader": loader})), dtype=np.uint8)
        state = State({KEPT: torch.from_numpy(data)}, {"step": 1, "loss": None})
        with pytest.raises(RunFailed, match="which is not a trusted type"):
            learner.load([state])


def test_a_path_through_ones_own_module_leads_nowhere_else(received):
    for path in (
        "models.nn.Linear",
        "models.np.load",
        "models.Path.touch",
        "points.np.save",
        "models.nn.Module",
    ):
        spoiled(received.run, {"class": path})
        for reader in READERS:
            with pytest.raises(manyfit.ManyfitError, match="was not made here"):
                reader(received.run)


def test_a_received_run_works_in_the_project_that_has_its_code(received, cli):
    for reader in READERS:
        reader(received.run)
    for words in (["predict"], ["evaluate"], ["export"], ["check"], ["config", "show"], ["config", "check"]):
        assert cli(*words, "runs/a").code == 0, words


def test_one_of_listed_classes_works_anywhere(project, stranger, tmp_path, monkeypatch):
    layers = [
        {"class": "torch.nn.Flatten"},
        {"class": "torch.nn.Linear", "in_features": 64, "out_features": 10},
    ]
    project.config(
        project.changed(data={"class": "digits"}, model={"class": "torch.nn.Sequential", "args": layers})
    )
    manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
    stranger()
    shutil.copytree(project.run, tmp_path / "far/away")
    monkeypatch.chdir(tmp_path / "far")
    for reader in READERS:
        reader(Path("away"))


LIBRARY = """
from torch import nn
def net(hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
"""


def test_what_one_has_trained_here_stays_free(project, stranger, cli, monkeypatch):
    """A function of an installed package is no problem in a run of one's own."""
    project.write("installed/some_library.py", LIBRARY)
    monkeypatch.syspath_prepend(str(project.root / "installed"))
    project.config(project.changed(model={"class": "some_library.net", "hidden": 8}))
    manyfit.train("runs/a", callbacks=[])
    monkeypatch.chdir("/")
    for reader in READERS:
        reader(project.run)
    stranger()
    for reader in READERS:
        with pytest.raises(manyfit.ConfigError, match=r"some_library\.net"):
            reader(project.run)
    assert cli("predict", project.run, "--trust").code == 0
    manyfit.load_model(project.run / "exported", trust=True)


def test_a_run_of_ones_own_that_was_moved_is_like_any_other(project, monkeypatch):
    manyfit.train("runs/a", callbacks=[])
    shutil.copytree(project.root, project.root.with_name("moved"), ignore=shutil.ignore_patterns("installed"))
    monkeypatch.chdir("/")
    with pytest.raises(manyfit.ConfigError, match="was not made here"):
        manyfit.predict(project.root.with_name("moved") / "runs/a")
    monkeypatch.chdir(project.root.with_name("moved"))
    manyfit.predict("runs/a")


def test_without_a_place_for_a_key_one_can_still_train(project, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    result = manyfit.train("runs/a", callbacks=[])
    assert "seal:" not in (project.run / "config.resolved.yaml").read_text()
    assert result.load_model() is not None
    manyfit.predict("runs/a")  # where one stands


def test_the_environment_is_closed_to_artifacts(received, monkeypatch, cli):
    monkeypatch.setenv("TOKEN", "hunter2-hunter2")
    for reference in ("${oc.env:TOKEN}", "${secret:TOKEN}"):
        rewrite_config(received.run, lambda tree, r=reference: tree.update(project_name=r))
        answer = cli("predict", "runs/a")
        assert answer.code == 2
        assert "was not made here, and reads the environment variable 'TOKEN'" in answer.err


def test_results_are_not_sent_where_a_stranger_says(received, cli):
    rewrite_config(
        received.run, lambda tree: tree.update(track={"mlflow": "http://127.0.0.1:9/${secret:HOME}"})
    )
    import yaml

    file = received.run / "config.resolved.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["defaults"].pop("track.mlflow", None)
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    answer = cli("track", "sync", "runs/a")
    assert answer.code == 2
    assert "was not trained here, and would be sent to" in answer.err
    assert cli("predict", "runs/a").code == 0  # which sends nothing


def test_files_are_neither_written_nor_fetched_by_feeders(received):
    feeder = {
        "class": "TFRecordExamplesFeeder",
        "batch_size": 4,
        "features_map": {"x": {"class": "FixedLenFeature"}},
    }
    for change in ({"file_patterns": "data/*", "auto_generate_meta": True}, {"file_patterns": "data/*", "cache": "/tmp/somewhere"}, {"file_patterns": "http://127.0.0.1:9/*"},
                   {"file_patterns": ["simplecache::http://127.0.0.1:9/x"]}):  # fmt: skip
        data = {"class": "manyfit.feeders.Feeders", "train": {**feeder, **change}}
        rewrite_config(received.run, lambda tree, data=data: tree.update(data=data))
        with pytest.raises(manyfit.ConfigError, match=r"would write a file|would read from"):
            manyfit.predict("runs/a")


def test_weights_that_do_not_fit_are_said(project):
    manyfit.train("runs/a", callbacks=[])
    rewrite_card(project.run / "exported", {"class": "models.MLP", "hidden": 9})
    with pytest.raises(FolderError, match=r"exported: the weights do not fit the model MLP.*size mismatch"):
        manyfit.load_model("runs/a/exported")


# -- every public name, at every place ------------------------------------------------------------

PACKAGES = ("torch", "keras", "numpy", "safetensors", "manyfit")
PLACES = ("model", "data", "train.loss", "train.optimizer", "train.scheduler", "train.metrics", "evaluate.functions",
          "evaluate.evaluator", "nested", "keyword", "deep", "section")  # fmt: skip
ROLES = PLACES[:8]


@functools.cache
def public_names() -> list[str]:
    """Public functions and classes of the packages, by every path under which they can be reached."""
    found: set[str] = set()
    for package in PACKAGES:
        top = importlib.import_module(package)
        modules = [top] + [
            module
            for info in pkgutil.iter_modules(top.__path__, f"{package}.")
            if not info.name.rpartition(".")[2].startswith("_")
            and (module := _imported(info.name)) is not None
        ]
        for module in modules:
            for name, value in list(vars(module).items()):
                if not name.startswith("_") and callable(value):
                    found.add(f"{module.__name__}.{name}")
                elif inspect.ismodule(value) and value.__name__.startswith(package):
                    found |= {
                        f"{module.__name__}.{name}.{inner}"
                        for inner, each in list(vars(value).items())
                        if not inner.startswith("_") and callable(each)
                    }
    return sorted(found)


def _imported(name: str):
    if name.endswith(("__main__", ".testing", ".conftest")) or ".tests" in name:
        return None
    try:
        return importlib.import_module(name)
    except Exception:  # an optional part that is not installed here
        return None


def placed(place: str, path: str) -> dict:
    """A config that names `path` at one place."""
    tree: dict = {
        "project_name": "x",
        "data": {"class": "digits"},
        "model": {"class": "torch.nn.Identity"},
        "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": "sgd", "metrics": ["accuracy"]},
        "evaluate": {},
    }
    component = {"class": path}
    if place == "roles":
        for each in ROLES:
            tree = merged(tree, placed(each, path), each)
    elif place == "inside":
        deep = {"a": [{"b": {"_target_": path}}]}
        tree["model"] = {"class": "torch.nn.Sequential", "args": [component, deep], "anything": component}
    elif place == "nested":
        tree["model"] = {"class": "torch.nn.Sequential", "args": [component]}
    elif place == "keyword":
        tree["model"] = {"class": "torch.nn.Identity", "anything": component}
    elif place == "deep":
        tree["model"] = {"class": "torch.nn.Identity", "args": [{"a": [{"b": {"_target_": path}}]}]}
    elif place == "section":
        tree["mine"] = component
    elif place in ("train.metrics",):
        tree["train"]["metrics"] = [component]
    elif place == "evaluate.functions":
        tree["evaluate"]["functions"] = {"f": component}
    elif "." in place:
        section, key = place.split(".")
        tree[section][key] = component
    else:
        tree[place] = component
    return tree


def merged(tree: dict, other: dict, place: str) -> dict:
    """A config with one place of another."""
    section, _, key = place.partition(".")
    if key:
        return {**tree, section: {**tree[section], key: other[section][key]}}
    return {**tree, section: other[section]}


class Recorder:
    """Everything that class paths were resolved to, and everything that was built."""

    def __init__(self, monkeypatch) -> None:
        self.resolved: list[str] = []
        self.built: list[str] = []
        resolve, build = checking.resolve, Component.build

        def resolving(text, role, source):
            self.resolved.append(role.short.get(text, text).replace(":", "."))
            return resolve(text, role, source)

        def building(component, **supplied):
            self.built.append(component.path)
            return build(component, **supplied)

        monkeypatch.setattr(checking, "resolve", resolving)
        monkeypatch.setattr(Component, "build", building)


def attack(tmp_path, monkeypatch, names, places):
    """Put names at places in a run folder, a checkpoint's description and an export; return what was reached."""
    import yaml

    from manyfit.config.load import load_config, make_component
    from manyfit.config.typed.artifacts import Artifact
    from manyfit.config.typed.roles import MODEL

    run = tmp_path / "attacked"
    run.mkdir(exist_ok=True)
    recorder = Recorder(monkeypatch)
    monkeypatch.chdir(tmp_path)
    refused = 0
    for name in names:
        for place in places:
            tree = placed(place, name)
            text = {
                "config": tree,
                "defaults": {},
                "derived": {},
                "classes": {},
                "kinds": {},
                "fingerprint": "0",
            }
            (run / "config.resolved.yaml").write_text(yaml.safe_dump(text))
            try:
                load_config(run / "config.resolved.yaml")
            except manyfit.ConfigError as error:
                refused += any("was not made here" in problem.message for problem in error.problems)
        for component in ({"class": name}, {"class": "torch.nn.Sequential", "args": [{"class": name}]}):
            try:
                make_component(component, "model", MODEL, tmp_path, tmp_path / "src", Artifact.at(run))
            except manyfit.ConfigError as error:
                refused += any("was not made here" in problem.message for problem in error.problems)
    return recorder, refused


PARTS = 24


def test_names_at_places_representative(tmp_path, monkeypatch):
    rng = random.Random(0)
    names = [name for name in public_names() if current_path(name) not in ALLOWED]
    chosen = [*rng.sample(names, 40), GRAPH, "torch.load", "torch.hub.load", "numpy.load", "torch.jit.load",
              "manyfit.store.events.EventLog", "torch.nn.Module", "torch.nn.DataParallel"]  # fmt: skip
    recorder, refused = attack(tmp_path, monkeypatch, chosen, PLACES)
    assert set(recorder.resolved) <= ALLOWED
    assert set(recorder.built) <= ALLOWED
    assert refused == len(chosen) * (len(PLACES) + 2)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_names_at_places_all(tmp_path, monkeypatch, part):
    """Every name, at all roles of one config and inside of a listed model in another."""
    names = [name for name in public_names() if current_path(name) not in ALLOWED]
    assert len(names) > 5000
    names = names[part::PARTS]
    recorder, refused = attack(tmp_path, monkeypatch, names, ("roles", "inside"))
    assert set(recorder.resolved) <= ALLOWED
    assert set(recorder.built) <= ALLOWED
    assert refused == len(names) * 4
    print(f"{len(names)} names, {refused} refusals")


def test_what_is_listed_is_there_and_is_a_class_or_a_function_of_tensors():
    known = 0
    for path in sorted(ALLOWED):
        module, _, name = path.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError:
            continue  # an extra that is not installed
        if found is None:
            continue  # of a newer version
        known += 1
        functions = ("torch.nn.functional", "manyfit.metrics", "manyfit.pipeline")
        assert inspect.isclass(found) or module in functions, path
    assert known > len(ALLOWED) * 0.9


def test_making_what_is_listed_touches_no_file(tmp_path, monkeypatch):
    """Every listed class is made with what its signature needs, in a folder that stays empty."""
    import sys

    from manyfit.config.typed.signatures import signature_of

    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    events = ("open", "os.system", "subprocess.Popen", "socket.connect", "exec", "os.remove", "os.mkdir")
    active = [False]

    def watch(event, args):
        if active[0] and event in events:
            writes = event != "open" or (isinstance(args[1], str) and any(c in args[1] for c in "wax+"))
            if writes and event != "exec":
                opened.append(f"{event} {args!r:.80}")

    sys.addaudithook(watch)
    samples = {int: 4, float: 0.5, str: "x", bool: False, list: [1], tuple: (1, 1)}
    made = 0
    for path in sorted(p for p in ALLOWED if p.startswith(("torch.nn.", "torchmetrics.", "sklearn."))):
        module, _, name = path.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError:
            continue
        if not inspect.isclass(found):
            continue
        wanted = {k: p for k, p in signature_of(found).parameters.items() if p.required}
        active[0] = True
        try:
            found(**{k: samples.get(p.annotation, 4) for k, p in wanted.items()})
            made += 1
        except Exception:  # it wants other arguments
            pass
        finally:
            active[0] = False
    assert made > 150
    assert not opened
    assert not list(tmp_path.iterdir())


def test_help_says_what_trust_does(cli):
    for words in (["predict"], ["evaluate"], ["export"], ["check"]):
        assert "--trust" in cli(*words, "--help").out
