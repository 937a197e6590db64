"""The ledger of a study: readers, and a ledger that is lost."""

import sqlite3

from tests.study.points import points

from manyfit.study.ledger.ledger import Ledger


def test_somebody_who_reads_does_not_disturb_the_end(lab):
    lab.write(search__seeds=1)
    lab.sweep(only=["0"])

    with Ledger(lab.folder / "ledger.db") as ledger:
        ledger.set("x", 1)
        reader = sqlite3.connect(lab.folder / "ledger.db")
        reader.execute("begin")
        reader.execute("select * from meta").fetchall()
    reader.close()
    assert len(lab.sweep().points) == 6


def test_a_study_whose_ledger_is_lost_is_not_called_new(lab, cli):
    points(lab, 1, search__seeds=1)
    lab.sweep()
    (lab.folder / "ledger.db").unlink()
    said = cli("status", lab.folder)
    assert said.code == 2 and "has trials, but no ledger" in said.err
    steps = [p.read_text() for p in sorted(lab.folder.glob("trials/*/metrics.jsonl"))]
    assert cli("sweep", lab.folder).code == 0
    assert steps == [p.read_text() for p in sorted(lab.folder.glob("trials/*/metrics.jsonl"))]
    assert cli("status", lab.folder).code == 0
