"""Tables as the data of a run: types, categories, missing values, splits and new rows."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import manyfit
from manyfit.core.errors import ManyfitError, UsageError
from manyfit.data import Table
from manyfit.data.splitting import assign_folds, divide_rows

pandas = pytest.importorskip("pandas")


@pytest.fixture
def houses(tmp_path):
    state = np.random.RandomState(0)
    frame = pandas.DataFrame(
        {
            "name": [f"house-{i}" for i in range(200)],
            "rooms": state.randint(1, 9, 200),
            "size": state.normal(100, 20, 200),
            "kind": state.choice(["flat", "house", "castle"], 200, p=[0.6, 0.35, 0.05]),
            "zone": state.randint(1, 4, 200),
        }
    )
    frame.loc[::10, "size"] = np.nan
    frame.loc[::25, "kind"] = None
    frame["price"] = frame.rooms * 10.0 + state.normal(size=200)
    frame["sold"] = (frame.rooms > 4).astype(int)
    frame.to_csv(tmp_path / "houses.csv", index=False)
    frame.to_parquet(tmp_path / "houses.parquet")
    return tmp_path / "houses.csv"


def test_statistics_are_those_of_the_training_rows(houses):
    table = Table(houses, "price", id="name", categories=["zone"], ignore=["sold"])
    train, validation = table.source("train"), table.source("validation")
    frame = pandas.read_csv(houses).set_index("name")
    names = table.facts()["feature_names"]
    assert names[:3] == ["rooms", "size", "size is missing"]
    assert table.facts()["features"] == train.inputs.shape[1] == 3 + (1 + 3) + (1 + 3)
    inside = frame.loc[train.ids(np.arange(len(train)))]
    assert train.inputs[:, 0].mean() == pytest.approx(0, abs=1e-5)
    assert train.inputs[:, 0].std() == pytest.approx(1, abs=1e-5)
    held = frame.loc[validation.ids(np.arange(len(validation)))]
    expected = (held["rooms"] - inside["rooms"].mean()) / inside["rooms"].std(ddof=0)
    assert np.allclose(validation.inputs[:, 0], expected, atol=1e-5)
    is_missing = held["size"].isna().to_numpy()
    assert (validation.inputs[is_missing, 1] == 0).all()
    assert (validation.inputs[:, 2] == is_missing).all()
    other = names.index("kind is other")
    assert (validation.inputs[:, other] == held["kind"].isna()).all()
    assert validation.target.dtype == np.float32


def test_csv_and_parquet_are_the_same(houses):
    both = [Table(houses.with_suffix(suffix), "sold").source("train") for suffix in (".csv", ".parquet")]
    assert both[0].fingerprint() == both[1].fingerprint()


def test_categories_that_no_training_row_has_are_other(tmp_path):
    (tmp_path / "a.csv").write_text("c,y\n" + "".join(f"{'pq'[i % 2]},{i % 2}\n" for i in range(20)))
    (tmp_path / "b.csv").write_text("c,y\nz,0\np,1\n")
    table = Table(tmp_path / "a.csv", "y", validation=tmp_path / "b.csv", test=0.0)
    assert table.source("validation").inputs.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert table.source("test") is None


def test_codes_for_embeddings(houses):
    table = Table(houses, "sold", encoding="codes", ignore=["name", "price"], categories=["zone"])
    source = table.source("train")
    assert source.inputs["categories"].dtype == np.int64
    facts = table.facts()
    assert facts["cardinalities"] == [4, 4]
    assert facts["numbers"] == source.inputs["numbers"].shape[1] == 3
    assert facts["classes"] == 2


def test_several_targets(houses):
    table = Table(houses, ["price", "kind"], ignore=["name"], categories=["zone"])
    with pytest.raises(UsageError, match="'kind' is missing in 8 of 200 rows"):
        table.source("train")
    table = Table(houses, ["price", "sold"], ignore=["name", "kind"])
    assert set(table.source("train").target) == {"price", "sold"}
    assert table.facts()["classes_sold"] == 2


def test_a_split_column(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,part\n1,0,train\n2,1,train\n3,0,Val\n4,1,test\n")
    table = Table(tmp_path / "a.csv", "y", split="part")
    assert [len(table.source(split)) for split in ("train", "validation", "test")] == [2, 1, 1]
    assert table.source("test").ids(np.arange(1)) == ["row-3"]
    (tmp_path / "a.csv").write_text("x,y,part\n1,0,train\n2,1,tset\n")
    with pytest.raises(UsageError, match="'tset'"):
        Table(tmp_path / "a.csv", "y", split="part").source("train")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("x,y\n1,0\n", {"target": "z"}, "has no column 'z'; it has x, y"),
        ("rooms,y\n1,0\n", {"target": "y", "inputs": ["rooom"]}, "did you mean 'rooms'"),
        ("x,y\n", {"target": "y"}, "has no rows"),
        ("x,y\n1,0\n2\n", {"target": "y"}, "cannot be read as a table"),
        ("x,x,y\n1,2,0\n", {"target": "y"}, "same name"),
        ("x,y\n2020-01-01,0\n", {"target": "y"}, "neither numbers nor text"),
        ("x,y\n1,a\n", {"target": "y", "task": "regression"}, "has text"),
        ("x,y\n1,0\n", {"target": "y", "inputs": ["y"]}, "cannot be an input"),
        ("i,y\na,0\nb,1\na,1\n", {"target": "y", "id": "i"}, "the column 'i' repeats 'a'"),
        ("größe,y\n1,0\n", {"target": "y"}, "the header is not UTF-8"),
        ("x,y\nö,0\nä,1\n", {"target": "y"}, "the column 'x' is not UTF-8"),
    ],
)
def test_mistakes_name_the_file_and_the_column(tmp_path, text, options, words):
    (tmp_path / "a.csv").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=words) as raised:
        Table(tmp_path / "a.csv", validation=0.0, test=0.0, **options).source("train")
    assert "a.csv" in str(raised.value)


def test_a_run_without_code_and_predictions_for_new_rows(houses, tmp_path, monkeypatch, cli):
    """A first run on one's own file: one YAML file, a model of torch, and facts of the data."""
    monkeypatch.chdir(tmp_path)
    layers = [
        {"class": "torch.nn.Linear", "in_features": "${data.features}", "out_features": 8},
        {"class": "torch.nn.ReLU"},
        {"class": "torch.nn.Linear", "in_features": 8, "out_features": "${data.classes}"},
    ]
    tree = {
        "data": {"class": "manyfit.data.Table", "file": "houses.csv", "target": "sold", "id": "name", "ignore": ["price"]},
        "model": {"class": "torch.nn.Sequential", "args": layers},
        "train": {"epochs": 5, "loss": "cross_entropy", "metrics": ["accuracy", "auroc"], "optimizer": {"class": "adam", "lr": 0.05}},
    }  # fmt: skip
    (tmp_path / "runs/sold").mkdir(parents=True)
    (tmp_path / "runs/sold/config.yaml").write_text(json.dumps(tree))
    answer = cli("train", "runs/sold")
    assert answer.code == 0, answer.err
    result = manyfit.train("runs/sold", callbacks=[])
    assert result.test["accuracy"] > 0.8
    assert "in_features: 8" in (tmp_path / "runs/sold/config.resolved.yaml").read_text()
    frame = pandas.read_csv(houses)
    frame.drop(columns=["sold", "price"]).head(7).to_csv("new.csv", index=False)
    found = manyfit.predict("runs/sold", data="new.csv")
    assert list(found["id"]) == [f"house-{i}" for i in range(7)]
    whole = {}
    for split in ("train", "validation", "test"):
        each = manyfit.predict("runs/sold", split=split)
        whole |= dict(zip(each["id"], each["confidence"], strict=True))
    assert np.allclose(found["confidence"], [whole[name] for name in found["id"]], atol=1e-6)


