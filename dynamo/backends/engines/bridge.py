"""Our backends under torch.compile: `torch.compile(model, backend="dynamo_inductor")`.

torch's own capture hands a graph over. Where it holds for many sizes, it is compiled for each set
of sizes that is met, up to a limit, since its symbols are those of another capture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.backends.registry import lookup_backend
from dynamo.base.graph_copies import copy_graph
from inductor.dynamic_shapes.specialise import BySizes, is_symbolic


def compile_for_torch(
    name: str, gm: fx.GraphModule, example_inputs: list[Any], **settings: Any
) -> Callable[..., Any]:
    """A backend of ours by name, as torch.compile calls backends; settings: mode=, options=."""
    backend = lookup_backend(name)
    check = getattr(backend, "check_options", None)
    if check is not None:
        check(settings.get("mode"), settings.get("options"))
    inputs = [_hint(value) for value in example_inputs]

    def compile_static(module: fx.GraphModule, given: list[Any]) -> Callable[..., Any]:
        return backend(_with_numbers(module, given), given, **settings)

    if is_symbolic(gm, inputs):
        return BySizes(gm, inputs, compile_static)
    return backend(gm, inputs, **settings)


def _hint(value: Any) -> Any:
    """The number that a symbolic one stands for at the first call."""
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat))
    return value.node.hint if symbolic else value


def _with_numbers(module: fx.GraphModule, given: list[Any]) -> fx.GraphModule:
    """The graph for these numbers and sizes: the first are constants, the second are not noted."""
    graph = copy_graph(module.graph)
    for node in graph.nodes:
        node.meta.pop("example_value", None)
    for node, value in zip(graph.find_nodes(op="placeholder"), given, strict=True):
        if isinstance(value, torch.Tensor):
            continue
        constant = functools.partial(_constant_for, node, value)
        for user in list(node.users):
            user.args = fx.map_arg(user.args, constant)
            user.kwargs = fx.map_arg(user.kwargs, constant)
    return fx.GraphModule(module, graph)


def _constant_for(node: fx.Node, value: Any, other: fx.Node) -> Any:
    return value if other is node else other


dynamo_inductor = functools.partial(compile_for_torch, "inductor")
dynamo_aot_eager = functools.partial(compile_for_torch, "aot_eager")
dynamo_onnxrt = functools.partial(compile_for_torch, "onnxrt")
dynamo_openvino = functools.partial(compile_for_torch, "openvino")
dynamo_tensorrt = functools.partial(compile_for_torch, "tensorrt")
dynamo_tvm = functools.partial(compile_for_torch, "tvm")
dynamo_cudagraphs = functools.partial(compile_for_torch, "cudagraphs")
