"""Objects built from a config: data, model and learner."""

import pytest

import manyfit
from manyfit.core.errors import RunFailed, UsageError
from manyfit.data import Splits


@pytest.mark.parametrize("value", [0, -3, 2.5, None])
def test_a_batch_size_that_cannot_be(project, value):
    project.write(
        "src/odd.py",
        f"""
        from points import Blobs

        class Odd(Blobs):
            def __init__(self) -> None:
                super().__init__()
                self.batch_size = {value!r}
        """,
    )
    with pytest.raises(UsageError, match="batch_size"):
        manyfit.train(project.changed(data={"class": "odd.Odd"}), folder="runs/b", callbacks=[])


def test_what_is_not_data(forms):
    with pytest.raises(UsageError, match="must return a source"):
        manyfit.train(forms.changed(data={"class": "sets.Nothing"}), folder="runs/b", callbacks=[])
    with pytest.raises(UsageError, match="'int' is neither a source"):
        Splits(train=3).source("train")
    with pytest.raises(RunFailed, match="must return a tensor, or"):
        manyfit.train(forms.changed(model={"class": "forms.Wrong"}), folder="runs/b", callbacks=[])
