"""From image files and tables to the best of several models, over data in shards: `python digits.py`."""

from pathlib import Path

from manyfit.spec import ETLSpec, Experiment, MinibatchSpec


class Images(ETLSpec):
    """Reads an image and its label."""

    def set_features(self):
        self.features, self.is_feature_download = ["file", "label"], [True, False]

    def read_misc(self, misc_path):
        self.scale = float(Path(misc_path + "scale.txt").read_text())

    def row_prep(self, row, mode, object_dir):
        import numpy as np
        from PIL import Image

        pixels = np.asarray(Image.open(object_dir + row["file"]), dtype=np.float32) / self.scale
        return pixels[None], None if mode == "predict" else int(row["label"])


class Nets(MinibatchSpec):
    """Trains a small convolutional network."""

    def create_model_components(self, hyperparams):
        import torch
        from torch import nn

        width = hyperparams["width"]
        model = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * width, 10),
        )
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=hyperparams["lr"])}

    def train(self, model_object, minibatch, hyperparams, device):
        import torch.nn.functional as F

        x, y = minibatch
        model_object["model"].train()
        model_object["optimizer"].zero_grad()
        outputs = model_object["model"](x)
        loss = F.cross_entropy(outputs, y)
        loss.backward()
        model_object["optimizer"].step()
        return model_object, self.measure(outputs, y, loss)

    def valtest(self, model_object, minibatch, hyperparams, device):
        import torch.nn.functional as F

        x, y = minibatch
        outputs = model_object["model"].eval()(x)
        return self.measure(outputs, y, F.cross_entropy(outputs, y))

    def measure(self, outputs, y, loss):
        return {"loss": loss, "correct": (outputs.argmax(1) == y).sum(), "rows": len(y)}

    def predict(self, model_object, minibatch, hyperparams, device):
        x, _ = minibatch
        chances = model_object["model"].eval()(x).softmax(1)
        return chances.argmax(1), chances.max(1).values

    def metrics_agg(self, mode, hyperparams, metrics):
        return {
            "loss": sum(metrics["loss"]) / len(metrics["loss"]),
            "accuracy": sum(metrics["correct"]) / sum(metrics["rows"]),
        }


def write_files(folder):
    """Write scikit-learn's digits as PNG files, with a table for each split."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    ends = {"train": 1200, "val": 1500, "test": 1700, "predict": 1797}
    begin = 0
    (folder / "objects").mkdir(parents=True, exist_ok=True)
    (folder / "scale.txt").write_text("255")
    for split, end in ends.items():
        lines = ["id,file,label"]
        for i in range(begin, end):
            image = Image.fromarray((digits.images[i] * 15.9).astype("uint8"))
            image.save(folder / "objects" / f"{i}.png")
            lines.append(f"digit-{i},{i}.png,{digits.target[i]}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
        begin = end


def main():
    data = Path("data")
    if not (data / "predict.csv").exists():
        write_files(data)
    params = {"misc": ["data/scale.txt"]}
    for split in ("train", "val", "test", "predict"):
        params |= {f"{split}_main": f"data/{split}.csv", f"{split}_dir": "data/objects"}
    experiment = Experiment(params, shards=3, workers=2)
    experiment.run_etl(Images(), seed=1)
    grid = {"lr": [1e-3, 1e-2], "width": [4, 8], "batch_size": 32}
    result = experiment.run_fit(Nets(), grid, num_epochs=3, seed=7, metric="val_accuracy")
    print("best:", dict(result.best.hyperparams), f"val_accuracy {result.best.value:.3f}")
    print("test:", {name: round(value, 3) for name, value in experiment.run_test().metrics.items()})
    predictions = experiment.run_predict()
    print(len(predictions), "predictions, such as digit-1700:", predictions.by_id["digit-1700"])


if __name__ == "__main__":
    main()
