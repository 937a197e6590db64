"""Train the wrapped model from Python, without YAML."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from resnet import ResNet, ResNetConfig, ResNetWrapper

from manyfit.wrapper import RunConfig, TrainConfig

if __name__ == "__main__":
    result = ResNetWrapper(ResNet).train(
        RunConfig(
            model=ResNetConfig(channels=16, blocks=2),
            train=TrainConfig(epochs=8, batch_size=32, optimizer="adam", learning_rate=3e-3),
            random_seed=0,
            experiment_dir="runs/python",
        )
    )
    print("test accuracy", result.test["accuracy"])
