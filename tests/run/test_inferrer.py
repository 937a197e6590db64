"""Predictions from runs, checkpoints and exports, and files of them that are continued after a kill."""

import csv
import signal
import time

import numpy as np
import pytest
from tests.examples.quick import start

import manyfit
from manyfit.core.errors import UsageError
from manyfit.inference import Inferrer
from manyfit.run.evaluation import predictions

pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def trained(project):
    manyfit.train("runs/a", callbacks=[])
    return project


def read(file):
    if file.suffix == ".parquet":
        return parquet.read_table(file).to_pylist()
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_every_kind_of_place_predicts_the_same(trained):
    x = np.random.RandomState(1).normal(size=(20, 64)).astype(np.float32)
    with Inferrer("runs/a") as infer:
        found = infer.predict(x)
        assert list(found) == ["id", "prediction", "confidence"]
        split = infer.predict()
        assert split["id"] == manyfit.predict("runs/a")["id"]
        frame = infer.predict(pandas.DataFrame(x, index=[f"f{i}" for i in range(20)]))
        assert frame["id"][3] == "f3" and np.array_equal(frame["prediction"], found["prediction"])
    best = manyfit.open("runs/a")
    (checkpoint,) = sorted((trained.run / "checkpoints").iterdir())[-1:]
    for place in (trained.run / "exported", checkpoint):
        other = Inferrer(place, batch_size=7, trust=True).predict(x)
        assert np.array_equal(other["prediction"], found["prediction"])
        assert np.allclose(other["confidence"], found["confidence"], atol=1e-6)
    assert best.state == "finished"
    with pytest.raises(UsageError, match="has no data of its own"):
        Inferrer(trained.run / "exported").predict()


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_file_is_continued_where_it_was_left(trained, monkeypatch, name):
    """Cut at every batch: each row is in the file once, and the file is the same."""
    monkeypatch.setattr(predictions, "FLUSH", 1)
    monkeypatch.setattr(predictions, "PART_ROWS", 32)
    np.save("new.npy", np.random.RandomState(1).normal(size=(100, 64)).astype(np.float32))
    with Inferrer("runs/a") as infer:
        assert infer.predict_to(f"whole-{name}", "new.npy") == 100
        whole, plain = read(trained.root / f"whole-{name}"), predictions.predict_batches
        for cut in range(1, 7):
            asked = []

            def cut_short(*given, cut=cut, asked=asked, **named):
                asked.append(given[4])
                for number, found in enumerate(plain(*given, **named)):
                    if number == cut:
                        raise KeyboardInterrupt
                    yield found

            monkeypatch.setattr("manyfit.run.inferrer.predict_batches", cut_short)
            with pytest.raises(KeyboardInterrupt):
                infer.predict_to(name, "new.npy")
            assert not (trained.root / name).exists()
            monkeypatch.setattr(
                "manyfit.run.inferrer.predict_batches",
                lambda *given, asked=asked, **named: asked.append(given[4]) or plain(*given, **named),
            )
            assert infer.predict_to(name, "new.npy") == 100
            assert asked == [0, cut if name.endswith("csv") else cut - cut % 2]
            assert read(trained.root / name) == whole
            assert not list(trained.root.glob(f"{name}.*"))
            (trained.root / name).unlink()


def test_a_part_of_other_rows_is_begun_again(trained, monkeypatch):
    monkeypatch.setattr(predictions, "FLUSH", 1)
    np.save("new.npy", np.zeros((40, 64), dtype=np.float32))
    with Inferrer("runs/a") as infer:
        plain = predictions.predict_batches

        def cut_short(*given, **named):
            yield next(plain(*given, **named))
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("manyfit.run.inferrer.predict_batches", cut_short)
            with pytest.raises(KeyboardInterrupt):
                infer.predict_to("out.csv", "new.npy")
        x = np.random.RandomState(1).normal(size=(40, 64)).astype(np.float32)
        np.save("new.npy", x)
        infer.predict_to("out.csv", "new.npy")
        expected = infer.predict(x)
    rows = read(trained.root / "out.csv")
    assert [int(row["prediction"]) for row in rows] == expected["prediction"].tolist()


@pytest.mark.parametrize("name", ["out.csv", pytest.param("out.parquet", marks=pytest.mark.soak)])
def test_killed_in_the_middle_of_100000_rows(trained, name):
    np.save("new.npy", np.random.RandomState(1).normal(size=(100_000, 64)).astype(np.float32))
    words = ["predict", "runs/a", "--data", "new.npy", "-o", name]
    progress = trained.root / f"{name}.progress"
    kills = 0
    for _ in range(6):
        running = start(words, trained.root)
        while running.poll() is None and not progress.exists():
            time.sleep(0.005)
        if running.poll() is None:
            running.send_signal(signal.SIGKILL)
            kills += 1
        if running.wait() == 0:
            break
    running = start(words, trained.root)
    assert running.wait() == 0
    rows = read(trained.root / name)
    assert [row["id"] for row in rows] == [str(i) for i in range(100_000)]
    assert kills


def test_the_command_writes_parquet_and_mistakes_are_one_line(trained, cli):
    assert cli("predict", "runs/a", "-o", "out.parquet").code == 0
    assert len(read(trained.root / "out.parquet")) == 64
    for words, text in (
        (["-o", "nowhere/out.csv"], "does not exist"),
        (["--data", "none.npy", "-o", "x.csv"], "there is no file"),
    ):
        answer = cli("predict", "runs/a", *words)
        assert answer.code == 2 and text in answer.err
