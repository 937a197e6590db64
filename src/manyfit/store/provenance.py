"""The provenance of a run: code, versions, hardware, data. One entry per start."""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from manyfit.core.redaction import redact_nested
from manyfit.store import durable
from manyfit.store.files import readable
from manyfit.store.folder import RunFolder

PACKAGES = (
    "manyfit",
    "torch",
    "numpy",
    "safetensors",
    "pydantic",
    "tensorboard",
    "keras",
    "tensorflow",
    "ray",
    "optuna",
    "mlflow",
    "scikit-learn",
    "torchmetrics",
)
MAX_DIFF = 1_000_000
MAX_FILES = 500


def record_start(run: RunFolder, project: Path, facts: Mapping[str, Any]) -> None:
    """Add this start to the provenance file of a run."""
    durable.write_file(run.provenance, append_start(run, session(project, facts)))


def session(project: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a start: command, versions, hardware and code."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": dict(versions()),
        "hardware": hardware(),
        "code": code(project),
        **facts,
    }


def brief_session(study: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a start whose versions, hardware and code are recorded once for the whole study."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"started": started, "study": study, "versions": {}, "code": {}, **facts}


def append_start(run: RunFolder, session: Mapping[str, Any]) -> str:
    """Return the text of the provenance file with one more start, without secrets."""
    return readable(redact_nested({"sessions": [*run.sessions(), session]}), 3) + "\n"


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions of packages that can change a result. Cached: finding them takes 0.1 seconds."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Describe the machine, as far as it matters for a result."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "processor": _processor(),
    }


def code(project: Path) -> dict[str, Any]:
    """Describe the commit and the changes since; empty outside of a repository."""
    commit = _git(project, "rev-parse", "HEAD")
    if commit is None:
        return {}
    diff = _git(project, "diff", "HEAD", "--", ".") or ""
    status = _git(project, "status", "--porcelain", "--", ".") or ""
    untracked = (_git(project, "ls-files", "--others", "--exclude-standard", "--", "*.py") or "").splitlines()
    return {
        "commit": commit.strip(),
        "changed": bool(status.strip()),
        "diff": diff[:MAX_DIFF],
        "diff_cut": len(diff) > MAX_DIFF,
        "untracked": {name: _digest(project / name) for name in untracked[:MAX_FILES]},
    }


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _git(project: Path, *words: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run([git, "-C", str(project), *words], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
