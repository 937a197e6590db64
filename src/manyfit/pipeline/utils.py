"""`ConfigStruct` under the name by which older code imports it."""

from manyfit.config.struct import ConfigStruct

__all__ = ["ConfigStruct"]
