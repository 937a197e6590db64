"""Imported first by the server that workers are forked from: it ends with the driver, at any moment."""

from __future__ import annotations

import os
import sys
from typing import Final

from manyfit.core.processes import die_with_parent

DRIVER: Final = "MANYFIT_DRIVER"
"""In the environment of the server alone, and only until it is read: who has started it."""

if sys.argv[:1] == ["-c"] and DRIVER in os.environ:
    driver = os.environ.pop(DRIVER)
    die_with_parent()
    if os.getppid() != int(driver):  # it has ended already, before the request was made
        os._exit(0)

BEGAN: Final = dict(os.environ)
"""The environment that the server began with: what libraries have put there since stays in its workers."""
