"""The fixture of a project with models and data sets of every form."""

from tests.run.forms import forms

__all__ = ["forms"]
