"""Functions that return loaders, as the data of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from manyfit.config.typed.config_struct import ConfigStruct
from manyfit.config.typed.roles import TRAINER
from manyfit.core.errors import UsageError
from manyfit.data import NotASource, Source, Split, as_source
from manyfit.data.loader import is_loader, take_apart

FLAGS: Final[Mapping[str, str]] = {"train": "train", "validation": "val", "test": "test"}


class LoaderData:
    """Data from a function `f(config, flag)`, with the flags `train`, `val` and `test`.

    data: {class: manyfit.wrapper.LoaderData, loader: data.load_cifar10, config: {save_dir: data}}

    The function returns a PyTorch loader, a data set, or None; a loader is taken apart, so that the order of
    rows is a function of the seed. Alternatively, `wrapper` is a `ModelWrapper` that makes the loaders.
    """

    def __init__(
        self,
        loader: Callable[..., Any] | None = None,
        wrapper: Annotated[type | None, TRAINER] = None,
        config: Any = None,
        batch_size: int | None = None,
    ) -> None:
        if (loader is None) == (wrapper is None):
            raise UsageError("give either loader, a function of (config, flag), or wrapper, a ModelWrapper")
        self.config = ConfigStruct(config) if isinstance(config, Mapping) else config
        self._loader = loader if loader is not None else functions_of_wrapper(wrapper)
        self._given_size = batch_size
        self._made: dict[str, Any] = {}

    @property
    def batch_size(self) -> int:
        """Rows per batch: as given, or that of the training loader."""
        if self._given_size is not None:
            return self._given_size
        found = self._make("train")
        if not is_loader(found):
            raise UsageError("the training data has no batch size: return a DataLoader, or set batch_size")
        return take_apart(found, "the train loader")[1]

    def source(self, split: Split) -> Source | None:
        """Return the rows of a split."""
        found = self._make(split)
        if is_loader(found):
            source: Source = take_apart(found, f"the {FLAGS[split]} loader")[0]
            return source
        try:
            return as_source(found)
        except NotASource as error:
            raise UsageError(f"the loader for {FLAGS[split]!r} cannot be taken apart: {error}") from error

    def _make(self, split: str) -> Any:
        if split not in self._made:
            self._made[split] = self._loader(self.config, FLAGS[split])
        return self._made[split]


def functions_of_wrapper(wrapper: Any) -> Callable[[Any, str], Any]:
    """Return the loaders of a wrapper class as a function of (config, flag)."""
    made = wrapper() if isinstance(wrapper, type) else wrapper
    return lambda config, flag: getattr(made, f"make_dataloader_{flag}")(config)