def test_facts_are_part_of_the_identity_and_typos_are_found(houses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = {
        "data": {"class": "manyfit.data.Table", "file": "houses.csv", "target": "sold"},
        "model": {"class": "torch.nn.Linear", "in_features": "${data.features}", "out_features": 2},
        "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": "adam"},
    }
    first = manyfit.load_config(tree)
    second = manyfit.load_config(tree, ["data.categories=[rooms]"])
    assert first.run.model.params["in_features"] != second.run.model.params["in_features"]
    assert first.fingerprint != second.fingerprint
    for typo, words in (("featurs", "did you mean data.features"), ("nothing", "its facts are")):
        with pytest.raises(ManyfitError, match=words):
            manyfit.load_config(tree, [f"model.in_features=${{data.{typo}}}"])
    with pytest.raises(ManyfitError, match="there is no file"):
        manyfit.load_config(tree, ["data.file=nowhere.csv"])


@given(st.integers(2, 60), st.integers(2, 9), st.integers(0, 99), st.integers(1, 4))
def test_folds_are_balanced(rows, folds, seed, labels):
    folds = min(folds, rows)
    label = np.random.RandomState(seed).randint(labels, size=rows)
    found = assign_folds(rows, folds, seed, label)
    for each in (found, assign_folds(rows, folds, seed)):
        sizes = np.bincount(each, minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    for value in range(labels):
        sizes = np.bincount(found[label == value], minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    assert (found == assign_folds(rows, folds, seed, label)).all()


@given(st.integers(1, 80), st.floats(0, 0.5), st.floats(0, 0.49), st.integers(0, 99), st.integers(1, 3))
def test_splits_hold_every_row_once(rows, validation, test, seed, labels):
    label = np.random.RandomState(seed).randint(labels, size=rows)
    for given_labels in (None, label):
        found = divide_rows(rows, validation, test, seed, given_labels)
        assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(rows))
        assert len(found["validation"]) == round(rows * validation)
    counts = [(label[found["validation"]] == v).sum() for v in range(labels)]
    for value, count in enumerate(counts):
        assert abs(count - validation * (label == value).sum()) <= 2


def test_large_class_numbers_stay_apart(tmp_path):
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f"{i},{1000001 + i % 2}\n" for i in range(20)))
    table = Table(tmp_path / "a.csv", "y", task="classification")
    assert table.facts()["class_names"] == ["1000001", "1000002"]
    assert set(table.source("train").target) == {0, 1}


