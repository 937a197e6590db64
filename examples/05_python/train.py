"""Train from Python and use the result."""

import manyfit

config = {
    "project_name": "digits",
    "seed": 7,
    "data": {"class": "digits", "batch_size": 32},
    "model": {"class": "models.Linear", "scale": 2.0},
    "train": {
        "epochs": 5,
        "loss": "cross_entropy",
        "metrics": ["accuracy"],
        "optimizer": {"class": "adamw", "lr": 1e-2},
    },
}

if __name__ == "__main__":
    result = manyfit.train(config, folder="runs/linear")
    print("test accuracy", result.test["accuracy"])
    print("best epoch", result.best_step // (result.step // 5))
    for event in result.history:
        print(event.epoch, event.values["val_loss"])
    model = result.load_model()
    print("parameters", sum(p.numel() for p in model.parameters()))
