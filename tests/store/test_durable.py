"""Writing files and folders durably."""

from pathlib import Path

import pytest

import manyfit
from manyfit.core.errors import UsageError


@pytest.mark.parametrize("folder", ["afile", "afile/run", "afile/further/run"])
def test_a_file_where_a_folder_is_to_be(project, folder):
    Path("afile").write_text("mine")
    with pytest.raises(UsageError, match="afile is a file"):
        manyfit.train(project.changed(), folder=folder, callbacks=[])
    assert Path("afile").read_text() == "mine"
