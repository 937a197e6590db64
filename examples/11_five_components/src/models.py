"""The same network as a compiled Keras model and as a PyTorch module."""

from manyfit.pipeline import Compiled, ModelBuilderBase


class ModelBuilder(ModelBuilderBase):
    def _set_defaults(self):
        self.n_units = 64
        self.dropout_rate = 0.2

    def _load_params(self, config):
        self.n_units = config.model_builder.n_units
        self.dropout_rate = config.model_builder.dropout_rate

    def get_compiled_model(self):
        import keras

        model = keras.Sequential(
            [
                keras.Input((28 * 28,)),
                keras.layers.Dense(self.n_units, activation="relu"),
                keras.layers.Dropout(self.dropout_rate),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model


class TorchBuilder(ModelBuilderBase):
    n_units: int = 64
    dropout_rate: float = 0.2
    learning_rate: float = 1e-3

    def get_compiled_model(self):
        import torch
        from torch import nn

        module = nn.Sequential(
            nn.Linear(28 * 28, self.n_units),
            nn.ReLU(),
            nn.Dropout(self.dropout_rate),
            nn.Linear(self.n_units, 10),
        )
        optimizer = torch.optim.Adam(module.parameters(), lr=self.learning_rate)
        return Compiled(module, nn.CrossEntropyLoss(), optimizer)
