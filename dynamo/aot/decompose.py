"""Decomposition: nodes of a functional ATen graph are replaced by simpler ones.

In: a module as `capture` makes it and a table from `OpOverload` to a Python function that computes
the same with other operations. Out: a module in which no operation of the table is left, except
where the decomposition could not be recorded or does not give eager's strides.

    >>> simple = decompose(graph.module, default_decompositions())

A decomposition is recorded once for each (operation, facts of its arguments) as a template, a small
graph, and its nodes are copied into the place of each node with these facts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake, is_symbolic_number
from dynamo.aot.graphs import LITERAL, make_module, remove_dead_code
from dynamo.aot.numbers import NumberNodes
from dynamo.aot.recorder import Recorder
from dynamo.aot.records import FAILS, LATE, PART, RECOMPUTED, Unsupported
from dynamo.base import logs
from dynamo.base.errors import Signal
from dynamo.shapes.fake import Fake, FakeWorld, StorageToken

Table = Mapping[Any, Callable[..., Any]]
Chosen = Callable[[fx.Node], bool]


def each(node: fx.Node) -> bool:
    """Every node."""
    return True


def decompose(
    module: fx.GraphModule, table: Table, world: Any = None, chosen: Chosen = each
) -> fx.GraphModule:
    """The module with the table's operations replaced; the module itself where it holds none.

    world: the module's fakes' own, where their sizes are symbolic. chosen: for which nodes.
    """
    targets = {node.target for node in module.graph.nodes if node.op == "call_function"}
    if targets.isdisjoint(table.keys()):
        return module
    return _Rewriter(module, table, world, chosen).rewrite()


@dataclass(frozen=True, slots=True)
class _Template:
    """A recorded decomposition.

    inputs: its placeholders. nodes: the rest, in order. result: nodes in the shape of the
    operation's result (None where it is undefined).
    """

    inputs: list[fx.Node]
    nodes: list[fx.Node]
    result: Any


class _Rewriter:
    """One pass over one graph."""

    def __init__(self, module: fx.GraphModule, table: Table, world: Any, chosen: Chosen) -> None:
        self.module = module
        self.chosen = chosen
        self.table = table
        self.world = world
        self._numbers: NumberNodes | None = None
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {
            str(node.target): getattr(module, str(node.target))
            for node in module.graph.nodes
            if node.op == "get_attr"
        }
        self.env: dict[fx.Node, Any] = {}
        self._templates: dict[Any, _Template | None] = {}
        self._shared: dict[int, fx.Node] = {}
        self._last_leaf: fx.Node = self.graph._root

    def rewrite(self) -> fx.GraphModule:
        for node in self.module.graph.nodes:
            replaced = node.op == "call_function" and node.target in self.table
            if not (replaced and self.chosen(node) and self._inline(node)):
                self._keep(node)
        remove_dead_code(self.graph)
        return make_module(self.graph, self.constants)

    def _keep(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            whole = self.env[node.args[0]]  # type: ignore[index]
            if isinstance(whole, (tuple, list)):
                self.env[node] = whole[node.args[1]]  # type: ignore[index]
                _carry_marks(node, self.env[node])
                return
        copy = self.graph.node_copy(node, self.env.__getitem__)
        if node.op in ("placeholder", "get_attr"):
            self._last_leaf = copy
        self.env[node] = copy

    # -- replacing one node ----------------------------------------------------------------------

    def _inline(self, node: fx.Node) -> bool:
        if self.world is not None:
            return self._inline_symbolic(node)
        arguments: list[fx.Node] = []
        key = (_used(node), _key((node.target, node.args, node.kwargs), arguments))
        if key not in self._templates:
            self._templates[key] = self._record_static(node, arguments)
        template = self._templates[key]
        if template is None:
            return False
        env: dict[fx.Node, fx.Node] = {}
        tokens: dict[StorageToken, StorageToken] = {}
        for given, inner in zip(arguments, template.inputs, strict=True):
            env[inner] = self.env[given]
            tokens[inner.meta["val"].token] = env[inner].meta["val"].token
        _keep_storages(template.result, node.meta["val"], tokens)
        for inner in template.nodes:
            env[inner] = self._copy(inner, env, tokens, _passed_on(node))
        self.env[node] = _map_nodes(template.result, env)
        _carry_marks(node, self.env[node])
        return True

    def _copy(
        self,
        inner: fx.Node,
        env: dict[fx.Node, fx.Node],
        tokens: dict[StorageToken, StorageToken],
        marks: dict[str, Any],
    ) -> fx.Node:
        if inner.op == "get_attr":
            return self._constant(inner.meta["constant"], inner.meta["val"])
        copy = self.graph.node_copy(inner, env.__getitem__)
        copy.meta["val"] = _remake(inner.meta["val"], tokens)
        _mark(copy, marks)
        return copy

    def _inline_symbolic(self, node: fx.Node) -> bool:
        """Records the decomposition over the very fakes of the graph: a template with symbols has
        no key, and what it assumes belongs to the graph's world."""
        arguments: list[fx.Node] = []
        _collect(node.args, arguments)
        _collect(node.kwargs, arguments)
        given = [self.env[argument] for argument in arguments]
        template = self._record(node, self.world, [argument.meta["val"] for argument in given])
        if template is None:
            return False
        env: dict[fx.Node, Any] = dict(zip(template.inputs, given, strict=True))
        for inner in template.nodes:
            env[inner] = self._copy_symbolic(inner, env, _passed_on(node))
        self.env[node] = _map_nodes(template.result, env)
        _carry_marks(node, self.env[node])
        return True

    def _copy_symbolic(
        self, inner: fx.Node, env: dict[fx.Node, Any], marks: dict[str, Any]
    ) -> Any:
        value = inner.meta["val"]
        if inner.op == "get_attr":
            return self._constant(inner.meta["constant"], value)
        if is_symbolic_number(value):
            if self._numbers is None:
                self._numbers = NumberNodes(self.graph, self.world.places)
            return self._numbers.node(value)
        copy = self.graph.node_copy(inner, env.__getitem__)
        _mark(copy, marks)
        return copy

    def _constant(self, tensor: torch.Tensor, value: Fake) -> fx.Node:
        node = self._shared.get(id(tensor))
        if node is None:
            name = f"{LITERAL}{len(self.constants)}"
            self.constants[name] = tensor
            with self.graph.inserting_after(self._last_leaf):
                node = self._last_leaf = self.graph.create_node("get_attr", name)
            node.meta["val"] = value
            self._shared[id(tensor)] = node
        return node

    # -- recording a template ---------------------------------------------------------------------

    def _record_static(self, node: fx.Node, arguments: list[fx.Node]) -> _Template | None:
        """Records over substitutes for the arguments, so that the template fits equal facts."""
        world = _world_of(node)
        values = [given.meta["val"] for given in arguments]
        if world is None or any(type(value) is not Fake for value in values):
            return None
        return self._record(node, world, [world.make(value.facts) for value in values])

    def _record(self, node: fx.Node, world: Any, values: list[Any]) -> _Template | None:
        """Records a decomposition; None where that fails or the outcome is not the operation's."""
        recorder = TemplateRecorder(world, self.table)
        inputs = [recorder.placeholder(f"a{at}", fake) for at, fake in enumerate(values)]
        fakes = iter(values)
        args = _replace_nodes(node.args, fakes)
        kwargs = _replace_nodes(node.kwargs, fakes)
        try:
            with torch.no_grad(), recorder:
                result = self.table[node.target](*args, **kwargs)
            if not _agree(result, node.meta["val"], _used(node)):
                return None
            nodes = _fakes_to_nodes(result, recorder)
        except (Signal, Exception) as error:  # the operator stays as it is
            reason = f"{type(error).__name__}: {error}"
            logs.log("aot_graphs").emit(f"{node.target} is not taken apart: {reason}")
            return None
        for inner in recorder.graph.nodes:
            if inner.op == "get_attr":
                inner.meta["constant"] = recorder.constants[str(inner.target)]
        rest = [inner for inner in recorder.graph.nodes if inner.op != "placeholder"]
        return _Template(inputs, rest, nodes)


