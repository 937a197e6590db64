"""A wrapper around one or more modules that knows how to rebuild itself."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

log = logging.getLogger("manyfit")


class Model(nn.Module):
    """A model: by default one network, in the attribute `net`. Several are allowed, under any names.

    Import path, class name and arguments are filled in by themselves, so that a checkpoint rebuilds its
    model; `super().__init__()` need not be called.

    >>> class Classifier(Model):
    ...     def __init__(self, classes: int = 10) -> None:
    ...         self.net = nn.Linear(64, classes)
    >>> Classifier(classes=3).get_arguments()
    {'classes': 3}
    """

    net: Any
    import_path: str
    model_name: str
    module_import_path: str
    module_name: str

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        """Create a model that is a module already, before its own `__init__` runs."""
        self = super().__new__(cls)
        nn.Module.__init__(self)
        object.__setattr__(self, "_arguments", (args, dict(kwargs)))
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: subclasses set their networks as attributes."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of `net`; override this for several networks."""
        return self.get_net()(*inputs, **named)

    # -- getters and setters ----------------------------------------------------------------------

    def get_net(self) -> nn.Module:
        """Return the network."""
        found: nn.Module = self.net
        return found

    def set_net(self, net: nn.Module) -> None:
        """Replace the network."""
        self.net = net

    def get_net_state_dict(self) -> Mapping[str, Any]:
        """Return the weights of the network."""
        return self.get_net().state_dict()

    def set_net_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the weights of the network."""
        self.get_net().load_state_dict(dict(state))

    def get_model_parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of all networks."""
        return self.parameters()

    def get_arguments(self) -> dict[str, Any]:
        """Return the arguments that the model was made with, by name."""
        import inspect

        args, kwargs = self.__dict__["_arguments"]
        bound = inspect.signature(type(self)).bind(*args, **kwargs).arguments
        found: dict[str, Any] = {}
        for name, value in bound.items():
            kind = inspect.signature(type(self)).parameters[name].kind
            found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return found

    def get_model_name(self) -> str:
        """Return the name of the class of the model."""
        return str(self.__dict__.get("model_name") or type(self).__qualname__)

    def get_import_path(self) -> str:
        """Return the module that defines the model."""
        return _as_module(self.__dict__.get("import_path")) or type(self).__module__

    def get_module_name(self) -> str:
        """Return the name of the class of the network."""
        return str(self.__dict__.get("module_name") or type(self.get_net()).__qualname__)

    def get_module_import_path(self) -> str:
        """Return the module that defines the network."""
        return _as_module(self.__dict__.get("module_import_path")) or type(self.get_net()).__module__

    def get_class_path(self) -> str:
        """Return the class path that rebuilds the model: as set by hand, if it leads to this class."""
        actual = f"{type(self).__module__}.{type(self).__qualname__}"
        written = f"{self.get_import_path()}.{self.get_model_name()}"
        if written == actual:
            return actual
        try:
            found: Any = importlib.import_module(self.get_import_path())
            for part in self.get_model_name().split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            found = None
        if found is type(self):
            return written
        log.warning("import_path and model_name of %s lead nowhere (%s); using %s", actual, written, actual)
        return actual

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights of all networks, or what an overridden `get_net_state_dict` returns."""
        if _is_overridden(self, "get_net_state_dict") and not args and not kwargs:
            return {f"net.{name}": value for name, value in self.get_net_state_dict().items()}
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load weights, through an overridden `set_net_state_dict` if there is one."""
        if _is_overridden(self, "set_net_state_dict"):
            self.set_net_state_dict({name.removeprefix("net."): v for name, v in state_dict.items()})
            return None
        return super().load_state_dict(state_dict, *args, **kwargs)


def _is_overridden(model: Model, name: str) -> bool:
    return getattr(type(model), name) is not getattr(Model, name)


def _as_module(path: Any) -> str:
    """Return an import path without `.py`, with dots."""
    return str(path or "").removesuffix(".py").replace("/", ".").strip(".")