def test_types_are_those_of_the_training_file(tmp_path):
    """`01234` alone looks like a number, and `true` like a truth value."""
    (tmp_path / "a.csv").write_text(
        "id,z,y\n" + "".join(f"00{i},{w},0.5\n" for i in range(8) for w in ("01234", "AB1", "true"))
    )
    table = Table(tmp_path / "a.csv", "y", validation=0.0, test=0.0, ignore=["id"])
    names = table.facts()["feature_names"]
    for word in ("01234", "true", "AB1"):
        (tmp_path / "b.csv").write_text(f"id,z\n1,{word}\n")
        (row,) = table.read(tmp_path / "b.csv", has_target=False).inputs
        assert names[int(row.argmax())] == f"z = {word}"
    (tmp_path / "c.csv").write_text("".join(["id,x,y\n", *(f"{i:03d},{i},{i / 2}\n" for i in range(10))]))
    assert Table(tmp_path / "c.csv", "y", id="id", validation=0.0, test=0.0).source("train").ids(
        np.arange(2)
    ) == ["000", "001"]


def test_constant_and_infinite_columns(tmp_path):
    (tmp_path / "a.csv").write_text("k,x,y\n" + "".join(f"0.1,{i},0.5\n" for i in range(40)))
    (tmp_path / "b.csv").write_text("k,x\n0.2,1\n")
    table = Table(tmp_path / "a.csv", "y")
    assert abs(table.source("train").inputs[:, 0]).max() < 1e-6
    assert abs(table.read(tmp_path / "b.csv", has_target=False).inputs[0, 0]) < 1
    (tmp_path / "a.csv").write_text("k,y\n" + "".join(f"{'inf' if i == 3 else i},0.5\n" for i in range(40)))
    with pytest.raises(UsageError, match="'k' has values that are infinite"):
        Table(tmp_path / "a.csv", "y", validation=0.0, test=0.0).source("train")


