"""Files of new data for predictions."""

from pathlib import Path

import numpy as np

import manyfit


def test_bad_files_of_new_data(project, cli):
    manyfit.train("runs/a", callbacks=[])
    np.save("empty.npy", np.zeros((0, 64)))
    np.save("number.npy", np.float32(3))
    Path("broken.npz").write_bytes(b"PK\x03\x04 no")
    for name in ("empty.npy", "number.npy", "broken.npz"):
        answer = cli("predict", "runs/a", "--data", name)
        assert answer.code == 2, answer.err
    np.save("double.npy", np.zeros((3, 64)))
    assert cli("predict", "runs/a", "--data", "double.npy").code == 0
    assert cli("predict", "runs/a", "-o", "nowhere/x.csv").code == 2
    assert not Path("nowhere").exists()
