"""The version, in a file that nothing else has to be imported for."""

__version__ = "0.1.0"
