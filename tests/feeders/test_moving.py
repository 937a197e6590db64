"""What users of variants bring along: commands, keys, files beside the records, and what their tests expect."""

from __future__ import annotations

import gzip
import time

import numpy as np
import pytest

from manyfit.core.errors import ConfigError
from manyfit.data import Order
from manyfit.data.tfrecord import files, indexing
from manyfit.data.tfrecord.errors import RecordError
from manyfit.data.tfrecord.frames import frame_record
from manyfit.data.tfrecord.writer import encode, write_records
from manyfit.feeders import FixedLenFeature, MemorySamplesFeeder, TFRecordExamplesFeeder

from .test_variants import VARIANT, here, project, run  # noqa: F401 - fixtures


def config_of(*words):
    from manyfit import load_config
    from manyfit.cli.common import split_overrides

    found, rest = split_overrides([str(word) for word in words])
    return load_config(rest[0], found)


# -- variants -------------------------------------------------------------------------------------


def test_a_folder_of_variants_that_is_named_wins_and_duplicates_are_named(project, capsys):  # noqa: F811
    other = project / "elsewhere"
    other.mkdir()
    name = next((project / "variants").glob("*.yaml"))
    (other / name.name).write_text(VARIANT.replace("hidden: 6", "hidden: 13"))
    for flag in ("--variants-dir", "-d"):
        assert run("config", "show", name.stem, flag, other) == 0
        shown = capsys.readouterr()
        assert "13" in shown.out and str(name) in shown.err and "ignored" in shown.err
    assert run("config", "show", name.stem) == 0
    assert "ignored" not in capsys.readouterr().err


def test_a_mapping_on_the_command_line_replaces_and_with_a_plus_is_merged(project):  # noqa: F811
    name = next((project / "variants").glob("*.yaml")).stem
    replaced = config_of(name, "-p", "train.optimizer", "{class: sgd, lr: 0.5}")
    assert "momentum" not in replaced.run.train.optimizer.params
    assert replaced.run.train.optimizer.params == {"lr": 0.5}
    merged = config_of(name, "-p", "+train.optimizer", "{weight_decay: 0.5}")
    assert merged.run.train.optimizer.path.endswith("Adam")
    assert merged.run.train.optimizer.params == {"lr": 0.02, "weight_decay": 0.5}
    with pytest.raises(ConfigError, match="class"):
        config_of(name, "-p", "train.optimizer", "{weight_decay: 0.5}")


def test_a_text_is_taken_as_it_is_written(project):  # noqa: F811
    name = next((project / "variants").glob("*.yaml")).stem
    found = config_of(name, "-P", "project_name", "0123", "-p", "train.epochs", "3")
    assert found.tree.items["project_name"].value == "0123" and found.run.train.epochs == 3


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("type: 'net:Net'", "module_path: models.registry.net\n  class_type: Net", "type: 'net:Net'"),
        ("type: TFRecordExamplesFeeder", "class_type: TFRecordExamplesFeeder", "'TFRecordExamplesFeeder'"),
        ("epochs: 2", "epochs: 2\n  early_stopping_metric: loss", "train: {stop: {metric: val_loss"),
        ("epochs: 2", "epochs: 2\n  early_stopping_min_steps: 3", "train.stop.patience"),
    ],
)
def test_keys_of_later_versions_are_met_with_what_to_write(project, old, new, says):  # noqa: F811
    file = next((project / "variants").glob("*.yaml"))
    file.write_text(VARIANT.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        config_of(file.stem)
    assert says in str(caught.value)


def test_a_parameter_that_is_called_like_such_a_key_is_a_parameter(project):  # noqa: F811
    net = project / "models" / "registry" / "net.py"
    net.write_text(net.read_text().replace("hidden: int = 8", "hidden: int = 8, class_type: str = ''"))
    file = next((project / "variants").glob("*.yaml"))
    file.write_text(VARIANT.replace("hidden: 6", "hidden: 6\n  class_type: round"))
    assert config_of(file.stem).run.model.params["class_type"] == "round"


def test_debug_does_not_tell_what_an_override_says(project, capsys):  # noqa: F811
    name = next((project / "variants").glob("*.yaml")).stem
    run("-l", "DEBUG", "config", "show", name, "-p", "model.password", "tops3cret", "-p", "train.epochs", "3")
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("DEBUG")]
    assert "DEBUG set model.password" in told and not any("tops3cret" in line for line in told)