class TemplateRecorder(Recorder):
    """Records a decomposition, and in it the decompositions of what it calls."""

    in_program = True

    def __init__(self, world: Any, table: Table) -> None:
        super().__init__(world)
        self.table = table

    def number(self, value: Any) -> fx.Node:
        """Stands for a symbolic number; the graph that gets the template makes its node."""
        stub = self.graph.create_node("call_function", torch.sym_int)
        stub.meta["val"] = value
        return stub

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        simpler = self.table.get(func)
        if func.namespace not in ("aten", "prim"):  # prim.device: asked of fakes with symbols
            raise Unsupported(f"{func} in a decomposition")
        if simpler is None:
            return super().call(func, args, kwargs)
        with self:
            result = simpler(*args, **kwargs)
        if _agree(result, self.world.dispatch(func, args, kwargs)):
            return result
        return super().call(func, args, kwargs)


def _passed_on(node: fx.Node) -> dict[str, Any]:
    """What is known of an operation and holds for all parts of it."""
    names = ("stack_trace", RECOMPUTED, FAILS, LATE)
    known = {name: node.meta[name] for name in names if name in node.meta}
    return {**known, PART: True}


def _mark(part: fx.Node, marks: dict[str, Any]) -> None:
    """Notes what is passed on; only those parts may raise that would alone."""
    fails = FAILS in part.meta and FAILS in marks
    part.meta.update(marks)
    if not fails:
        part.meta.pop(FAILS, None)


