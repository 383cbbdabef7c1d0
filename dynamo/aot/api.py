"""The service that `dynamo.aot` is for backends: compile a program's functional ATen graph.

In: a captured module, its example inputs, and a compiler of functional ATen graphs. Out: a callable
with the program's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from dynamo.aot.capture import capture_forward
from dynamo.aot.decompose import decompose
from dynamo.aot.records import Compiler, Unsupported
from dynamo.aot.runtime import wrap_compiled


def compile_inference(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    compiler: Compiler,
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    epilogue_in_graph: bool = False,
) -> Callable[..., Any]:
    """Compiles a program whose outputs need no gradients.

    compiler: takes the ATen module and its inputs' fakes; what it returns takes tensors (all of the
        program's inputs, in order) and returns the tuple of the graph's outputs.
    decompositions: see `decompose`. epilogue_in_graph: mutated inputs end the graph as
        `aten.copy_` nodes.
    Errors: Unsupported, also where an output requires grad.

        >>> call = compile_inference(gm, [torch.randn(3)], lambda module, fakes: module.forward)
    """
    graph = capture_forward(gm, example_inputs, epilogue_in_graph=epilogue_in_graph)
    if graph.needs_grad:
        raise Unsupported("an output requires grad")
    module = decompose(graph.module, decompositions) if decompositions else graph.module
    return wrap_compiled(graph, compiler(module, graph.fakes), gm.forward)
