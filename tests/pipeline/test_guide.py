"""The guide of five components: its code runs as it is printed, with other import lines and other data."""

import contextlib
import csv
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.lazy import needs

from manyfit import evaluate, load_model, train

GUIDES = Path(os.environ.get("MANYFIT_GUIDES", Path(__file__).parents[3] / "shared" / "seeds"))
FOUND = sorted(GUIDES.glob("001_*.txt"))
pytestmark = [
    pytest.mark.skipif(not FOUND, reason=f"the guide does not lie in {GUIDES}"),
    needs("tensorflow", "skimage"),
]

IMPORTS = {
    "from abstractions.utils import": "from manyfit.pipeline import",
    "from abstractions import": "from manyfit.pipeline import",
}
HEAD = "import pathlib\nimport numpy as np\nimport pandas as pd\nimport tensorflow as tf\nimport tensorflow.keras as tfk\n"
MODULES = {
    "models": ["class ModelBuilder("],
    "dataset": ["class DataLoaderTF(", "class DataLoader("],
    "preprocessing": ["class PreprocessorTF(", "class Preprocessor("],
    "evaluation": ["class Evaluator("],
}


def digits():
    """As many images as the guide takes, in its form: grey, 28 x 28, from 0 to 255."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 8, 8), np.ones((1, 3, 3))) * 15.9
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    shifted = np.roll(images[797:1000], 1, axis=2)  # there are too few, and none may be in both
    return (images[:1000], labels[:1000]), (np.concatenate([shifted, images[1000:]]), labels[797:])


def blocks():
    """The code of the guide, with its import lines changed and without notebook calls and fragments."""
    found = re.findall(r"```python\n(.*?)```", FOUND[0].read_text(), flags=re.DOTALL)
    for block in found:
        if block.startswith("gen = self."):
            continue
        for old, new in IMPORTS.items():
            block = block.replace(old, new)
        lines = [line for line in block.splitlines() if "cv2_imshow" not in line]
        yield "\n".join(line.replace("tfk.datasets.mnist.load_data()", "digits()") for line in lines) + "\n"


def config():
    """The keys at the end of the guide, as a mapping."""
    text = FOUND[0].read_text().partition("follow a convention:")[2]
    lines = re.findall(r"^( *)- `(\w+)`:(.*)$", text, flags=re.MULTILINE)
    return yaml.safe_load("\n".join(f"{indent}{key}:{value}" for indent, key, value in lines))


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """Everything that the guide does in its notebook: what it prints, and the folder in which it did so."""
    place = tmp_path_factory.mktemp("guide")
    said = io.StringIO()
    names = {"digits": digits, "__name__": "notebook"}
    code = list(blocks())
    with contextlib.chdir(place), contextlib.redirect_stdout(said):
        for block in code:
            exec(compile(block, "guide", "exec"), names)
    (place / "src").mkdir()
    for module, wanted in MODULES.items():
        own = [block for block in code if any(f"\n{mark}" in f"\n{block}" for mark in wanted)]
        assert len(own) == len(wanted)
        text = "".join(own)
        (place / "src" / f"{module}.py").write_text(
            f"{HEAD}from manyfit.pipeline import ConfigStruct\n{text}"
        )
    return place, said.getvalue()


def test_it_prints_what_the_guide_prints(guide):
    said = guide[1]
    assert "shape=(None, 784)" in said and "shape=(None, 10)" in said
    assert said.count("x batch shape: (8, 784)\ny batch shape: (8,)\nw batch shape: (8,)\n") == 2
    assert "sample weight: 1.0\n" in said and "sample weight: 1\n" in said
    assert "data id: b'image_0.jpg'\n" in said and "data id: image_0.jpg\n" in said
    assert len(re.findall(r"label: \d\n", said)) == 4


@pytest.mark.parametrize(
    "style",
    [pytest.param(style, marks=pytest.mark.soak) for style in ("TF", "")],
    ids=["tf.data", "generator"],
)
def test_its_config_trains_exports_evaluates_and_reports(guide, style):
    place, _ = guide
    given = config()
    assert given["evaluator_class"] == "evaluator_class: evaluation.Evaluator" and given["epochs"] == 10
    given |= {
        "data_loader_class": f"dataset.DataLoader{style}",
        "preprocessor_class": f"preprocessing.Preprocessor{style}",
    }
    folder = place / "runs" / f"run{style}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(given))
    few = [f"data_dir={place / 'datasets' / 'mnist'}", "epochs=1", "+track.mlflow=null"]
    result = train(folder, few, callbacks=[])
    assert result.step == 125 and result.metrics["val_sparse_categorical_accuracy"] > 0.8
    names = [f"image_{i}.jpg" for i in range(500)]
    for report in ("validation_report.csv", "eval_report.csv"):
        with (folder / "reports" / report).open() as file:
            rows = list(csv.DictReader(file))
        assert [row["id"] for row in rows] == names
        assert all(float(row["sparse categorical ce"]) >= 0 for row in rows)
    assert (folder / "reports" / "eval_report_summary.csv").exists()
    assert (folder / "exported" / "saved_model" / "saved_model.pb").exists()
    assert load_model(folder).output_shape == (None, 10)
    if style:
        assert train(folder, few, callbacks=[]).trained_steps == 0
        assert len(evaluate(folder)) == 500
