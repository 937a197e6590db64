"""Compiling a graph of tensor operations, or loading what was compiled for the same graph before."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from manyfit.learn.fusing import CompiledStore

log = logging.getLogger("manyfit")

Compiled = Callable[..., object]


def compile_graph(
    graph: GraphModule, examples: Sequence[Tensor], options: Mapping[str, Any], store: CompiledStore | None
) -> tuple[Compiled, bool]:
    """Return a compiled graph, which takes tensors like the examples, and whether a store had it."""
    constants = lift_constants(graph)
    compiled, is_loaded = _compile_or_load(graph, [*examples, *constants], options, store)
    return functools.partial(_call, compiled, constants), is_loaded


def lift_constants(graph: GraphModule) -> list[Tensor]:
    """Turn the tensors of a graph into further inputs, and return them: they are not part of what is kept."""
    nodes = [node for node in graph.graph.nodes if node.op == "get_attr"]
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    last, lifted, found = inputs[-1], dict[str, Node](), list[Tensor]()
    for node in nodes:
        name = str(node.target)
        if name not in lifted:
            # Compiled code expects the strides of its examples, which are clones.
            found.append(getattr(graph, name).contiguous())
            with graph.graph.inserting_after(last):
                last = lifted[name] = graph.graph.placeholder(f"constant_{len(found)}")
        node.replace_all_uses_with(lifted[name])
        graph.graph.erase_node(node)
    for name in lifted:
        delattr(graph, name)
    graph.recompile()
    return found


def _call(compiled: Compiled, constants: Sequence[Tensor], *tensors: Tensor) -> object:
    return compiled(*tensors, *constants)


def _compile_or_load(
    graph: GraphModule, examples: Sequence[Tensor], options: Mapping[str, Any], store: CompiledStore | None
) -> tuple[Compiled, bool]:
    key = hash_graph(graph, examples, options) if store is not None else ""
    data = store.read(key) if store is not None else None
    if data is not None:
        try:
            return _load(data), True
        except Exception as error:
            log.debug("compiled steps could not be loaded: %s", error)
    try:  # without Dynamo, which would trace the graph once more
        from torch._inductor import standalone_compile

        copies: list[Any] = [each.clone() for each in examples]
        found = standalone_compile(
            graph, copies, dynamic_shapes="from_example_inputs", options={"config_patches": dict(options)}
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        log.debug("compiled by torch.compile, as it failed otherwise: %s", error)
        compiled: Compiled = torch.compile(graph, options=dict(options), fullgraph=True, dynamic=False)
        return compiled, False
    if store is not None:
        try:
            store.write(key, _dump(found))
        except Exception as error:  # what cannot be saved is compiled again the next time
            log.debug("compiled steps could not be saved: %s", error)
    return found, False


def hash_graph(graph: GraphModule, examples: Sequence[Tensor], options: Mapping[str, Any]) -> str:
    """Return a key of everything on which the compiled code depends."""
    device = examples[0].device
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("TORCHINDUCTOR_") and name != "TORCHINDUCTOR_CACHE_DIR"
    }
    content: list[Any] = [
        graph.code,
        [(list(each.shape), list(each.stride()), str(each.dtype), str(each.device)) for each in examples],
        sorted(options.items()),
        sorted(environment.items()),
        torch.__version__,
        torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        torch.version.cuda,
        torch.get_float32_matmul_precision(),
        torch.get_deterministic_debug_mode(),
        [torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()] if device.type == "cpu" else [],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _dump(artifact: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        artifact.save(path=str(file), format="binary")
        return file.read_bytes()


def _load(data: bytes) -> Compiled:
    from torch._inductor.standalone_compile import CompiledArtifact

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        file.write_bytes(data)
        found: Compiled = CompiledArtifact.load(path=str(file), format="binary")
    return found
