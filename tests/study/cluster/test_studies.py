"""A study on Ray has the table that it has in one process."""

from __future__ import annotations

import json

import pytest
from tests.study.test_traveling import SEARCHES, assert_same, keep


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_table_as_inline(lab, ray_here, search):
    lab.project.config(lab.project.changed(train__epochs=4, model__dropout=0.2))
    lab.write(search__seeds=1, **SEARCHES[search])
    lab.sweep()
    best = (lab.folder / "best" / "reports" / "test.csv").read_bytes()
    inline = keep(lab, "inline")
    lab.write(search__seeds=1, execute__on="ray", execute__workers=2, **SEARCHES[search])
    lab.sweep()
    assert (lab.folder / "best" / "reports" / "test.csv").read_bytes() == best
    assert json.loads((lab.folder / "provenance.json").read_text())["sessions"][-1]["slots"] == 2
    assert_same(keep(lab, "ray"), inline)


def test_hopping(lab, ray_here):
    lab.project.config(lab.project.changed(data__shards=3, train__epochs=2, model__dropout=0.2))
    lab.write(search__seeds=1, execute__hop=True)
    lab.sweep()
    inline = keep(lab, "inline")
    lab.write(search__seeds=1, execute__hop=True, execute__on="ray", execute__workers=2)
    lab.sweep()
    assert_same(keep(lab, "ray"), inline)
