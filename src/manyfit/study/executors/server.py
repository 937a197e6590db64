"""Imported first by the server that workers are forked from: it ends with the driver, at any moment."""

from __future__ import annotations

import os
from typing import Final

from manyfit.data.workers import die_with_parent

DRIVER: Final = "MANYFIT_DRIVER"
"""In the environment of the server alone: who has started it."""

if os.environ.get(DRIVER) == str(os.getppid()):
    die_with_parent()
