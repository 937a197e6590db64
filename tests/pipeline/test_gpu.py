"""Five components on a GPU: a module of PyTorch, and Keras on torch."""

import os
import subprocess
import sys

import pytest
import torch

from manyfit import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def test_a_module_is_trained_on_the_gpu_and_goes_on(tiny):
    whole = train(tiny.write("whole"), callbacks=[])
    train(tiny.write("parts"), ["epochs=1"], callbacks=[])
    parts = train(tiny.root / "runs" / "parts", callbacks=[])
    assert parts.trained_steps == 10
    assert parts.test == pytest.approx(whole.test, rel=1e-4)


def test_keras_on_torch_uses_the_gpu(tiny):
    pytest.importorskip("keras", reason="Keras is not installed")
    folder = tiny.write(model_builder_class="models.KerasBuilder", model_builder={}, epochs=2)
    code = f"""
from manyfit import train, load_config
from manyfit.run.build.builder import build
whole = train({str(folder)!r}, callbacks=[])
again = train({str(folder)!r}, ["epochs=1"], folder={str(tiny.root / "runs" / "parts")!r}, callbacks=[])
again = train({str(folder)!r}, folder={str(tiny.root / "runs" / "parts")!r}, callbacks=[])
assert again.trained_steps == 10
assert all(abs(whole.test[k] - again.test[k]) < 1e-4 for k in whole.test), (whole.test, again.test)
print(build(load_config({str(folder)!r})).learner.device)
"""
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1].startswith("cuda")
