"""Functional ATen graphs as plain data, and back.

In: a graph module with fakes in `meta["val"]`. Out: rows of plain values, from which the same
module is made again, in a fake world of its own, when somebody wants it. What is kept of a compiled
graph holds such rows for what may be compiled later: a backward, most of all.

With symbolic sizes, the world is made when the first value is read that needs it (`LaterMeta`): a
graph whose compiled code is found needs none, and it costs seconds.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from dynamo.aot.fakes import facts_of, is_symbolic_number, storage_key
from dynamo.aot.graphs import make_module
from dynamo.aot.plain_sizes import Sized, SizeWriter, SymbolRow
from dynamo.aot.records import SymbolTable, Unsupported
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
class Later:
    """What stands in `meta`, and has symbolic sizes in it."""

    value: Any


@dataclass(frozen=True, slots=True)
class Rows:
    """A graph. nodes: (op, name, target, args, kwargs, meta). fakes: (size, stride, offset, dtype,
    device, bits, number of the storage, requires_grad). storages: their bytes.

    symbols: None for static sizes; else numbers may be `Sized` in these symbols. table: that of the
    module (see `SymbolTable`), as pairs and expressions. values: the module's `meta["values"]`."""

    nodes: tuple[Any, ...]
    fakes: tuple[Any, ...]
    storages: tuple[Any, ...]
    constants: dict[str, torch.Tensor]
    symbols: tuple[SymbolRow, ...] | None = None
    table: Any = None
    values: Any = None

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


PLAIN_META = frozenset(("values", "frozen", "prepared", "prepared_bytes"))


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
        self.sizes: list[Any] = []
        self.numbers_written: SizeWriter | None = None
        self.is_later = False

    def rows(self) -> Rows:
        given = self.module.meta
        if not given.keys() <= PLAIN_META | {"symbols"}:
            raise Unsupported(f"what a stage has noted: {', '.join(given.keys() - PLAIN_META)}")
        nodes, constants = [], {}
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                constants[str(node.target)] = getattr(self.module, str(node.target))
            meta = {name: self.plain_or_later(value) for name, value in node.meta.items()}
            self.is_later = False
            args, kwargs = self.plain(node.args), self.plain(node.kwargs)
            if self.is_later:
                raise Unsupported("a symbolic number among the arguments of a node")
            nodes.append((node.op, node.name, node.target, args, kwargs, meta))
        table = self.table(given["symbols"]) if "symbols" in given else None
        written = self.numbers_written
        if written is None:
            return Rows(tuple(nodes), tuple(self.rows_of_fakes), tuple(self.sizes), constants)
        return Rows(tuple(nodes), tuple(self.rows_of_fakes), tuple(self.sizes), constants,
                    tuple(written.rows), table, given.get("values"))  # fmt: skip

    def writer(self) -> SizeWriter:
        if self.numbers_written is None:
            self.numbers_written = SizeWriter()
        return self.numbers_written

    def table(self, table: SymbolTable) -> Any:
        writer = self.writer()
        env = self.env()
        symbols = [(writer.expression(symbol, env), place)
                   for symbol, place in table.symbols.items()]  # fmt: skip
        return symbols, [writer.expression(one, env) for one in table.assumptions]

    def env(self) -> Any:
        """The ShapeEnv of the graph's values."""
        for node in self.module.graph.nodes:
            value = node.meta.get("val")
            if type(value) is FakeTensor:
                return value.fake_mode.shape_env
            if is_symbolic_number(value):
                return value.node.shape_env
        raise Unsupported("a graph with symbols that has no values")

    def plain_or_later(self, value: Any) -> Any:
        self.is_later = False
        plain = self.plain(value)
        return Later(plain) if self.is_later else plain

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
        if type(value) is FakeTensor:
            self.is_later = True
            return FakeAt(self.fake_of_torch(value))
        if is_symbolic_number(value):
            self.is_later = True
            return self.writer().number(value)
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

    def fake_of_torch(self, value: FakeTensor) -> int:
        """The same for one with symbolic sizes."""
        known = self.fakes.get(id(value))
        if known is None:
            facts, number = facts_of(value), self.writer().number
            if facts.bits:
                raise Unsupported("lazy conjugation or negation in a graph with symbols")
            storage = self.storages.setdefault(storage_key(value), len(self.sizes))
            if storage == len(self.sizes):
                self.sizes.append(number(value.untyped_storage().nbytes()))
            known = self.fakes[id(value)] = len(self.rows_of_fakes)
            self.rows_of_fakes.append((
                tuple(map(number, facts.size)), tuple(map(number, facts.stride)),
                number(facts.offset), facts.dtype, facts.device, 0, storage, value.requires_grad))
        return known


