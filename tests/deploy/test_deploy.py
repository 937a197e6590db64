"""The files in deploy/ are valid: by linters, and by schemas of what they are sent to."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def strict(required=(), **properties):
    """The schema of an object without other keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT, COUNT, SWITCH = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
QUANTITIES = {
    "type": "object",
    "propertyNames": {"pattern": r"^(cpu|memory|ephemeral-storage|[a-z.]+/[a-z]+)$"},
    "additionalProperties": {"type": "string", "pattern": r"^[0-9.]+(m|[KMGT]i?)?$"},
}
CONTAINER = strict(
    ["name", "image", "resources"],
    name=TEXT,
    image=TEXT,
    ports={
        "type": "array",
        "items": strict(
            ["containerPort"],
            containerPort={"type": "integer", "maximum": 65535},
            name={"type": "string", "pattern": "^[a-z-]{1,15}$"},
        ),
    },
    resources=strict(["requests", "limits"], requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts={"type": "array", "items": strict(["name", "mountPath"], name=TEXT, mountPath=TEXT)},
    env={"type": "array"},
)
POD = strict(
    ["spec"],
    metadata={"type": "object"},
    spec=strict(
        ["containers", "securityContext"],
        securityContext=strict(
            ["runAsNonRoot"], runAsNonRoot={"const": True}, runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT
        ),
        containers={"type": "array", "items": CONTAINER, "minItems": 1},
        volumes={
            "type": "array",
            "items": strict(["name"], name=TEXT, persistentVolumeClaim=strict(["claimName"], claimName=TEXT)),
        },
    ),
)
CLUSTER = strict(
    ["headGroupSpec", "rayVersion"],
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    enableInTreeAutoscaling=SWITCH,
    autoscalerOptions={"type": "object"},
    suspend=SWITCH,
    headGroupSpec=strict(
        ["rayStartParams", "template"], rayStartParams=TEXTS, template=POD, serviceType=TEXT
    ),
    workerGroupSpecs={
        "type": "array",
        "items": strict(
            ["groupName", "rayStartParams", "template", "minReplicas", "maxReplicas"],
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            numOfHosts=COUNT,
            rayStartParams=TEXTS,
            template=POD,
        ),
    },
)
JOB = strict(
    ["entrypoint", "rayClusterSpec"],
    entrypoint=TEXT,
    rayClusterSpec=CLUSTER,
    shutdownAfterJobFinishes=SWITCH,
    ttlSecondsAfterFinished=COUNT,
    activeDeadlineSeconds=COUNT,
    backoffLimit=COUNT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    suspend=SWITCH,
    runtimeEnvYAML=TEXT,
)
KINDS = {"RayCluster": CLUSTER, "RayJob": JOB}


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_manifests_have_the_fields_of_kuberay(name):
    tree = yaml.safe_load((DEPLOY / "kuberay" / name).read_text())
    head = strict(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": "ray.io/v1"},
        kind={"enum": list(KINDS)},
        metadata=strict(["name"], name={"type": "string", "pattern": "^[a-z0-9-]{1,40}$"}),
        spec=KINDS[tree["kind"]],
    )
    jsonschema.validate(tree, head)
    cluster = tree["spec"].get("rayClusterSpec", tree["spec"])
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        spec = group["template"]["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_a_schema_finds_a_misspelled_field():
    tree = yaml.safe_load((DEPLOY / "kuberay" / "raycluster.yaml").read_text())["spec"]
    tree["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(tree, CLUSTER)


def test_the_version_of_ray_is_the_one_that_is_installed():
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)
    for path in (DEPLOY / "kuberay").iterdir():
        assert f'rayVersion: "{pinned}"' in path.read_text()


@pytest.mark.parametrize(
    ("linter", "file"), [("shellcheck", "slurm/study.sbatch"), ("hadolint", "Dockerfile")]
)
def test_linters_find_nothing(linter, file):
    found = shutil.which(linter, path=str(BIN)) or shutil.which(linter)
    if found is None:
        pytest.skip(f"{linter} has no package for this machine")
    done = subprocess.run([found, DEPLOY / file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_image_copies_files_that_exist_and_has_no_root():
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE)[-1] == "1000:1000"


SLURM = {
    "scontrol": 'if [ "$1" = show ]; then echo a; echo b; else echo "$@" >> "$LOG"; fi',
    "srun": 'case "$*" in *hostname*) echo 127.0.0.1 ;; *) echo "srun $*" >> "$LOG" ;; esac',
    "ray": "exit 0",
    "manyfit": 'echo "manyfit $*" >> "$LOG"',
}


def start_slurm(folder, **bodies):
    """Start the script, with these bodies of commands; return its process and the log of its commands."""
    for name, body in {**SLURM, **bodies}.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin", "LOG": str(folder / "log"), "SLURM_JOB_NODELIST": "[a-b]",
        "SLURM_JOB_ID": "41", "SLURM_CPUS_PER_TASK": "8",
    }  # fmt: skip
    words = ["bash", str(DEPLOY / "slurm" / "study.sbatch"), "studies/lr", "search.seeds=3"]
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True), folder / "log"


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (1, False), (138, True)])
def test_the_slurm_script_starts_every_node_and_requeues_what_was_interrupted(tmp_path, code, requeued):
    started, log = start_slurm(tmp_path, manyfit=f"{SLURM['manyfit']}; exit {code}")
    said = started.communicate(timeout=60)[1]
    assert started.returncode == code, said
    lines = log.read_text().splitlines()
    assert "manyfit sweep studies/lr execute.on=ray search.seeds=3" in lines
    starts = [line for line in lines if "ray start" in line]
    assert len(starts) == 2
    assert sum("--head" in line for line in starts) == 1
    assert all("--num-cpus 8" in line and "--cpus-per-task 8" in line for line in starts)
    assert ("requeue 41" in lines) == requeued


def test_the_slurm_script_ends_if_ray_cannot_be_started(tmp_path):
    srun = 'case "$*" in *hostname*) echo 127.0.0.1 ;; *) exit 1 ;; esac'
    started, _ = start_slurm(tmp_path, srun=srun, ray="exit 1")
    assert "Ray could not be started on a" in started.communicate(timeout=60)[1]
    assert started.returncode == 1


def test_the_slurm_script_passes_a_signal_on_and_requeues(tmp_path):
    manyfit = 'trap "echo asked >> $LOG; exit 138" USR1; echo ready >> "$LOG"; while true; do sleep 0.1; done'
    started, log = start_slurm(tmp_path, manyfit=manyfit)
    limit = time.monotonic() + 30
    while not log.exists() or "ready" not in log.read_text():
        assert time.monotonic() < limit
        time.sleep(0.05)
    started.send_signal(signal.SIGUSR1)
    assert started.wait(30) == 138
    assert log.read_text().splitlines()[-2:] == ["asked", "requeue 41"]