def test_minus_one_example_is_all_of_them_in_a_variant(project):  # noqa: F811
    file = next((project / "variants").glob("*.yaml"))
    file.write_text(VARIANT.replace("batch_size: 20", "batch_size: 20\n    max_examples: -1"))
    assert config_of(file.stem).run.data.build().source("train").max_examples is None


SCHEDULED = '''
import torch
from torch import nn


class Own(nn.Module):
    """Brings its optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Embedding(100, 100)

    def forward(self, number):
        return self.body(number[:, 0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)
'''


def test_a_schedule_goes_with_the_optimiser_of_the_model(project, capsys):  # noqa: F811
    (project / "models" / "registry" / "own.py").write_text(SCHEDULED)
    text = VARIANT.replace("'net:Net'\n  hidden: 6", "'own:Own'")
    text = text.replace(
        "optimizer: {class: adam, lr: 0.02}", "scheduler: {class: step, step_size: 1, gamma: 0.1}"
    )
    (project / "variants" / "own.yaml").write_text(
        text.replace("epochs: 2", "epochs: 2\n  scheduler_every: epoch")
    )
    assert run("train", "own", "-p", "model.model_dir", "out", "-l", "DEBUG") == 0
    told = capsys.readouterr().err
    assert "optimizer (the only one): SGD" in told and "schedule (the only one): StepLR" in told
    import csv

    with (project / "out" / "metrics.csv").open() as file:
        rates = [float(row["lr"]) for row in csv.DictReader(file) if row.get("lr")]
    assert min(rates) < 0.5 < max(rates) or len(rates) == 1
    (project / "variants" / "bad.yaml").write_text(
        text.replace("scheduler: {class: step,", "scheduler: {main: {class: step,").replace("0.1}", "0.1}}")
    )
    assert run("train", "bad", "-p", "model.model_dir", "bad") == 2
    assert "no optimizer of this name" in capsys.readouterr().err


def test_debug_says_what_was_read_built_decided_and_written(project, capsys):  # noqa: F811
    name = next((project / "variants").glob("*.yaml")).stem
    assert run("-l", "INFO", "train", name, "-p", "model.model_dir", "a") == 0
    less = capsys.readouterr().err
    assert run("-l", "DEBUG", "train", name, "-p", "model.model_dir", "b") == 0
    more = capsys.readouterr().err
    for words in (
        f"DEBUG read variants/{name}.yaml",
        "DEBUG set model.model_dir",
        "record files",
        "DEBUG model: Net",
        "parameters,",
        "optimizer (the only one): Adam",
        "data, train: TFRecordExamplesFeeder of",
        "epochs of",
        "batches of",
        "wrote the checkpoint of step",
    ):
        assert words in more, words
    assert "DEBUG" not in less


def test_post_op_in_a_variant(project):  # noqa: F811
    (project / "src").mkdir(exist_ok=True)
    (project / "models" / "registry" / "ops.py").write_text(
        "def later(features, labels, by: int = 1):\n"
        "    return {'number': (features['number'] + by) % 100}, labels\n"
    )
    name = next((project / "variants").glob("*.yaml"))
    for post_op in ("ops.later", "{class: ops.later, by: 2}"):
        name.write_text(VARIANT.replace("batch_size: 20", f"batch_size: 20\n    post_op: {post_op}"))
        source = config_of(name.stem).run.data.build().source("train")
        batch = next(source.batches(Order(20)))
        assert ((batch.inputs[:, 0] - batch.target) % 100 == (2 if "by" in post_op else 1)).all()


# -- records --------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path):
    """Records, and what often lies beside them."""
    write_records(tmp_path / "train-0", ({"x": float(i), "label": i % 2} for i in range(10)))
    write_records(tmp_path / "validation-0.gz", ({"x": float(i), "label": i % 2} for i in range(10)), "gzip")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(b"a,b\n" * 100))
    return tmp_path