def _carry_marks(node: fx.Node, result: Any) -> None:
    """What stages noted at a node holds for the node of its result."""
    if isinstance(result, fx.Node) and result.op == "call_function":
        for name, mark in node.meta.items():
            if name != FAILS:
                result.meta.setdefault(name, mark)


def _world_of(node: fx.Node) -> FakeWorld | None:
    value = node.meta["val"]
    items = value if isinstance(value, (tuple, list)) else (value,)
    return next((item.world for item in items if type(item) is Fake), None)


def _key(value: Any, nodes: list[fx.Node]) -> Any:
    """A hashable form of arguments with facts in place of nodes, which are collected."""
    if isinstance(value, fx.Node):
        nodes.append(value)
        return getattr(value.meta["val"], "facts", None)
    if isinstance(value, (list, tuple)):
        return tuple([_key(item, nodes) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key(item, nodes)) for name, item in value.items()])
    # 0.0 is not -0.0
    return (type(value), repr(value) if type(value) in (float, complex) else value)


def _collect(value: Any, nodes: list[fx.Node]) -> None:
    """The nodes of tensors among arguments, in the order of `_key`."""
    if isinstance(value, fx.Node):
        if not is_symbolic_number(value.meta["val"]):
            nodes.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, nodes)
    elif isinstance(value, dict):
        _collect(list(value.values()), nodes)


def _replace_nodes(value: Any, fakes: Any) -> Any:
    """Arguments with the next fake in place of each node, in the order of `_key`."""
    if isinstance(value, fx.Node):
        known = value.meta["val"]
        return known if is_symbolic_number(known) else next(fakes)
    if isinstance(value, tuple):
        return tuple([_replace_nodes(item, fakes) for item in value])
    if isinstance(value, list):
        return [_replace_nodes(item, fakes) for item in value]
    if isinstance(value, dict):
        return {name: _replace_nodes(item, fakes) for name, item in value.items()}
    return value


def _map_nodes(value: Any, env: dict[fx.Node, fx.Node]) -> Any:
    if isinstance(value, fx.Node):
        return env[value]
    return None if value is None else tuple([_map_nodes(item, env) for item in value])


def _keep_storages(result: Any, value: Any, tokens: dict[StorageToken, StorageToken]) -> None:
    """What views the operation's result views that of its template."""
    if isinstance(result, tuple):
        for inner, outer in zip(result, value, strict=True):
            _keep_storages(inner, outer, tokens)
    elif result is not None and type(value) is Fake:
        tokens.setdefault(result.meta["val"].token, value.token)


def _fakes_to_nodes(result: Any, recorder: Recorder) -> Any:
    if is_fake(result):
        return recorder.node_of(result)
    if result is None:
        return None
    return tuple(_fakes_to_nodes(item, recorder) for item in result)


def _used(node: fx.Node) -> frozenset[Any] | None:
    """Which items of a node's result are read; None for all."""
    if is_fake(node.meta["val"]) or any(u.target is not operator.getitem for u in node.users):
        return None
    return frozenset(user.args[1] for user in node.users if user.users)


def _agree(result: Any, expected: Any, used: frozenset[Any] | None = None) -> bool:
    """True where a decomposition gives the operation's sizes, strides and dtypes."""
    if is_fake(expected):
        if not is_fake(result):
            return False
        mine, theirs = facts_of(result), facts_of(expected)
        return (mine.size, mine.stride, mine.dtype, mine.device, mine.bits) == (
            theirs.size,
            theirs.stride,
            theirs.dtype,
            theirs.device,
            theirs.bits,
        )
    if isinstance(expected, (tuple, list)):
        return isinstance(result, (tuple, list)) and all(
            _agree(result[at], expected[at])
            for at in range(len(expected))
            if used is None or at in used
        )
    return expected is None


def _remake(value: Any, tokens: dict[StorageToken, StorageToken]) -> Any:
    """The value's fakes anew; those that share a storage in the template share one again."""
    if type(value) is Fake:
        token = tokens.get(value.token)
        if token is None:
            token = tokens[value.token] = StorageToken(value.token.nbytes)
        return value.world.make(value.facts, token)
    if isinstance(value, (tuple, list)):
        return type(value)(_remake(item, tokens) for item in value)
    return value
