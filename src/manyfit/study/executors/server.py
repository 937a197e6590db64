"""The first import of the server that workers are forked from: it makes the server exit with the driver."""

from __future__ import annotations

import os
import sys
from typing import Final

from manyfit.core.processes import die_with_parent

DRIVER: Final = "MANYFIT_DRIVER"
"""Environment variable with the driver's process ID; only the server has it, and removes it."""

if sys.argv[:1] == ["-c"] and DRIVER in os.environ:
    driver = os.environ.pop(DRIVER)
    die_with_parent()
    if os.getppid() != int(driver):  # the driver had exited before the request was made
        os._exit(0)

BEGAN: Final = dict(os.environ)
"""The environment at the start of the server: what libraries have added since stays in its workers."""
