"""An export changes nothing of the program: neither its tensors, generators nor objects.

In: the trace of a function that becomes one graph. Out: the trace without what it would change, if
that is buffers alone, whose new values are results more (`Settled`); a run of the graph on copies
(`run_on_copies`).

    self.ema = self.ema * 0.9 + x.mean(0) * 0.1     # the exported graph copies into `ema`
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynamo import hook
from dynamo.base.errors import Unsupported
from dynamo.guards.sources import DictSource, ItemSource, Scope
from dynamo.symbolic.core.effects import outside_changes
from dynamo.symbolic.core.trace_result import (
    ContentsEffect,
    Effect,
    ReturnExit,
    StoreItemEffect,
    TraceResult,
)
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import TupleVar


@dataclass(frozen=True)
class Store:
    """`buffers[name] = value` of a module. old: the tensor that is there now."""

    old: torch.Tensor
    value: Var


class Settled:
    """Takes the changes out of a trace; the new code returns (result, *new values of `olds`).

    name: of the function; own: its code objects; rebinds: True where buffers may get new values.
    """

    def __init__(self, name: str, own: set[Any], rebinds: bool) -> None:
        self.name, self.own, self.rebinds = name, own, rebinds
        self.olds: tuple[torch.Tensor, ...] = ()
        self.met = False

    def __call__(self, frame: hook.FrameState, result: TraceResult) -> TraceResult:
        if frame.code not in self.own:
            raise Unsupported(
                f"{self.name}: it is not one graph, because its own code runs as it is")
        scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)
        remaining: list[Effect] = []
        stores: dict[Any, Store] = {}
        changes: list[str] = []
        for effect in result.effects:
            words = outside_changes([effect])
            found = stores_of(effect, scope) if words and self.rebinds else None
            if not words:
                remaining.append(effect)
            elif found is None:
                changes += words
            else:
                stores.update(found)
        if changes:
            raise Unsupported(
                f"{self.name}: a graph can't hold what it changes: {'; '.join(changes)}")
        assert isinstance(result.exit, ReturnExit)
        self.met, self.olds = True, tuple([store.old for store in stores.values()])
        values = [result.exit.value, *(store.value for store in stores.values())]
        return replace(result, effects=tuple(remaining), exit=ReturnExit(TupleVar(values)))

    def split(self, returned: Any) -> tuple[Any, list[tuple[torch.Tensor, Any]]]:
        """The function's own result, and each buffer with its new value."""
        if not self.met:
            return returned, []
        result, *values = returned
        return result, list(zip(self.olds, values, strict=True))


def stores_of(effect: Effect, scope: Scope) -> dict[Any, Store] | None:
    """The buffers that get other tensors, by their places; None for what is no such change."""
    if not isinstance(effect, StoreItemEffect | ContentsEffect):
        return None
    source = effect.target.source
    if not isinstance(source, ItemSource) or source.key != "_buffers":
        return None
    if not isinstance(source.base, DictSource):
        return None
    buffers = source.fetch(scope)
    if isinstance(effect, StoreItemEffect):
        pairs = [(effect.key, effect.value)]
    elif isinstance(effect.target, DictVar):
        pairs = list(effect.target.entries.values())
    else:
        return None
    values = {key.as_constant(): value for key, value in pairs if key.is_constant()}
    if len(values) != len(pairs) or not values.keys() <= buffers.keys() or (
            isinstance(effect, ContentsEffect) and len(values) != len(buffers)):
        return None
    found = {}
    for name, value in values.items():
        old = buffers[name]
        if getattr(value, "real", value) is old or value.is_constant() and old is None:
            continue
        if not isinstance(old, torch.Tensor) or not value.is_tensor:
            return None
        found[id(buffers), name] = Store(old, value)
    return found


# -- running ---------------------------------------------------------------------------------------


def run_on_copies(
    module: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[Any, dict[int, torch.Tensor]]:
    """The results of a graph, run so that neither its inputs nor generators change; and the copies
    of tensors by the ids of these. Views of one storage stay such."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies = {id(value): copied(value, storages)
              for value in inputs if isinstance(value, torch.Tensor)}
    with generators_restored(module):
        results = module.forward(*[copies.get(id(value), value) for value in inputs])
    return results, copies


def copied(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """The same in memory of its own, a leaf or not as it is."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    storage = tensor.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    with torch.no_grad():
        blank = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made = blank.set_(storages[storage._cdata], tensor.storage_offset(), tensor.shape,
                          tensor.stride())
        if tensor.is_conj():
            made = torch._conj(made)
        if tensor.is_neg():
            made = torch._neg_view(made)
    made.requires_grad_(tensor.requires_grad)
    return made if tensor.is_leaf or not tensor.requires_grad else made.view_as(made)


@contextlib.contextmanager
def generators_restored(module: fx.GraphModule) -> Iterator[None]:
    """Torch's generators, and those that the graph is given, are as before behind the block."""
    given = {
        value for node in module.graph.nodes
        for value in pytree.tree_leaves((node.args, node.kwargs))
        if isinstance(value, torch.Generator)}
    states = [(generator, generator.get_state()) for generator in given]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for generator, state in states:
                generator.set_state(state)


# -- the graph -------------------------------------------------------------------------------------


def same_storage(value: Any, storages: set[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in storages


def copy_into_buffers(
    graph: fx.Graph, name: str, rebound: Sequence[tuple[torch.Tensor, Any]],
    leaves: Sequence[Any], nodes: list[Any], copies: dict[int, torch.Tensor],
    node_of: Callable[[Any], Any],
) -> None:
    """Nodes at the end of the graph that copy the new values into the buffers. What shares memory
    with one of these has been read before.

    leaves, nodes: the results, and their nodes, which change in place. Errors: Unsupported for a
    value of another size or type.
    """
    storages = {
        tensor.untyped_storage()._cdata
        for old, _ in rebound for tensor in (old, copies.get(id(old), old))}
    news = []
    for old, new in rebound:
        facts = [(t.shape, t.dtype, t.device, t.layout) for t in (old, new)]
        if facts[0] != facts[1]:
            raise Unsupported(f"{name}: a buffer gets a tensor of another size, dtype or device")
        node = node_of(new)
        news.append(graph.call_method("clone", (node,)) if same_storage(new, storages) else node)
    for place, leaf in enumerate(leaves):
        if same_storage(leaf, storages):
            nodes[place] = graph.call_method("clone", (nodes[place],))
    for (old, _), node in zip(rebound, news, strict=True):
        graph.call_function(torch.ops.aten.copy_.default, (node_of(old), node))
