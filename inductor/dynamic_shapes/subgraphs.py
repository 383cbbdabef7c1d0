"""Graphs with numbers and sizes that only the running program knows: cut where these are made.

In: a captured graph in which `item()`, `nonzero()`, `x[mask]` and the like are nodes, and a
compiler for a subgraph of it. Out: a callable like the graph. It runs in the order of the program:
what makes an unbacked number or size, what checks or calculates with numbers, modes and gradients
run as captured; the subgraphs between them are compiled when the numbers are known
(`subgraph.py` beside this file). So every assumption about them is checked before a subgraph runs,
and errors are eager's. Gradients may be part of a subgraph where all that leads from what is
differentiated to the result is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import is_fake, is_symbolic_number, storage_key, symbols_of
from dynamo.aot.records import Unsupported
from dynamo.graph_operators.cuts import RANGES, is_cut
from dynamo.graph_operators.gradients import GRADIENTS
from dynamo.graph_operators.regions import has_repeated, region_of
from dynamo.shapes.fake import Fake
from inductor.dynamic_shapes.numbers.lift import takes
from inductor.dynamic_shapes.subgraph import CompileSubgraph, Subgraph

# They give a size that follows from their arguments: no data is read.
FOLLOWS = frozenset(("narrow", "split", "split_with_sizes", "chunk", "tensor_split", "arange",
                     "zeros", "ones", "empty", "full"))  # fmt: skip
# They compute nothing: a subgraph of these alone is not worth a compile.
VIEWS = frozenset((
    "getitem", "view", "view_as", "transpose", "t", "permute", "unsqueeze", "squeeze", "expand",
    "detach", "unbind", "select", "narrow", "split", "split_with_sizes", "chunk", "size", "numel",
    "dim", "stride", "movedim", "diagonal", "expand_as", "alias", "shape",
))  # fmt: skip
# Arithmetic that can't raise: it may run earlier than it is written.
CALM = frozenset((
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, operator.eq,
    operator.ne, operator.lt, operator.le, operator.gt, operator.ge, torch.sym_max, torch.sym_min,
    torch.sym_not, torch.sym_float, torch.sym_int, torch.sym_ite,
))  # fmt: skip

GETS_HISTORY = ("call_method", "requires_grad_")


class NothingToCompile(Unsupported):
    """A graph of nothing but operations that run as captured, and views."""

    def __init__(self) -> None:
        super().__init__("nothing to compile between numbers that only the program knows")


def has_unbacked(gm: fx.GraphModule) -> bool:
    """True where an operation of the graph makes a number or size that nobody knows before."""
    return any(makes_unbacked for _, makes_unbacked in _makers(gm))


def reads_floats(gm: fx.GraphModule) -> bool:
    """True where an operation of the graph has to know a number that is no int."""
    leaves = ("placeholder", "output", "get_attr")
    return not all(
        _compiles(node) for node in gm.graph.nodes
        if node.op not in leaves and not _is_number(_value(node))
    )


def compile_subgraphs(
    gm: fx.GraphModule, compile_subgraph: CompileSubgraph, with_gradients: bool = False
) -> Callable[..., Any]:
    """A callable like the graph, whose subgraphs are compiled at their first use. with_gradients:
    they may compute gradients.

    Errors: Unsupported where there is nothing to compile.
    """
    return _Cutter(gm, compile_subgraph, with_gradients).cut()


def compile_parts(
    gm: fx.GraphModule, parts: list[list[fx.Node]], compile_subgraph: CompileSubgraph
) -> Callable[..., Any]:
    """A callable like the graph, of which these parts are compiled one by one at their first use.

    Errors: Unsupported where a part gives something else than tensors and numbers.
    """
    cutter = _Cutter(gm, compile_subgraph)
    cutter.units = [*parts]
    return fx.GraphModule(gm, cutter.spliced()).forward


def _makers(gm: fx.GraphModule) -> Iterable[tuple[fx.Node, bool]]:
    """Each node, and whether it makes an unbacked number or size. A second use of one mask makes
    the same size again."""
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        new = set() if type(value) is Fake else symbols_of([value], as_made=True)
        if new:
            new -= symbols_of(map(_value, node.all_input_nodes), as_made=True)
        unknown = node.op != "placeholder" and bool(new) and not _has_hint(value)
        yield node, unknown and not _follows(node)


def _has_hint(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_has_hint, value))
    numbers = (*value.shape, *value.stride()) if is_fake(value) else (value,)
    return all(n.node.has_hint() for n in numbers if is_symbolic_number(n))


def _name(node: fx.Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.strip("_")


def _follows(node: fx.Node) -> bool:
    """True for slices and the like, whose new size is made of numbers that are known by then."""
    if _name(node) != "getitem":
        return _name(node) in FOLLOWS
    return not any(isinstance(_value(key), torch.Tensor) for key in node.all_input_nodes[1:])


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or is_symbolic_number(value)


def _kind(value: Any) -> type | None:
    """bool, int or float for numbers; None for all else."""
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds.get(type(value), type(value)) if _is_number(value) else None


class _Cutter:
    """units: nodes that run as captured, and lists of nodes that are compiled together. A call of
    a repeated block is one for itself."""

    def __init__(
        self, gm: fx.GraphModule, compile_subgraph: CompileSubgraph, with_gradients: bool = False
    ) -> None:
        self.gm = gm
        self.compile_subgraph = compile_subgraph
        self.with_gradients = with_gradients
        self.written: set[Any] | None = None  # storages, once they have been looked for
        self.units: list[fx.Node | list[fx.Node]] = []
        self.open: dict[fx.Node, None] = {}  # the last unit, while it grows
        self.repeats = has_repeated(gm)
        self.region: tuple[str, int] | None = None  # of the last unit
        self.places = [node for node in gm.graph.nodes if node.op == "placeholder"]
        # Values that are differentiated need a place of their own in autograd's graph.
        self.differentiated = {
            given for node in gm.graph.nodes if node.target in GRADIENTS for given in node.args[2]
        }

    def cut(self) -> Callable[..., Any]:
        self._check_views()
        for node, makes_unbacked in _makers(self.gm):
            if node.op not in ("placeholder", "output", "get_attr"):
                self._sort(node, makes_unbacked)
        self._close()
        return fx.GraphModule(self.gm, self.spliced()).forward

    def _check_views(self) -> None:
        """Errors: Unsupported where a tensor is written, with a view of it made before, and then
        made to require grad: eager's view has a history, that of a subgraph is made behind its
        writes.
        """
        written: set[int] = set()
        views: dict[fx.Node, None] = {}
        first: dict[int, Any] = {}  # the first value of each storage
        done: set[fx.Node] = set()
        for node in self.gm.graph.nodes:
            done.add(node)
            written.update(map(storage_key, node.meta.get("changed", ())))
            if (node.op, node.target) == GETS_HISTORY:
                base = _value(node.args[0])
                for view in views if storage_key(base) in written else ():
                    if _value(view) is base or storage_key(_value(view)) != storage_key(base):
                        continue
                    if not done.issuperset(view.users):
                        raise Unsupported("a view of a tensor that gets a history after a write")
            # Of a cached graph, whose fakes do not know of what they are views.
            value = _value(node)
            if is_fake(value) and first.setdefault(storage_key(value), value) is not value:
                views[node] = None

    def _sort(self, node: fx.Node, makes_unbacked: bool) -> None:
        value, given = _value(node), node.all_input_nodes
        if self.repeats and region_of(node) != self.region:
            self._close()
            self.region = region_of(node)
        inside = any(other in self.open for other in given)
        if node.target is operator.getitem and not isinstance(_value(given[0]), torch.Tensor):
            self._follow(node, given[0])
        elif _is_number(value) and not makes_unbacked:
            if inside:
                self.open[node] = None
            else:
                if not _runs_early(node):
                    self._close()
                self.units.append(node)
        elif node.target in RANGES and is_cut(node) and not inside:
            self.units.append(node)  # before what is open: it reads numbers only
        elif node.target in GRADIENTS and self._stays_inside(node):
            self.open[node] = None
        elif makes_unbacked or is_cut(node) or node.target in GRADIENTS or not _compiles(node):
            self._close()
            self.units.append(node)
        else:
            self.open[node] = None
        if node in self.differentiated:
            self._close()

    def _stays_inside(self, node: fx.Node) -> bool:
        """Whether the last unit computes these gradients by itself: it has computed what is
        differentiated, and what it reads is inputs of the graph, leaves and what has no gradient,
        so that no way between two of these leads through another unit."""
        sources, _, learners = (_nodes_of(argument) for argument in node.args[:3])
        if not self.with_gradients or not all(source in self.open for source in sources):
            return False
        if any(learner in self.open for learner in learners) or self._loses_history():
            return False
        read = {given for each in self.open for given in each.all_input_nodes} | {*learners}
        return all(self._is_end(given) for given in read if given not in self.open)

    def _loses_history(self) -> bool:
        """Whether a tensor is detached in place: what was computed from it before has a history,
        of which its fake says nothing any more."""
        return any(
            getattr(node.target, "__name__", node.target) == "detach_"
            or (node.op, node.target) == GETS_HISTORY and not _is_plain(node)
            for node in self.gm.graph.nodes)

    def _is_end(self, node: fx.Node) -> bool:
        """Whether autograd's graph surely ends at a value: an input of the graph, or what the graph
        itself makes a leaf. The fakes of a cached graph do not say: they have no history."""
        value = _value(node)
        if node.op in ("placeholder", "get_attr") or not isinstance(value, torch.Tensor):
            return True
        if not value.requires_grad:
            return True
        if self.written is None:
            self.written = {
                storage_key(fake) for each in self.gm.graph.nodes
                if (each.op, each.target) != GETS_HISTORY for fake in each.meta.get("changed", ())}
        if value.grad_fn is not None or storage_key(value) in self.written:
            return False
        if not any((user.op, user.target) == GETS_HISTORY for user in node.users):
            return False
        return _name(node) == "detach" or all(map(_has_no_gradient, node.all_input_nodes))

    def _follow(self, node: fx.Node, source: fx.Node) -> None:
        """An item of several results stays with these."""
        for unit in self.units:
            if isinstance(unit, list) and source in unit:
                unit.append(node)
                return
        if source in self.open:
            self.open[node] = None
        else:
            self.units.append(node)

    def _close(self) -> None:
        nodes = list(self.open)
        self.open = {}
        if all(_name(node) in VIEWS or _is_number(_value(node)) for node in nodes):
            self.units += nodes
        else:
            self.units.append(nodes)

    # -- the graph of units -----------------------------------------------------------------------

    def spliced(self) -> fx.Graph:
        """The graph in which parts are calls."""
        if not any(isinstance(unit, list) for unit in self.units):
            raise NothingToCompile
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in self.gm.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                env[node] = graph.node_copy(node)
        for number, unit in enumerate(self.units):
            if isinstance(unit, list):
                self._splice(graph, env, unit, number)
            else:
                env[unit] = graph.node_copy(unit, env.__getitem__)
        [end] = [node for node in self.gm.graph.nodes if node.op == "output"]
        graph.node_copy(end, env.__getitem__)
        return graph

    def _splice(
        self, graph: fx.Graph, env: dict[fx.Node, fx.Node], nodes: list[fx.Node], number: int
    ) -> None:
        """A call of a subgraph, and its results."""
        subgraph, inputs, results = self._subgraph(nodes, number)
        call = graph.call_function(subgraph, tuple(env[node] for node in inputs))
        for at, node in enumerate(results):
            env[node] = graph.call_function(operator.getitem, (call, at))

    def _subgraph(
        self, nodes: list[fx.Node], number: int
    ) -> tuple[Subgraph, list[fx.Node], list[fx.Node]]:
        inside = set(nodes)
        read = dict.fromkeys(other for node in nodes for other in node.all_input_nodes)
        inputs = [node for node in read if node not in inside and node.op != "get_attr"]
        results = [node for node in nodes if not inside.issuperset(node.users)]
        for node in (*inputs, *results):
            if not (isinstance(_value(node), torch.Tensor) or _is_number(_value(node))):
                raise Unsupported(f"{node.name} is a {type(_value(node)).__name__}")
        graph, env = fx.Graph(), {}
        for at, node in enumerate(inputs):  # equal blocks are recognised by their text
            env[node] = graph.placeholder(f"input_{at}")
            env[node].meta = dict(node.meta)
        for node in (*[other for other in read if other.op == "get_attr"], *nodes):
            env[node] = graph.node_copy(node, env.__getitem__)
        graph.output(tuple(env[node] for node in results))
        # An input may be a view of another one that is made to require grad.
        has_history = any((node.op, node.target) == GETS_HISTORY for node in self.gm.graph.nodes)
        guarded = [node in self.places and not has_history for node in inputs]
        module = fx.GraphModule(self.gm, graph)
        name = f"subgraph_{number}"
        return Subgraph(name, module, guarded, self.compile_subgraph), inputs, results


def _nodes_of(argument: Any) -> list[fx.Node]:
    return [one for one in argument if isinstance(one, fx.Node)]


def _is_plain(node: fx.Node) -> bool:
    """Of `requires_grad_`, whether it is true."""
    flags = (*node.args[1:], *node.kwargs.values())
    return all(flag is True for flag in flags)


def _has_no_gradient(node: fx.Node) -> bool:
    value = _value(node)
    if not isinstance(value, torch.Tensor):
        return node.op != "get_attr"
    return not value.requires_grad


def _runs_early(node: fx.Node) -> bool:
    return node.target in CALM or _name(node) in ("size", "numel", "dim")


def _compiles(node: fx.Node) -> bool:
    """False for modes and checks, and for what a number decides that is no int: each value of it
    would be compiled anew."""
    given = node.all_input_nodes
    if _value(node) is None and not any(isinstance(_value(other), torch.Tensor) for other in given):
        return False
    return all(
        kind is None or kind is int or kind is float and takes(node, other)
        for other in given
        for kind in [_kind(_value(other))]
    )
