"""Functional ATen graphs of static sizes as plain data, and back.

In: a graph module with fakes in `meta["val"]`. Out: rows of plain values, from which the same
module is made again, in a fake world of its own, when somebody wants it. What is kept of a compiled
graph holds such rows for what may be compiled later: a backward, most of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.graphs import make_module
from dynamo.aot.records import Unsupported
from dynamo.aot.reference import ReferenceWorld
from dynamo.shapes.fake import Fake
from dynamo.shapes.fake_tensor import StorageToken


@dataclass(frozen=True, slots=True)
class At:
    """A node, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class FakeAt:
    """A fake, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A graph. nodes: (op, name, target, args, kwargs, meta). fakes: (size, stride, offset, dtype,
    device, bits, number of the storage, requires_grad). storages: their bytes."""

    nodes: tuple[Any, ...]
    fakes: tuple[Any, ...]
    storages: tuple[int, ...]
    constants: dict[str, torch.Tensor]

    def devices(self) -> set[torch.device]:
        return {device for _, _, _, _, device, *_ in self.fakes}


AS_IT_IS = frozenset(map(id, (int, float, bool, str, type(None), torch.dtype, torch.device)))


class CachedGraph:
    """A graph module that may still have to be made of its rows."""

    def __init__(self, module: fx.GraphModule | None, rows: Callable[[], Rows] | None = None):
        self._module, self._rows = module, rows

    def module(self) -> fx.GraphModule:
        """The graph. Whoever writes into it writes for all."""
        if self._module is None:
            assert self._rows is not None
            self._module, self._rows = module_of(self._rows()), None
        return self._module

    def rows(self) -> Rows:
        """The rows as they are now."""
        return rows_of(self._module) if self._module is not None else self._rows()  # type: ignore[misc]


def rows_of(module: fx.GraphModule) -> Rows:
    """Errors: Unsupported for what a row can't hold."""
    return _Reader(module).rows()


class _Reader:
    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.numbers = {node: number for number, node in enumerate(module.graph.nodes)}
        self.fakes: dict[int, int] = {}
        self.rows_of_fakes: list[Any] = []
        self.storages: dict[int, int] = {}
        self.sizes: list[int] = []

    def rows(self) -> Rows:
        if not self.module.meta.keys() <= {"values", "frozen", "prepared", "prepared_bytes"}:
            raise Unsupported("a graph with symbols")
        nodes, constants = [], {}
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                constants[str(node.target)] = getattr(self.module, str(node.target))
            meta = {name: self.plain(value) for name, value in node.meta.items()}
            nodes.append((node.op, node.name, node.target, self.plain(node.args),
                          self.plain(node.kwargs), meta))  # fmt: skip
        return Rows(tuple(nodes), tuple(self.rows_of_fakes), tuple(self.sizes), constants)

    def plain(self, value: Any) -> Any:
        if id(type(value)) in AS_IT_IS:  # most are
            return value
        if isinstance(value, fx.Node):
            return At(self.numbers[value])
        if isinstance(value, tuple) and type(value) is not torch.Size:
            return tuple([self.plain(item) for item in value])
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, dict):
            return {name: self.plain(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(*map(self.plain, (value.start, value.stop, value.step)))
        if type(value) is Fake:
            return FakeAt(self.fake(value))
        if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise Unsupported(f"a {type(value).__name__} in a graph")
        return value

    def fake(self, value: Fake) -> int:
        known = self.fakes.get(id(value))
        if known is None:
            facts = value.facts
            storage = self.storages.setdefault(value.storage_key, len(self.sizes))
            if storage == len(self.sizes):
                self.sizes.append(value.token.nbytes)
            known = self.fakes[id(value)] = len(self.rows_of_fakes)
            self.rows_of_fakes.append((tuple(facts.size), tuple(facts.stride), facts.offset,
                                       facts.dtype, facts.device, facts.bits, storage,
                                       value.requires_grad))
        return known


def module_of(rows: Rows) -> fx.GraphModule:
    """The module of these rows."""
    world = ReferenceWorld()
    tokens = [StorageToken(size) for size in rows.storages]
    fakes = [world.make(world.cache.facts(*facts), tokens[storage]).requires_grad_(grad)
             for *facts, storage, grad in rows.fakes]  # fmt: skip
    graph, nodes = fx.Graph(), list[fx.Node]()

    def full(value: Any) -> Any:
        if type(value) is At:
            return nodes[value.number]
        if type(value) is FakeAt:
            return fakes[value.number]
        if type(value) in (tuple, list):
            return type(value)([full(item) for item in value])
        if type(value) is dict:
            return {name: full(item) for name, item in value.items()}
        if type(value) is slice:
            return slice(*map(full, (value.start, value.stop, value.step)))
        return value

    for op, name, target, args, kwargs, meta in rows.nodes:
        if op == "output":
            node = graph.output(full(args)[0])
        else:
            node = graph.create_node(op, target, full(args), full(kwargs), name=name)
        node.meta = full(meta)
        nodes.append(node)
    return make_module(graph, rows.constants)
