"""Slurm jobs: a script for `sbatch` that trains a run or a study, and resumes after a time limit."""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from manyfit.config import load_config
from manyfit.config.schema.run import Submit
from manyfit.config.study.study import load_study
from manyfit.config.tree.project import project_root
from manyfit.core.errors import UsageError
from manyfit.core.redaction import without_values
from manyfit.core.text import printable_line
from manyfit.run.train import place as run_place
from manyfit.store import durable
from manyfit.study.job_array import find_obstacle, trials_of

USR1: Final = 128 + signal.SIGUSR1.value
OPTIONS: Final = {
    "time": "time",
    "memory": "mem",
    "cpus": "cpus-per-task",
    "gpus": "gpus",
    "partition": "partition",
    "account": "account",
}


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job script, its file, and whether it was submitted."""

    file: Path
    script: str
    tasks: int = 1
    then: str = ""
    """The script of the job that collects the results of the array."""
    sent: str = ""
    """The message with the job number; empty if it was not submitted."""


def submit(
    place: Path, given: dict[str, Any], *, overrides: Sequence[str] = (), only_show: bool = False
) -> SubmittedJob:
    """Write the script of a run or a study, and submit it if `sbatch` is available."""
    resources = replace(resources_of(place, overrides), **given)
    job = job_of(place, resources, overrides)
    if only_show:
        return job
    sbatch = shutil.which("sbatch")
    if sbatch is not None:
        check_queue(resources.max_queued, job.tasks)
    job.file.parent.mkdir(parents=True, exist_ok=True)
    durable.write_file(job.file, job.script)
    if sbatch is None:
        return job
    sent = submit_script(sbatch, job.file)
    if job.then:
        after = job.file.with_name("submit-sweep.sh")
        durable.write_file(after, job.then)
        sent += f", then {submit_script(sbatch, after, [f'--dependency=afterany:{sent}'])}"
    return replace(job, sent=f"submitted as job {sent}")


def submit_script(sbatch: str, file: Path, options: Sequence[str] = ()) -> str:
    """Submit a script to Slurm; return the job number."""
    command = [sbatch, "--parsable", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = re.search(r"(\d+)(;\S*)?\s*$", done.stdout)
    if done.returncode or answer is None:
        raise UsageError(f"sbatch refused {file}: {(done.stderr or done.stdout).strip()}")
    return answer[1]


def resources_of(place: Path, overrides: Sequence[str]) -> Submit:
    """Return the `submit` section of the config of a run or a study."""
    config = (
        load_study(place, overrides).base if names_study(place) else load_config(place, overrides, trust=True)
    )
    return config.run.submit


def names_study(place: Path) -> bool:
    """Return whether a path refers to a study."""
    return place.name == "study.yaml" or (place / "study.yaml").is_file()


def job_of(place: Path, resources: Submit, overrides: Sequence[str]) -> SubmittedJob:
    """Return the job of a run or a study; a study with independent trials becomes a job array."""
    then = ""
    if names_study(place):
        folder = (place.parent if place.name == "study.yaml" else place).resolve()
        study = load_study(folder)
        tasks = len(trials_of(study)) if not find_obstacle(study) else 1
        tasks = min(tasks, resources.tasks or tasks)
        command = whole = ["manyfit", "sweep", str(folder), *overrides]
        if tasks > 1:
            if overrides:
                raise UsageError(
                    "a study that is split into jobs accepts no overrides: write them into study.yaml"
                )
            command = ["manyfit", "study", "share", str(folder), '"$SLURM_ARRAY_TASK_ID"', str(tasks)]
            then = script(folder, whole, resources, 1)
    else:
        folder = run_place(place, None).resolve()
        tasks, command = 1, ["manyfit", "train", str(place.resolve()), *overrides]
    return SubmittedJob(folder / "submit.sh", script(folder, command, resources, tasks), tasks, then)


def script(folder: Path, command: Sequence[str], resources: Submit, tasks: int) -> str:
    """Return a job script that forwards Slurm's warning signal, and requeues itself at its time limit."""
    log = folder / ("slurm-%A_%a.out" if tasks > 1 else "slurm-%j.out")
    lines = [f"--job-name={folder.name}", f"--output={log}", f"--signal=B:USR1@{resources.warning}"]
    lines += [
        f"--{option}={getattr(resources, name)}"
        for name, option in OPTIONS.items()
        if getattr(resources, name) is not None
    ]
    lines += ["--requeue", "--open-mode=append"]
    if tasks > 1:
        most = f"%{resources.at_once}" if resources.at_once is not None else ""
        lines.append(f"--array=0-{tasks - 1}{most}")
    lines += resources.options
    cleaned = map(without_values, command)  # secrets by name: the job reads the value from its environment
    words = " ".join(word if word.startswith('"$') else shlex.quote(word) for word in cleaned)
    return "\n".join(
        [
            "#!/bin/bash",
            "# Written by manyfit.",
            *(f"#SBATCH {quote_option(printable_line(line))}" for line in lines),
            "",
            f"cd {shlex.quote(str(project_root(folder)))} || exit 1",
            *resources.setup,
            "child= code=1 signalled=0 early=",
            'pass() { signalled=1; if [ -n "$child" ]; then kill "-$1" "$child"; else early=$1; fi; }',
            "trap 'pass USR1' USR1   # writes a checkpoint",
            "trap 'pass TERM' TERM",
            f"{words} &",
            "child=$!",
            'if [ -n "$early" ]; then kill "-$early" "$child"; fi   # arrived before the start',
            "while true; do",
            '  signalled=0; wait "$child"; now=$?',
            '  if [ "$now" -ne 127 ]; then code=$now; fi',
            '  if [ "$signalled" -eq 0 ]; then break; fi',
            "done",
            f'if [ "$code" -eq {USR1} ]; then scontrol requeue "$SLURM_JOB_ID"; fi   # resumes from there',
            'exit "$code"',
            "",
        ]
    )


def quote_option(option: str) -> str:
    """Quote the value of an `#SBATCH` option, in which blanks separate options."""
    name, equals, value = option.partition("=")
    return f'{name}{equals}"{value}"' if equals and any(c in value for c in " '") else option


def check_queue(most: int | None, tasks: int) -> None:
    """Raise if the job would exceed `submit.max_queued`."""
    if most is None:
        return
    squeue = shutil.which("squeue")
    if squeue is None:
        raise UsageError("submit.max_queued needs squeue, which is not on the PATH")
    done = subprocess.run(
        [squeue, "--noheader", "--array", "--user", getpass.getuser()],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UsageError(f"squeue failed: {done.stderr.strip()}")
    queued = len([line for line in done.stdout.splitlines() if line.strip()])
    if queued + tasks > most:
        raise UsageError(
            f"{queued} jobs are queued already; {tasks} more would exceed submit.max_queued ({most})"
        )
