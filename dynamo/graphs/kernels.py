"""Which kernel computes each operation of a graph, asked of the compiler.

In: a `torch.fx` graph module and its arguments. Out: a name for each operation. A copy of the graph
is compiled by the default backend for exactly these arguments; each operation of the copy stands on
a line of its own (of a file that does not exist), and the backend tells of each kernel which lines
it computes (the event `kernels`).
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.graph import _PyTreeCodeGen
from torch.utils import _pytree as pytree

from dynamo.backends.registry import lookup_backend
from dynamo.base import events
from dynamo.graphs.copies import copied
from dynamo.graphs.cost import CALLS

FILE = "<operation>"
_alone = threading.Lock()  # events are those of the process


def kernels_of(module: fx.GraphModule, *args: Any) -> dict[fx.Node, str]:
    """The name of the kernel or library call that computes each operation, in inference.

    Where several do, it is the last. An operation without a name runs nowhere: it is a view, or was
    folded into weights. Errors: RuntimeError where the backend leaves the graph as it is.

    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x.exp() + 1).relu()
    >>> graph = fx.symbolic_trace(Net())
    >>> set(kernels_of(graph, torch.ones(8)).values())
    {'kernel0'}
    """
    marked = copied(module)
    operations = [node for node in module.graph.nodes if node.op in CALLS]
    for at, node in enumerate(node for node in marked.graph.nodes if node.op in CALLS):
        node.stack_trace = f'File "{FILE}", line {at}, in {node.name}\n    {node.name}'
    given = _flat(marked, args)
    marked.graph.set_codegen(fx.graph.CodeGen())
    marked.recompile()
    with _alone, torch.no_grad():
        before = events.events("kernels")
        options = {"graph_cache": False}
        call = lookup_backend("inductor")(marked, given, options=options)
        call(*given)  # some backends compile when they are called
        known = set(map(id, before))
        reported = [event for event in events.events("kernels") if id(event) not in known]
    if not reported:
        raise RuntimeError("the backend left the graph as it is; DYNAMO_LOGS=inductor says why")
    found: dict[fx.Node, str] = {}
    for event in reported:
        for name, _, lines in event.data["kernels"]:
            for line in lines:
                file, _, number = line.rpartition(":")
                if file == FILE:
                    found[operations[int(number)]] = name
    return found


def _flat(module: fx.GraphModule, args: tuple[Any, ...]) -> list[Any]:
    """The arguments by placeholder, as copies: the graph may write into them."""
    codegen = module.graph._codegen
    flat = codegen.process_inputs(*args) if isinstance(codegen, _PyTreeCodeGen) else args
    return [each.detach().clone() if isinstance(each, Tensor) else each
            for each in pytree.tree_leaves(list(flat))]  # fmt: skip
