"""`ConfigStruct` under its former import path."""

from manyfit.config.typed.config_struct import ConfigStruct

__all__ = ["ConfigStruct"]
