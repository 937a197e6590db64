"""Inspection of the machine: versions and devices, and problems that would prevent a run from working."""

from __future__ import annotations

import locale
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

LOW_DISK = 1 << 30


@dataclass(frozen=True, slots=True)
class Examination:
    """The results of an inspection."""

    facts: dict[str, str]
    extras: dict[str, str]
    problems: list[str]


def examine_machine() -> Examination:
    """Inspect versions, devices, cores, disk, locale and extras."""
    problems: list[str] = []
    free = shutil.disk_usage(Path.cwd()).free
    facts = {
        "manyfit": metadata.version("manyfit"),
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "free disk": f"{free / (1 << 30):.1f} GiB in {Path.cwd()}",
        "encoding": locale.getpreferredencoding(False),
    }
    facts |= _torch(problems)
    if free < LOW_DISK:
        problems.append(f"only {free / (1 << 20):.0f} MiB of disk space are free; checkpoints may not fit")
    if not _writable(Path.cwd()):
        problems.append(f"{Path.cwd()} is not writable; runs need a folder")
    core, extras = _requirements()
    problems += [f"{name} {state}; {advice}" for name, (state, advice) in core.items() if advice]
    for name, (state, advice) in extras.items():
        if advice and "not installed" not in state:
            problems.append(f"the extra {name!r}: {state}; {advice}")
    shown = {
        name: f"{state} ({advice})" if "not installed" in state else state
        for name, (state, advice) in extras.items()
    }
    return Examination(facts, shown, problems)


def _torch(problems: list[str]) -> dict[str, str]:
    try:
        import torch
    except Exception as error:
        problems.append(f"torch cannot be imported: {error}")
        return {"torch": "broken"}
    facts = {"torch": f"{torch.__version__}, {torch.get_num_threads()} threads"}
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count)]
    except Exception as error:
        problems.append(f"torch cannot use the GPU: {error}")
        devices = []
    if torch.version.cuda and not devices and shutil.which("nvidia-smi"):
        problems.append(
            "there is an NVIDIA driver, but torch finds no GPU; its CUDA version may not match the driver"
        )
    return {**facts, "devices": ", ".join(["cpu", *devices])}


def _requirements() -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Return the state of required packages and of each extra: (what is installed, what to do)."""
    from packaging.requirements import Requirement

    core: dict[str, tuple[str, str]] = {}
    extras: dict[str, tuple[str, str]] = {}
    provided = [
        name
        for name in metadata.metadata("manyfit").get_all("Provides-Extra") or []
        if name not in ("all", "bench", "dev", "docs")
    ]
    for line in metadata.requires("manyfit") or []:
        requirement = Requirement(line)
        if requirement.name == "manyfit":
            continue
        if requirement.marker is None:
            core[requirement.name] = _state(
                requirement.name, requirement.specifier, "pip install --upgrade manyfit"
            )
            continue
        for extra in provided:
            if requirement.marker.evaluate({"extra": extra}):
                state, advice = _state(
                    requirement.name, requirement.specifier, f"pip install 'manyfit[{extra}]'"
                )
                before = extras.get(extra)
                better = f"{before[0]}, {state}" if before else state
                extras[extra] = (better, advice or (before[1] if before else ""))
    return core, extras


def _state(name: str, wanted: object, advice: str) -> tuple[str, str]:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed", advice
    if version not in wanted:  # type: ignore[operator]
        return f"{name} {version} does not satisfy {wanted}", advice
    return f"{name} {version}", ""


def _writable(folder: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            return True
    except OSError:
        return False
