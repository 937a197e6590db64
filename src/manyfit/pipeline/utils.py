"""`ConfigStruct` under the name by which older code imports it."""

from manyfit.config.typed.config_struct import ConfigStruct

__all__ = ["ConfigStruct"]