@pytest.mark.parametrize("pattern", ["*", ""])
def test_what_is_no_file_of_records_is_skipped_and_named(mixed, capsys, pattern):
    given = f"{mixed}/{pattern}".rstrip("/")
    for _ in range(2):
        assert run("data", "index", given) == 0
        shown = capsys.readouterr()
        assert "train-0" in shown.out and "validation-0.gz" in shown.out and "labels" not in shown.out
        assert all(name in shown.err for name in ("labels.txt", "dataset_info.json", "table.csv.gz"))
    assert run("data", "verify", given) == 0
    assert run("utils", "total-examples", given) == 0
    assert "Total number of examples: 20" in capsys.readouterr().out
    assert len(TFRecordExamplesFeeder(given, {"x": FixedLenFeature([1])})) == 20


def test_a_file_that_was_named_must_hold_records(mixed, capsys):
    assert run("data", "index", mixed / "labels.txt") != 0
    assert "not a record file" in capsys.readouterr().err
    assert run("data", "index", mixed / "*.txt", mixed / "*.json") != 0


def test_a_shard_whose_beginning_is_damaged_is_not_skipped(mixed, capsys):
    write_records(mixed / "train-1", ({"x": float(i), "label": i % 2} for i in range(10)))
    data = (mixed / "train-1").read_bytes()
    for damaged in (b"\xff" * 12 + data[12:], data[:7]):
        (mixed / "train-1").write_bytes(damaged)
        assert run("data", "index", mixed / "*") != 0
        assert "train-1" in (told := capsys.readouterr().err) and "named like train-0" in told
        feeder = TFRecordExamplesFeeder(mixed / "*", {"x": FixedLenFeature([1])}, auto_generate_meta=True)
        with pytest.raises(RecordError, match="named like train-0"):
            len(feeder)
    (mixed / "train-1").unlink()
    for name in ("more.tfrecord", "more.tfrecord.gz"):
        (mixed / name).write_bytes(b"not records at all")
        assert run("data", "index", mixed / "*") != 0
        assert f"{name}, record 0" in (told := capsys.readouterr().err) and "named like a record file" in told
        (mixed / name).unlink()


def test_what_the_shell_has_expanded_may_have_strangers_in_it(mixed, capsys):
    assert run("data", "index", *sorted(mixed.iterdir())) == 0
    assert "labels.txt is not a file of records" in capsys.readouterr().err
    assert run("data", "count", *sorted(mixed.iterdir())) == 0
    assert "20 records in 2 files" in capsys.readouterr().out


def test_a_record_file_that_was_known_and_is_damaged_is_no_stranger(mixed, capsys):
    assert run("data", "index", mixed / "*") == 0
    (mixed / "train-0").write_bytes(b"not records any more" * 10)
    assert run("data", "index", mixed / "*") != 0
    assert run("data", "verify", mixed / "*") == 1
    assert "train-0" in capsys.readouterr().out


def test_too_many_features_and_empty_records_are_refused_soon(tmp_path):
    wide = frame_record(encode({f"f{i}": 1 for i in range(40_000)}))
    (tmp_path / "wide").write_bytes(wide)
    (tmp_path / "empty.gz").write_bytes(gzip.compress(frame_record(b"") * 2_000_000))
    for name, says in (("wide", "more than 32,768 features"), ("empty.gz", "65,536 records are empty")):
        began = time.monotonic()
        with pytest.raises(RecordError, match=says):
            list(indexing.index_files(files.match_files(str(tmp_path / name))))
        assert time.monotonic() - began < 20


# -- CSV ------------------------------------------------------------------------------------------


def test_a_csv_without_a_header(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("1,good film\n0,bad film\n1,good\n")
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "x") == 0
    assert "1 looks like data" in capsys.readouterr().err
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "y", "--no-header") == 0
    shown = capsys.readouterr()
    assert "3 records" in shown.out and "c0: {" in shown.out and not shown.err
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "z", "--names", "label,text") == 0
    assert (
        "labels_map:\n  label: {type: FixedLenFeature, shape: [1], dtype: int64}" in capsys.readouterr().out
    )
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "w", "--names", "label") == 2
    assert "2 columns, but 1 names" in capsys.readouterr().err
    (tmp_path / "b.csv").write_text("label,text\n1,good\n")
    assert run("data", "convert", tmp_path / "b.csv", tmp_path / "v") == 0
    assert not capsys.readouterr().err