def module_of(rows: Rows) -> fx.GraphModule:
    """The module of these rows."""
    if rows.symbols is not None:
        return _symbolic_module_of(rows)
    world = ReferenceWorld()
    tokens = [StorageToken(size) for size in rows.storages]
    fakes = [world.make(world.cache.facts(*facts), tokens[storage]).requires_grad_(grad)
             for *facts, storage, grad in rows.fakes]  # fmt: skip
    graph, nodes = fx.Graph(), list[fx.Node]()
    _add_nodes(graph, nodes, rows, lambda value: _full(value, nodes, fakes, _same))
    return make_module(graph, rows.constants)


def _same(value: Any) -> Any:
    return value


def _full(value: Any, nodes: Any, fakes: Any, number: Callable[[Any], Any]) -> Any:
    """A value of rows as it was. number: makes a `Sized` one."""
    kind = type(value)
    if kind is At:
        return nodes[value.number]
    if kind is FakeAt:
        return fakes[value.number]
    if kind in (tuple, list):
        return kind([_full(item, nodes, fakes, number) for item in value])
    if kind is dict:
        return {name: _full(item, nodes, fakes, number) for name, item in value.items()}
    if kind is slice:
        return slice(*[_full(part, nodes, fakes, number)
                       for part in (value.start, value.stop, value.step)])  # fmt: skip
    return number(value) if kind is Sized else value


def _add_nodes(
    graph: fx.Graph, nodes: list[fx.Node], rows: Rows, full: Callable[[Any], Any]
) -> None:
    for op, name, target, args, kwargs, meta in rows.nodes:
        if op == "output":
            node = graph.output(full(args)[0])
        else:
            node = graph.create_node(op, target, full(args), full(kwargs), name=name)
        node.meta = full(meta)
        nodes.append(node)


# -- symbolic sizes --------------------------------------------------------------------------------


def _symbolic_module_of(rows: Rows) -> fx.GraphModule:
    graph, nodes = fx.Graph(), list[fx.Node]()
    world: list[Any] = []

    def made() -> Any:
        if not world:
            module = importlib.import_module("dynamo.aot.symbolic_rows")
            world.append(module.RowsWorld(rows.symbols, rows.fakes, rows.storages))
        return world[0]

    def value_of(plain: Any) -> Any:
        own = made()
        return _full(plain, nodes, own.fakes, own.number)

    def full(value: Any) -> Any:
        if type(value) is dict and any(type(item) is Later for item in value.values()):
            return LaterMeta(value, value_of)
        return _full(value, nodes, (), _same)

    _add_nodes(graph, nodes, rows, full)
    module = make_module(graph, rows.constants)
    if rows.values is not None:
        module.meta["values"] = rows.values
    if rows.table is not None:
        module.meta["symbols"] = made().table(rows.table)
    return module


class LaterMeta(dict[str, Any]):
    """The `meta` of a node, of which some values are made when they are read. Whoever looks at all
    of them, or copies them, has them made."""

    def __init__(self, given: dict[str, Any], value_of: Callable[[Any], Any]) -> None:
        """given: with `Later` for those."""
        super().__init__(given)
        self._value_of = value_of

    def _made(self, name: str, value: Any) -> Any:
        if type(value) is Later:
            value = self._value_of(value.value)
            self[name] = value
        return value

    def _all(self) -> dict[str, Any]:
        return {name: self._made(name, value) for name, value in [*super().items()]}

    def __getitem__(self, name: str) -> Any:
        return self._made(name, super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def pop(self, name: str, *default: Any) -> Any:
        if name in self:
            self._made(name, super().__getitem__(name))
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else super().setdefault(name, default)

    def popitem(self) -> tuple[str, Any]:
        name, value = super().popitem()
        return name, self._value_of(value.value) if type(value) is Later else value

    # That it has an `__iter__` of its own is what makes `dict(meta)` and `{**meta}` ask it.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def items(self) -> Any:
        return self._all().items()

    def values(self) -> Any:
        return self._all().values()

    def copy(self) -> dict[str, Any]:
        return self._all()

    def __copy__(self) -> dict[str, Any]:
        return self._all()

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return copy.deepcopy(self._all(), memo)

    def __or__(self, other: Any) -> Any:
        return self._all() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._all()

    def __eq__(self, other: object) -> bool:
        return self._all() == other

    def __ne__(self, other: object) -> bool:
        return self._all() != other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> Any:
        return dict, (self._all(),)
