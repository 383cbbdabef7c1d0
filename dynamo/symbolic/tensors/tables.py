"""Small tables of integers among the inputs: sizes of images, grids of patches.

Where the program reads numbers that follow from such tables alone (`grid_thw.tolist()`), the trace
begins again with the tables' values known, and guarded. When a table has other values in a later
call, no table is known from then on in this compiled function: the graphs break at such reads. What
is written in between, and tables that lie in memory that the graph writes into, are not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from dynamo.base.errors import RestartTrace
from dynamo.guards.sources import ItemSource, LocalSource, is_table
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.shapes.unbacked_facts import flat
from dynamo.symbolic.tensors.memory import guard_apart
from dynamo.symbolic.tensors.state import tensor_state

if TYPE_CHECKING:
    from dynamo.symbolic.tensors.tensor import TensorVar

INTS = (torch.int32, torch.int64)


def restart_for_values(trace: Evaluation, read: Iterable[TensorVar]) -> None:
    """Before a graph break where values of tensors are read. Errors: RestartTrace where they would
    be known if those of some tables were."""
    context = trace.context
    if context is None or context.everything_dynamic or context.no_tables:
        return
    if torch._C._functorch.get_dynamic_layer_stack_depth():
        return
    wanted = tables_behind(trace, read)
    if not wanted:
        return
    if wanted <= context.tables:  # that did not help
        give_up(trace)
    context.tables |= wanted
    raise RestartTrace(None)


def give_up(trace: Evaluation) -> None:
    """Errors: RestartTrace; no table is known from then on."""
    trace.context.no_tables, trace.context.tables = True, frozenset()
    raise RestartTrace(None)


def tables_behind(
    trace: Evaluation, read: Iterable[TensorVar]
) -> frozenset[LocalSource | ItemSource]:
    """The tables of which tensors are computed; none where anything else takes part."""
    inputs = {var.node: var for var in tensor_state(trace).tensor_inputs}
    inputs.update({var.node: var for var in read if var.source is not None})
    found, seen = set(), set()
    nodes = [var.node for var in read]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            var = inputs.get(node)
            if var is None or not may_be_known(var):
                return frozenset()
            found.add(var.source)
        elif any(isinstance(value, torch.Tensor) and value.dtype not in INTS
                 for value in flat([node.meta["example_value"]])):
            return frozenset()
        nodes += node.all_input_nodes
    return frozenset(found)  # type: ignore[arg-type]


def may_be_known(var: TensorVar) -> bool:
    """True for a table among the arguments."""
    source = var.source
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, LocalSource) and var.real is not None and is_table(var.real)


def keep_tables_apart(trace: Evaluation) -> None:
    """At the end of a trace: no known table lies in memory that the graph writes into."""
    if not tensor_state(trace).tables:
        return
    written = {
        storage_of(fake) for node in trace.graph.graph.nodes
        for fake in node.meta.get("changed", ())
    }
    others = [var for var in tensor_state(trace).tensor_inputs
              if var not in tensor_state(trace).tables and storage_of(var.fake) in written]
    if others and not guard_apart(trace, [*tensor_state(trace).tables, *others]):
        give_up(trace)