def test_a_minimum_count_for_the_vocabulary(tmp_path):
    (tmp_path / "a.csv").write_text("label,text\n1,good film\n0,bad film\n1,good film\n")
    words = ("--column", "text", "--min-count", "2")
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "x", *words) == 0
    assert (tmp_path / "x" / "_vocabulary.txt").read_text().split() == ["<pad>", "<unk>", "film", "good"]


# -- steps ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    place = tmp_path_factory.mktemp("eight")
    write_records(place / "train-0", ({"text": np.arange(i, i + 4), "label": i} for i in range(8)))
    list(indexing.index_files(files.match_files(str(place))))
    return place


@pytest.mark.parametrize("most", [1, 4, 8, None])
@pytest.mark.parametrize("size", [1, 2, 6, 8])
@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_epoch_has_each_row_once_in_batches_of_its_own(eight, most, size, epochs, shuffle):
    """No batch has rows of two epochs, and one that is larger than the data is a short one."""
    feeder = TFRecordExamplesFeeder(
        eight / "train-*",
        {"text": FixedLenFeature([4], "int64")},
        {"label": FixedLenFeature([1], "int64")},
        batch_size=size,
        shuffle=shuffle,
        max_examples=most,
    )
    rows = most or 8
    batches = list(feeder.batches(Order(size, seed=1, epochs=epochs)))
    one = [min(size, rows - begin) for begin in range(0, rows, size)]
    assert [len(batch) for batch in batches] == one * epochs
    assert feeder.steps(Order(size, seed=1)) == len(one)
    for epoch in range(epochs):
        part = batches[epoch * len(one) : (epoch + 1) * len(one)]
        seen = [int(label) for batch in part for label in batch.target]
        assert sorted(seen) == list(range(rows)) and (shuffle or seen == list(range(rows)))
        for batch in part:
            assert (batch.inputs == batch.target[:, None] + np.arange(4)).all()


@pytest.mark.parametrize(("size", "drop", "steps"), [(3, True, 2), (4, True, 2), (3, False, 3)])
def test_what_is_left_over_is_dropped_if_that_is_asked_for(eight, size, drop, steps):
    feeder = TFRecordExamplesFeeder(
        eight, {"text": FixedLenFeature([4], "int64")}, batch_size=size, drop_remainder=drop
    )
    assert feeder.steps(Order(size, seed=1)) == steps


@pytest.mark.parametrize("x", [{"f1": np.arange(12), "f2": np.arange(2)}, np.arange(101)])
def test_columns_of_other_lengths_are_refused(x):
    from manyfit.core.errors import UsageError

    with pytest.raises(UsageError):
        MemorySamplesFeeder(x, np.arange(100))


def test_an_override_that_is_a_mapping_is_named_where_it_is_wrong(project, capsys):  # noqa: F811
    name = next((project / "variants").glob("*.yaml")).stem
    for key, value in (
        ("model.hidden", "{a: 1}"),
        ("train.train_feeder", "{}"),
        ("train.train_feeder.file_patterns", "{a: b}"),
    ):
        assert run("config", "check", name, "-p", key, value) == 2
        assert f"command line (-p {key} {value})" in capsys.readouterr().err
    assert run("config", "check", name, "-p", "train.optimizer", "{class: sgd, lr: 1e400}") == 2
    assert "1e400 is too large" in capsys.readouterr().err
    assert (
        config_of(name, "-p", "project_name", "{epoch}-{x}").tree.items["project_name"].value == "{epoch}-{x}"
    )


def test_a_command_of_utils_that_there_is_not(capsys):
    assert run("utils", "foo") == 2
    assert (
        "'utils foo'; valid commands: utils generate-metadata, utils validate, utils total-examples"
        in capsys.readouterr().err
    )
