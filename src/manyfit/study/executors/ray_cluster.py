"""The connection to a Ray cluster: an existing one, or a local one that is started and stopped here."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import Interrupted, RunFailed, UsageError
from manyfit.core.lazy import import_optional

LOCAL: Final = "local"
REACHED: Final = 10.0
"""Seconds within which a cluster must accept a connection."""
QUIET: Final = {"RAY_SCHEDULER_EVENTS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Settings of Ray that keep its warnings out of the driver's output."""
AUTH_MODE: Final = "RAY_AUTH_MODE"
SWITCH: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOOPBACK: Final = {SWITCH: "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Settings of a local cluster. By the first, Ray listens on the loopback interface only, on Linux, too; by
the last, other programs do not have priority over its workers."""
_is_loopback_only = False
"""Whether Ray was imported in this process with these settings, which it keeps."""


@dataclass(frozen=True)
class Need:
    """The resources of one worker."""

    cpus: float = 1.0
    gpus: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict)

    def fits(self, resources: Mapping[str, float]) -> int:
        """Return how many workers fit into some resources."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.custom}
        counts = [resources.get(name, 0.0) / each + 1e-9 for name, each in wanted.items() if each]
        return math.floor(min(counts, default=1.0))

    def __str__(self) -> str:
        shown = [f"{self.cpus:g} CPU", *([f"{self.gpus:g} GPU"] if self.gpus else [])]
        return ", ".join([*shown, *(f"{amount:g} {name}" for name, amount in self.custom.items())])


@dataclass(frozen=True)
class Share:
    """The part of a cluster that a study uses."""

    workers: int | None = None
    """None for as many as fit."""
    most: int = 1
    """More would have nothing to do."""
    need: Need = field(default_factory=Need)
    may_wait: bool = False
    """Whether to wait for nodes that are large enough, if there are none: the cluster may add them."""

    @property
    def wanted(self) -> int:
        """How many workers to ask for."""
        return min(self.most, self.workers) if self.workers is not None else self.most


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    id: str
    host: str
    resources: Mapping[str, float] = field(hash=False)

    @property
    def shown(self) -> str:
        """Its resources in words."""
        kept = {k: v for k, v in self.resources.items() if ":" not in k and "memory" not in k}
        return ", ".join(f"{amount:g} {name}" for name, amount in sorted(kept.items())) or "no resources"


class Cluster:
    """A connection to Ray. Closing it ends a local cluster, and leaves any other one as it is."""

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        """Without an address, that of the environment (RAY_ADDRESS) is used, or a local cluster is started.

        `cpus` is the number of CPUs of a local cluster.
        """
        self.address = address or os.environ.get("RAY_ADDRESS") or LOCAL
        self.ray: Any = import_ray(self.address)
        self._is_ours, self._has_mode = not self.ray.is_initialized(), False
        self.is_local = self._is_ours and self.address == LOCAL
        if self._is_ours:
            check_reachable(self.address)
            self._has_mode = self.address != LOCAL and choose_auth_mode(self.address)
            try:
                with keep_signals():
                    self._connect(cpus)
            except BaseException:
                self._forget_mode()
                raise

    def _connect(self, cpus: int | None) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.is_local:
            options |= {"include_dashboard": False, "num_cpus": cpus}
        try:
            with set_variables(LOOPBACK if self.is_local else {}):
                self.ray.init(address=self.address, **options)
        except SystemExit:  # by Ray's handler of SIGTERM
            raise Interrupted("ended by SIGTERM while Ray was starting", signal.SIGTERM) from None
        except Exception as error:  # Ray raises many kinds, also for a wrong address
            text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
            if self.is_local:
                raise RunFailed(f"a local Ray cluster could not be started: {text}") from error
            hint = "it may need a token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
            raise UsageError(f"the Ray cluster at {self.address} cannot be used: {text}; {hint}") from error

    @property
    def is_client(self) -> bool:
        """Whether the connection goes through Ray Client (`ray://`)."""
        return bool(self.ray.util.client.ray.is_connected())

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive."""
        found = [node for node in self.ray.nodes() if node["Alive"]]
        return [Node(node["NodeID"], node["NodeManagerHostname"], node["Resources"]) for node in found]

    def free(self) -> Mapping[str, float]:
        """Return the resources that nobody uses now."""
        found: Mapping[str, float] = self.ray.available_resources()
        return found

    def check_feasible(self, need: Need) -> None:
        """Raise an error if no node is large enough for a worker."""
        nodes = self.nodes()
        if not any(need.fits(node.resources) for node in nodes):
            there = "; ".join(f"{node.host}: {node.shown}" for node in nodes)
            raise UsageError(
                f"no node of the Ray cluster has {need} for a worker; available: {there or 'no node'}; "
                "if the cluster adds nodes on demand, set autoscales: true under execute.on"
            )

    def close(self) -> None:
        """Disconnect."""
        if self._is_ours and self.ray.is_initialized():
            with keep_signals():
                self.ray.shutdown()
            self._forget_mode()

    def _forget_mode(self) -> None:
        """Do not send a token to the next cluster, which may not ask for one."""
        if self._has_mode:
            os.environ.pop(AUTH_MODE, None)
            _read_settings()
            self._has_mode = False


def has_token() -> bool:
    """Return whether this user has a token for Ray clusters."""
    names = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    return any(os.environ.get(name) for name in names) or (Path.home() / ".ray" / "auth_token").is_file()


def check_reachable(address: str) -> None:
    """Raise an error if nothing listens at an address: Ray itself would try for many minutes."""
    if address in ("auto", LOCAL):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        raise UsageError(f"the address of a Ray cluster is host:port or ray://host:port, not {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"there is no Ray cluster at {address}: {error}; start one, or leave out the address "
            "(execute.on.address, RAY_ADDRESS) to use this machine"
        ) from error


def choose_auth_mode(address: str) -> bool:
    """Let Ray send the token of this user if the cluster asks for one; return whether it does so now.

    Ray does not find that out by itself, and a driver with a token cannot use a cluster without. Servers of
    Ray Client cannot be asked, so a token is sent to them only if the user has set the mode.
    """
    if AUTH_MODE in os.environ or not has_token() or "://" in address or ":" not in address:
        return False
    if not asks_for_token(address):
        return False
    os.environ[AUTH_MODE] = "token"
    _read_settings()
    return True


def _read_settings() -> None:
    """Let Ray read its environment variables again: it has read them when it was imported."""
    import_optional("ray._raylet", "ray").Config.initialize("")


def asks_for_token(address: str) -> bool:
    """Return whether a cluster refuses clients without a token."""
    from ray.exceptions import AuthenticationError, RpcError

    client = import_optional("ray._raylet", "ray").GcsClient
    try:
        with discard_stderr():  # Ray writes a warning there
            client(address=address)
    except AuthenticationError:
        return True
    except RpcError:
        return False  # connecting fails, too, and says why
    return False


@contextlib.contextmanager
def discard_stderr() -> Iterator[None]:
    """Discard what is written to the standard error stream, by native code, too."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def import_ray(address: str) -> Any:
    """Import Ray, with settings that it reads when it is imported."""
    global _is_loopback_only
    is_local, is_loaded = address == LOCAL, "ray" in sys.modules
    if not is_local and _is_loopback_only:
        raise UsageError(
            f"this process has started a local Ray cluster, after which Ray cannot connect to {address}: "
            "start a new process"
        )
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    with set_variables(LOOPBACK if is_local else {}) as added:
        found = import_optional("ray", "ray")
        _is_loopback_only |= is_local and not is_loaded and SWITCH in added
    return found


@contextlib.contextmanager
def set_variables(values: Mapping[str, str]) -> Iterator[list[str]]:
    """Set environment variables that are not set; yield their names."""
    added = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in added})
    try:
        yield added
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def keep_signals() -> Iterator[None]:
    """Keep the signal handlers of this process: Ray sets its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def shorten_error(error: BaseException) -> str:
    """Return the sentence of an error of Ray that says why an actor is gone."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # An error while an actor is created is in the last line.
    reasons = [line for line in lines if "because" in line and "creation task" not in line]
    found = ([*reasons, *lines[-1:]] or [type(error).__name__])[0]
    return found.partition(". ")[0][:300]


def find_mismatches(here: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return how the versions of nodes differ from those of the driver, one line for each node."""
    found = []
    for host, versions in nodes.items():
        wrong = [
            f"{name} {versions.get(name, 'is missing')} (here: {mine})"
            for name, mine in here.items()
            if versions.get(name) != mine
        ]
        if wrong:
            found.append(f"{host}: {', '.join(wrong)}")
    return found
