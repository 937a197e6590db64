"""Strictly typed experiments around a plain model: configs, loader functions and a model wrapper.

    class MyConfig(ModelConfig):
        hidden: int = 32

    class MyModel(nn.Module):
        def __init__(self, config: MyConfig) -> None: ...
        def forward(self, x, labels=None): ...        # returns (predictions, loss)

    class MyWrapper(ModelWrapper):
        def make_dataloader_train(self, config): return load_digits(config, "train")

    MyWrapper(MyModel).train(RunConfig(model=MyConfig(hidden=64), train=TrainConfig(epochs=10)))

| module | contents |
|---|---|
| `configs` | `ModelConfig`, `TrainConfig`, `RunConfig`, and the markers of their fields |
| `wrapper` | `ModelWrapper` |
| `translation` | the functions of a wrapper, for the learner that calls them |
| `loaders` | `LoaderData`: functions that return loaders, as the data of a config |
| `describe` | the config of a run that a wrapper and its typed config mean |
"""

from manyfit.wrapper.configs import Derived, ModelConfig, RunConfig, Stateless, TrainConfig
from manyfit.wrapper.loaders import LoaderData
from manyfit.wrapper.wrapper import ModelWrapper

__all__ = [
    "Derived",
    "LoaderData",
    "ModelConfig",
    "ModelWrapper",
    "RunConfig",
    "Stateless",
    "TrainConfig",
]
