"""Write a project as the installed version of manyfit leaves it: `python write.py FOLDER`.

`v0_1.zip` beside this file was written by manyfit 0.1.0 in this way. Later versions must read it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

FILES = {
    "src/parts.py": '''
        """Data, models and components of the project."""

        import itertools

        import numpy as np
        import torch
        from torch import nn

        from manyfit.data import ArraySource
        from manyfit.pipeline import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase

        COUNTS = {"train": 48, "validation": 20, "test": 16}


        def arrays(split):
            state = np.random.RandomState(len(split))
            x = state.normal(size=(COUNTS[split], 4)).astype("float32")
            return x, ((x[:, 0] > 0).astype("int64") + (x[:, 1] > 0))


        class Points:
            def __init__(self, batch_size: int = 8) -> None:
                self.batch_size = batch_size

            def source(self, split: str) -> ArraySource:
                x, y = arrays(split)
                return ArraySource(x, y, [f"{split}-{i}" for i in range(len(x))])


        class Net(nn.Module):
            def __init__(self, hidden: int = 6, dropout: float = 0.1) -> None:
                super().__init__()
                self.layers = nn.Sequential(
                    nn.Linear(4, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 3)
                )

            def forward(self, x):
                return self.layers(x)


        class Loader(DataLoaderBase):
            def rows(self, split, third):
                x, y = arrays(split)
                order = np.arange(len(x))
                if split == "train":
                    np.random.shuffle(order)
                for i in order:
                    yield x[i], y[i], third(i)

            def create_training_generator(self):
                return self.rows("train", lambda i: 1.0), COUNTS["train"]

            def create_validation_generator(self):
                return self.rows("validation", lambda i: 1.0), COUNTS["validation"]

            def create_test_generator(self):
                return self.rows("test", lambda i: f"row-{i}".encode()), COUNTS["test"]

            def get_validation_index(self):
                return np.array([f"v{i}" for i in range(COUNTS["validation"])])


        class Preprocessor(PreprocessorBase):
            def image_preprocess(self, image):
                return image.astype("float32")

            def label_preprocess(self, label):
                return label

            def add_image_preprocess(self, generator):
                return ((self.image_preprocess(x), y, w) for x, y, w in generator)

            def add_label_preprocess(self, generator):
                return generator

            def batchify(self, generator, n_data_points):
                return self.batches(generator), -(-n_data_points // 8)

            def batches(self, generator):
                while rows := list(itertools.islice(generator, 8)):
                    yield tuple(np.stack(column) for column in zip(*rows, strict=True))


        class TorchBuilder(ModelBuilderBase):
            def _set_defaults(self):
                self.n_units = 5

            def _load_params(self, config):
                self.n_units = config.model_builder.n_units

            def get_model(self):
                return Net(self.n_units, 0.0)

            def get_compiled_model(self):
                from manyfit.pipeline import Compiled

                module = self.get_model()
                optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
                return Compiled(module, nn.CrossEntropyLoss(), optimizer)


        class KerasBuilder(TorchBuilder):
            def get_model(self):
                import keras

                return keras.Sequential(
                    [keras.Input((4,)), keras.layers.Dense(self.n_units), keras.layers.Dropout(0.2),
                     keras.layers.Dense(3)]
                )

            def get_compiled_model(self):
                import keras

                model = self.get_model()
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
                return model


        class Evaluator(EvaluatorBase):
            def get_eval_funcs(self):
                return {"wrong": lambda target, output: float(np.argmax(output) != target)}
    ''',
    "models/registry/counting.py": '''
        """A model that a variant names."""

        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self, hidden: int = 4) -> None:
                super().__init__()
                self.body, self.head = nn.Embedding(100, hidden), nn.Linear(hidden, 100)

            def forward(self, number, target=None):
                scores = self.head(self.body(number[:, 0]))
                if target is None:
                    return scores
                return scores, nn.functional.cross_entropy(scores, target, reduction="none")

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=0.05)
    ''',
    "variants/counting.yaml": """
        model: {type: 'counting:Net', hidden: 6, model_dir: runs/variant}
        train:
          epochs: 2
          metrics: [accuracy]
          train_feeder: &feeder
            type: TFRecordExamplesFeeder
            batch_size: 10
            file_patterns: data/train-*
            features_map: {number: {type: FixedLenFeature, shape: [1], dtype: int64}}
            labels_map: {number: {type: FixedLenFeature, shape: [1], dtype: int64}}
          eval_feeder:
            <<: *feeder
            file_patterns: data/validation-*
    """,
    "studies/halving/study.yaml": """
        base: ../../runs/finished/config.yaml
        objective: {metric: val_loss, mode: min}
        set: {train.epochs: 6}
        search:
          method: {class: manyfit.study.sampling.Grid}
          seeds: 2
          stop: {class: manyfit.study.stoppers.Halving, first: 1, factor: 2}
        space:
          model.hidden: [4, 6]
          train.optimizer.lr: [1e-3, 1e-2, 3e-2]
        execute: {on: inline}
    """,
}
RUN = """
project_name: compatibility
src_code_path: src
seed: 5
data: {class: parts.Points, batch_size: 8}
model: {class: parts.Net, hidden: 6}
train:
  epochs: EPOCHS
  loss: cross_entropy
  metrics: [accuracy, {class: manyfit.learn.metrics.top_k_accuracy, k: 2}]
  optimizer: {class: adamw, lr: 1e-2}
  every: {checkpoint: 4ba}