def test_truth_values_are_classes_and_targets_of_new_rows_do_not_matter(tmp_path):
    (tmp_path / "a.csv").write_text(
        "x,y\n" + "".join(f"{i},{'true' if i % 2 else 'false'}\n" for i in range(20))
    )
    table = Table(tmp_path / "a.csv", "y")
    assert table.facts()["classes"] == 2 and table.source("train").target.dtype == np.int64
    (tmp_path / "b.csv").write_text("x,y\n1,\n2,maybe\n")
    assert table.read(tmp_path / "b.csv", has_target=False).target is None


def test_a_fold_without_folds_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i / 2}\n" for i in range(20)))
    with pytest.raises(UsageError, match="no effect without folds"):
        Table(tmp_path / "a.csv", "y", fold=2).source("train")


def test_folds_of_a_table_with_facts_in_a_study(houses, tmp_path, monkeypatch):
    from manyfit.study.sweep import sweep

    monkeypatch.chdir(tmp_path)
    base = {
        "data": {"class": "manyfit.data.Table", "file": "houses.csv", "target": "sold", "ignore": ["name", "price"], "stratify": "sold"},
        "model": {"class": "torch.nn.Linear", "in_features": "${data.features}", "out_features": "${data.classes}"},
        "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": {"class": "adam", "lr": 0.01}},
    }  # fmt: skip
    study = {"base": base, "objective": {"metric": "val_loss", "mode": "min"}, "search": {"method": "grid", "seeds": 2, "folds": 3},
             "space": {"train.optimizer.lr": [0.01, 0.1]}, "execute": {"on": "inline"}}  # fmt: skip
    found = sweep(study, folder=tmp_path / "studies/s", progress=False)
    assert [len(point.trials) for point in found.points] == [6, 6] and not found.failures


def test_frames_are_read_like_files(houses, tmp_path, monkeypatch):
    from manyfit.inference import Inferrer

    monkeypatch.chdir(tmp_path)
    tree = {
        "data": {"class": "manyfit.data.Table", "file": "houses.csv", "target": "sold", "id": "name"},
        "model": {"class": "torch.nn.Linear", "in_features": "${data.features}", "out_features": 2},
        "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": {"class": "adam", "lr": 0.01}},
    }
    manyfit.train(tree, folder="runs/a", callbacks=[])
    frame = pandas.read_csv(houses).head(9)
    frame.to_csv("new.csv", index=False)
    with Inferrer("runs/a") as infer:
        expected = infer.predict("new.csv")
        for given_frame in (frame, frame[list(reversed(frame.columns))]):
            found = infer.predict(given_frame)
            assert found["id"] == expected["id"] and np.array_equal(
                found["confidence"], expected["confidence"]
            )
        with pytest.raises(UsageError, match="has no column 'rooms'"):
            infer.predict(frame.drop(columns=["rooms"]))


def test_labels_that_are_all_different_do_not_order_the_splits():
    labels = np.random.RandomState(0).randint(0, 10**6, 2000)
    found = divide_rows(2000, 0.2, 0.2, 0, labels)
    means = [labels[rows].mean() for rows in found.values()]
    assert max(means) - min(means) < 0.1 * labels.mean()
