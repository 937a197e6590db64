"""The fixture of a project with a study."""

from tests.study.conftest import lab

__all__ = ["lab"]