export: {metric: val_loss, mode: min}
track: {tensorboard: false, mlflow: null}
"""
COMPONENTS = """
project_name: compatibility
src_code_path: src
data_dir: data
seed: 5
data_loader_class: parts.Loader
preprocessor_class: parts.Preprocessor
model_builder_class: parts.BUILDER
evaluator_class: parts.Evaluator
epochs: 2
batch_size: 8
model_builder: {n_units: 5}
export: {metric: val_loss, mode: min}
track: {tensorboard: false, mlflow: null}
"""
ESTIMATOR = """
project_name: compatibility
src_code_path: src
seed: 5
data: {class: parts.Points, batch_size: 8}
model: {class: sklearn.linear_model.LogisticRegression, C: 0.5}
train: {epochs: 1, loss: null, optimizer: null}
export: {metric: val_loss, mode: min}
track: {tensorboard: false, mlflow: null}
"""
MAIN = "import sys; sys.argv[0] = 'manyfit'; from manyfit.cli import main; main(sys.argv[1:])"
"""The command, named in provenance as users have it."""
CUT = 10
"""The step at which the interrupted run was killed; an epoch has six."""


class Killer:
    """Kills the process once a step was committed."""

    def on_start(self, cohort):
        """Nothing yet."""

    def on_boundary(self, cohort, boundary, rows):
        if boundary.step >= CUT:
            for member in cohort.members:
                member.writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_end(self, cohort):
        """Never reached."""


def write(root: Path) -> None:
    """Write the project and run it."""
    files = dict(FILES)
    files["runs/finished/config.yaml"] = RUN.replace("EPOCHS", "2")
    files["runs/interrupted/config.yaml"] = RUN.replace("EPOCHS", "3")
    files["runs/components/config.yaml"] = COMPONENTS.replace("BUILDER", "TorchBuilder")
    files["runs/keras/config.yaml"] = COMPONENTS.replace("BUILDER", "KerasBuilder")
    files["runs/estimator/config.yaml"] = ESTIMATOR
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    os.chdir(root)
    records(root / "data")
    for name in ("finished", "components", "keras", "estimator"):
        command("train", f"runs/{name}")
    command("data", "index", "data/*")
    command("train", "variants/counting.yaml")
    cut = (
        f"import sys, manyfit; sys.path.insert(0, {str(Path(__file__).parent)!r}); from write import Killer; "
    )
    code = subprocess.run(
        [sys.executable, "-c", cut + "manyfit.train('runs/interrupted', callbacks=[Killer()])"]
    )
    assert code.returncode == -signal.SIGKILL, code
    kill_study()


def records(folder: Path) -> None:
    """Records for the variant."""
    from manyfit.data.tfrecord.writer import write as write_records

    folder.mkdir()
    for split, begin, end in (("train", 0, 60), ("validation", 60, 80)):
        write_records(folder / f"{split}-0", [{"number": [i]} for i in range(begin, end)])


def command(*words: str) -> None:
    """Run manyfit."""
    subprocess.run([sys.executable, "-c", MAIN, *words], check=True)


def kill_study() -> None:
    """Kill the study once points were stopped and others are still to be trained."""
    from manyfit.core.errors import FolderError
    from manyfit.study.ledger.reader import read_only

    started = subprocess.Popen([sys.executable, "-c", MAIN, "sweep", "studies/halving"])
    while started.poll() is None:
        time.sleep(0.02)
        try:
            points, *_ = read_only(Path("studies/halving/ledger.db"))
        except FolderError:
            continue
        if any(point.state == "stopped" for point in points):
            started.kill()
            started.wait()
    assert started.returncode == -signal.SIGKILL, "the study was over too early"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
