"""Small tables of integers among the inputs: sizes of images, grids of patches; and buffers of a
few integers or flags: strides, bits of words, whether an observer is on.

Where the program reads numbers that follow from such tensors alone (`grid_thw.tolist()`), or
branches on one that follows from buffers, the trace begins again with their values known, and
guarded. When a table has other values in a later call, no table among the arguments is known from
then on in this compiled function: the graphs break at such reads. A buffer is known once more, as a
flag that has been set, and no longer where it changes again, as one that counts calls. What is
written in between, and tables that lie in memory that the graph writes into, are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from dynamo.base.errors import RestartTrace
from dynamo.guards.sources import (
    LARGEST_TABLE,
    ItemSource,
    LocalSource,
    Source,
    is_buffer,
    is_table,
)
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.shapes.unbacked_facts import flat
from dynamo.symbolic.tensors.memory import guard_apart
from dynamo.symbolic.tensors.state import tensor_state

if TYPE_CHECKING:
    from dynamo.symbolic.tensors.tensor import TensorVar

INTS = (torch.int32, torch.int64)
_WRITTEN: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
"""Integers that some compiled graph writes into."""


def restart_for_values(
    trace: Evaluation, read: Iterable[TensorVar], buffers_only: bool = False
) -> None:
    """Before a graph break where values of tensors are read. Errors: RestartTrace where they would
    be known if those of some tables were."""
    if not _may_restart(trace):
        return
    wanted = tables_behind(trace, read)
    if not wanted or buffers_only and not all(map(is_buffer, wanted)):
        return
    if wanted <= _known(trace):  # that did not help
        give_up(trace)
    _restart_with(trace, wanted)


def _may_restart(trace: Evaluation) -> bool:
    context = trace.context
    if context is None or context.no_tables:
        return False
    return not torch._C._functorch.get_dynamic_layer_stack_depth()


def _known(trace: Evaluation) -> frozenset[Source]:
    """Those whose values are known in this attempt."""
    inputs = (var.source for var in tensor_state(trace).tables)
    return trace.context.tables.union(source for source in inputs if source is not None)


def _restart_with(trace: Evaluation, wanted: frozenset[Source]) -> NoReturn:
    """Errors: RestartTrace. Buffers of one name are known in all modules at once: layers alike read
    the same, and each would be an attempt."""
    context = trace.context
    registered = {s.key for s in wanted if isinstance(s, ItemSource) and is_buffer(s)}
    context.tables |= wanted
    context.buffers |= registered
    raise RestartTrace(None)


def restart_for_branch(trace: Evaluation, var: TensorVar) -> None:
    """Before a graph break where the program branches on a tensor of one value. Errors:
    RestartTrace where it follows from buffers alone."""
    restart_for_values(trace, [var], buffers_only=True)


def restart_for_numbers(trace: Evaluation, given: Iterable[TensorVar]) -> None:
    """Before a graph break in an operation that reads some of the tensors that it is given, as
    `pad` reads its widths. Errors: as above."""
    numbers = [var for var in given if not var.fake.dim() and var.fake.dtype in INTS]
    found = frozenset[Source]().union(*(tables_behind(trace, [var]) for var in numbers))
    if _may_restart(trace) and not found <= _known(trace):
        _restart_with(trace, found)


def give_up(trace: Evaluation) -> None:
    """Errors: RestartTrace; no table is known from then on."""
    trace.context.no_tables = True
    trace.context.tables, trace.context.buffers = frozenset(), frozenset()
    raise RestartTrace(None)


def tables_behind(trace: Evaluation, read: Iterable[TensorVar]) -> frozenset[Source]:
    """The tables of which tensors are computed; none where anything else takes part, or much is
    computed of them."""
    inputs = {var.node: var for var in tensor_state(trace).tensor_inputs}
    inputs.update({var.node: var for var in read if var.source is not None})
    written = tensor_state(trace).mutated
    found, seen = set(), set()
    nodes = [var.node for var in read]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            var = inputs.get(node)
            if var is None or var in written or not may_be_known(trace, var):
                return frozenset()
            assert var.source is not None
            found.add(var.source)
        elif not all(map(_may_follow, flat([node.meta["example_value"]]))):
            return frozenset()
        nodes += node.all_input_nodes
    return frozenset(found)


def _may_follow(value: Any) -> bool:
    """True for integers, and for a few numbers of any kind."""
    if not isinstance(value, torch.Tensor) or value.dtype in INTS:
        return True
    return all(type(size) is int for size in value.shape) and value.numel() <= LARGEST_TABLE


def may_be_known(trace: Evaluation, var: TensorVar) -> bool:
    """True for a table among the arguments, and for a buffer that has not changed often."""
    source, real, context = var.source, var.real, trace.context
    if source is None or real is None:
        return False
    if is_buffer(source):
        return real not in _WRITTEN and bool(context.may_know_buffer(source, real))
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, LocalSource) and not context.no_arguments and is_table(real)


def keep_tables_apart(trace: Evaluation) -> None:
    """At the end of a trace: no known table lies in memory that the graph writes into. And what it
    writes is worth no guess later, unless it is a flag: it may be a count of calls."""
    for var in tensor_state(trace).mutated:
        if var.real is not None and var.real.dtype in INTS:
            _WRITTEN[var.real] = True
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
