"""Python only: train, search, and draw what was found."""

import manyfit

config = {
    "data": {"class": "digits"},
    "model": {"class": "architectures.Flat", "hidden": 32},
    "train": {
        "epochs": 6,
        "loss": "cross_entropy",
        "metrics": ["accuracy"],
        "optimizer": {"class": "adam", "lr": 3e-3},
    },
    "evaluate": {"figures": True},
}
search = {
    "base": config,
    "objective": {"metric": "val_loss", "mode": "min"},
    "search": {"method": "random", "trials": 6, "seeds": 2},
    "space": {"train.optimizer.lr": {"log": [1e-4, 1e-1]}, "model.hidden": [16, 64]},
}

if __name__ == "__main__":
    run = manyfit.train(config, folder="runs/plots")
    run.plot("train_loss", "val_loss").save("curves.png")
    study = manyfit.sweep(search, folder="studies/plots")
    study.plot().save("study.png")
    print(study.frame().head())
