"""What the nodes of a Ray cluster have, and what a study would send them: for dry runs and the doctor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import ManyfitError, UsageError
from manyfit.core.names import format_size, pluralize
from manyfit.study.executors.ray_cluster import Cluster, Node, find_mismatches
from manyfit.study.executors.ray_study import (
    check_resources,
    list_values,
    local_cpus,
    need_of,
    read_environment,
)
from manyfit.study.executors.ray_worker import NodeFacts, introduce_node, versions_here
from manyfit.study.executors.shipment import Shipment, pack_code

ANSWER: Final = 60.0
"""Seconds within which a node must say what it has."""


def survey(cluster: Cluster, wanted: Sequence[tuple[str, int, int]] = ()) -> dict[Node, NodeFacts | str]:
    """Ask every node for its versions, and which files of the driver it sees; an error is a text."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask, calls = cluster.ray.remote(introduce_node), {}
    for node in cluster.nodes():
        there = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        calls[node] = ask.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(list(wanted))
    found: dict[Node, NodeFacts | str] = {}
    for node, call in calls.items():
        try:
            found[node] = cluster.ray.get(call, timeout=ANSWER)
        except Exception as error:  # whatever is wrong with a node is to be shown, not raised
            text = str(error).strip().rpartition("\n")[2]
            found[node] = f"it does not answer: {type(error).__name__}: {text}"
    return found


def describe_placement(
    study: StudyConfig, trials: int, state: float, visits: int = 1
) -> tuple[int, dict[str, str]]:
    """Return how many workers a study would have, where they would be, and what would move over the network.

    `state` is the size of a checkpoint in bytes, `visits` is how often a trial travels.
    """
    on = study.execute.on
    assert on is not None
    params = dict(on.params)
    address = params.get("address") or os.environ.get("RAY_ADDRESS")
    read_environment(study, params.get("environment") or ())
    resources = params.get("resources") or {}
    check_resources(resources)
    if resources and not address:
        raise UsageError(
            f"execute.on.resources: a local cluster has no resource {next(iter(resources))!r}; set the "
            "address of a cluster that has (execute.on.address, RAY_ADDRESS)"
        )
    shipment = Shipment(study.base, study.folder / "study.yaml", list_values(study))
    shown = {}
    nodes: dict[Node, NodeFacts | str] = {}
    if address:
        cluster = Cluster(address)
        try:
            need = need_of(study, cluster, resources)
            autoscales = bool(params.get("autoscales"))
            if not autoscales:
                cluster.check_feasible(need)
            nodes = survey(cluster, shipment.marks)
            free = cluster.free()
        finally:
            cluster.close()
        rooms = {node: need.fits(node.resources) for node in nodes}
        most = trials if autoscales else sum(rooms.values())
        workers = min(study.execute.workers or trials, trials, most)
        there = "; ".join(f"{node.host} ({node.shown}): up to {room}" for node, room in rooms.items())
        more = "; more are added on demand" if autoscales else ""
        shown["cluster"] = f"{address}, {pluralize(len(nodes), 'node')}: {there}{more}"
        shown["workers"] = f"{workers}, each with {need}; {need.fits(free)} of them have room now"
        for line in find_node_problems(nodes, shipment):
            shown["problem"] = f"{shown.get('problem', '')}{line}. "
    else:
        workers = min(study.execute.workers or local_cpus(study), trials)
        shown["cluster"] = "a local one, which the study starts and stops (no address is given)"
        shown["workers"] = f"{workers}"
    return workers, {**shown, **describe_network(study, shipment, nodes, trials, state, visits)}


def find_node_problems(nodes: Mapping[Node, NodeFacts | str], shipment: Shipment) -> list[str]:
    """Return why nodes could not be used."""
    silent = [f"{node.host}: {facts}" for node, facts in nodes.items() if isinstance(facts, str)]
    known = {node.host: facts for node, facts in nodes.items() if isinstance(facts, NodeFacts)}
    wrong = find_mismatches(versions_here(), {host: facts.versions for host, facts in known.items()})
    missing = [
        f"{host}: {text}" for host, facts in known.items() if (text := shipment.find_missing(facts.sees))
    ]
    return [*silent, *wrong, *missing]


def describe_network(
    study: StudyConfig,
    shipment: Shipment,
    nodes: Mapping[Node, NodeFacts | str],
    trials: int,
    state: float,
    visits: int,
) -> dict[str, str]:
    """Return what is sent to nodes, once and for every trial."""
    count, shown = max(1, len(nodes)), {}
    code = pack_code(study.base, study.folder / "study.yaml", shipment.paths, len)
    shown["code"] = f"{format_size(code.size)} to each node, once"
    facts = [each for each in nodes.values() if isinstance(each, NodeFacts)]
    lines = []
    for each in shipment.wanted:
        without = [fact for fact in facts if str(each.path) not in fact.sees]
        lacking = len(without)
        if lacking and each.layout is not None:
            made = sum(bool(shipment.find_shards(fact.made)) for fact in without)
            lines.append(
                f"{each.key}: {each.name} ({format_size(each.size)}): {lacking} of {count} nodes get the "
                f"shards that they read; nodes with shards that ETL has made there: {made}"
            )
        elif lacking:
            lines.append(
                f"{each.key}: {each.name} ({format_size(each.size)}) is sent to {lacking} of {count} nodes"
            )
        else:
            lines.append(f"{each.key}: {each.path} is read in place: every node sees it")
    lines += [f"{key}: {url} is read by every node" for key, url in shipment.urls]
    shown["data"] = "; ".join(lines) or "no file is named: the data class builds it on every node"
    when = "for each visit to a shard" if visits > 1 else "for each trial, and more at its checkpoints"
    shown["network"] = (
        f"about {format_size(2 * state * trials * visits)} of states: {format_size(state)} to a worker and "
        f"back, {when}"
    )
    return shown


def examine_cluster(address: str | None = None) -> tuple[dict[str, str], list[str]]:
    """Return facts about a Ray cluster and its nodes, and what is wrong with them.

    Without an address, that of the environment is used; without that, there is only a version.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    here = versions_here()
    if "ray" not in here:
        return {}, [f"the cluster at {address} cannot be used without Ray"] if address else []
    if not address:
        return {"ray": f"{here['ray']}; no cluster is named (RAY_ADDRESS), so studies start a local one"}, []
    try:
        cluster = Cluster(address)
    except ManyfitError as error:
        return {"ray": here["ray"]}, [str(error)]
    try:
        nodes, free = survey(cluster), cluster.free()
    finally:
        cluster.close()
    facts = {"ray": f"{here['ray']}, {pluralize(len(nodes), 'node')} at {address}"}
    for number, (node, found) in enumerate(nodes.items()):
        shown = ""
        if isinstance(found, NodeFacts):
            shown = "; " + ", ".join(f"{name} {version}" for name, version in found.versions.items())
        facts[f"node {number}"] = f"{node.host}: {node.shown}{shown}"
    facts["free"] = Node("", "", free).shown
    return facts, find_node_problems(nodes, Shipment())
