"""Autograd functions that read more than their arguments: both halves become parts of the graph.

In: what the trace of `forward` and `backward` has recorded. Out: an `OwnFunction`, the target of
one node, whose inputs are the tensors among the arguments, and tensors and numbers that the halves
read of globals, closures and modules. A call of the program's own code would not do: a
backend that records it would keep what it reads as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.contexts import MODE_NODES
from dynamo.symbolic.tensors.tensor import TensorVar

ONCE = once_differentiable(lambda ctx: None).__code__  # type: ignore[attr-defined]


@dataclass(slots=True)
class Look:
    """What the trace of one call has found.

    result: of `forward`. seeds: the gradients that `backward` was given; grads: what it returned,
    None where it was not traced. body, back: the operations of either. saved, fixed: what was given
    to `save_for_backward` and to `mark_non_differentiable`. once: `backward` has no gradients of
    its own. plain: nothing else was set on the context. decides: `backward` asked for values, which
    may be others when it runs. writes: `forward` writes into arguments that it does not mark.
    """

    result: Var
    body: dict[fx.Node, None] = field(default_factory=dict)
    seeds: list[Var] = field(default_factory=list)
    grads: Var | None = None
    back: dict[fx.Node, None] = field(default_factory=dict)
    saved: list[TensorVar] = field(default_factory=list)
    fixed: list[TensorVar] = field(default_factory=list)
    once: bool = False
    plain: bool = True
    decides: bool = False
    writes: bool = False


# A value at run time: ("input", 2), ("made", 0) or ("seed", 1), by its place among those.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Half:
    """A graph, where its inputs are found, and where each result is; None: no result."""

    module: fx.GraphModule
    inputs: tuple[Place, ...]
    results: tuple[Place | None, ...]

    def values(self, **known: Any) -> dict[str, Any]:
        """All values by the kind of place, with those that the graph makes."""
        made = self.module(*(known[kind][index] for kind, index in self.inputs))
        return {**known, "made": made}


class OwnFunction:
    """One call of an autograd function.

    arguments: so many inputs are its own, the others are what it reads. handed: what backward
    needs, by its place in forward; checked: of these, what autograd watches for writes.
    """

    def __init__(
        self, name: str, arguments: int, forward: Half, backward: Half | None,
        handed: tuple[Place, ...], checked: frozenset[Place], fixed: tuple[int, ...], once: bool,
    ) -> None:
        self.arguments, self.forward, self.backward = arguments, forward, backward
        self.handed, self.checked, self.fixed = handed, checked, fixed
        self.function = function_of(self, once)
        self.__name__ = self.__qualname__ = f"apply_{name}"
        self.__module__ = __name__

    def halves(self) -> list[Half]:
        return [half for half in (self.forward, self.backward) if half is not None]

    def __call__(self, *inputs: Any) -> Any:
        if self.backward is None:  # what it reads may have gradients, its results have none
            own, others = inputs[: self.arguments], inputs[self.arguments :]
            inputs = (*own, *(t.detach() if isinstance(t, torch.Tensor) else t for t in others))
        results = self.function.apply(*inputs)
        return results if len(self.forward.results) > 1 else results[0]


def function_of(own: OwnFunction, once: bool) -> Any:
    """The class whose `apply` runs both halves."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        values = own.forward.values(input=inputs)
        found = tuple(values[place[0]][place[1]] for place in own.forward.results if place)
        ctx.mark_non_differentiable(*(found[index] for index in own.fixed))
        keep(ctx, own, values)
        return found

    def backward(ctx: Any, *seeds: Any) -> Any:
        half = own.backward
        assert half is not None
        values = half.values(handed=saved_by(ctx), seed=seeds)
        return tuple(None if place is None else values[place[0]][place[1]]
                     for place in half.results)  # fmt: skip

    methods = {"forward": staticmethod(forward), "backward": staticmethod(
        once_differentiable(backward) if once else backward)}  # fmt: skip
    return type("OwnFunctionCall", (torch.autograd.Function,), methods)


def keep(ctx: Any, own: OwnFunction, values: dict[str, Any]) -> None:
    """Keeps what backward needs as the program has kept it: what it only read is no affair of
    autograd's."""
    found = [values[kind][index] for kind, index in own.handed]
    watched = [place in own.checked and isinstance(value, torch.Tensor)
               for place, value in zip(own.handed, found, strict=True)]  # fmt: skip
    ctx.save_for_backward(*(v for v, is_watched in zip(found, watched, strict=True) if is_watched))
    ctx.others = [None if is_watched else v for v, is_watched in zip(found, watched, strict=True)]
    ctx.watched = watched


def saved_by(ctx: Any) -> list[Any]:
    saved = iter(ctx.saved_tensors)
    pairs = zip(ctx.others, ctx.watched, strict=True)
    return [next(saved) if is_watched else value for value, is_watched in pairs]


# -- while tracing --------------------------------------------------------------------------------


class NodeVar(Var):
    """A number of the graph as an argument."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__()
        self.node = node

    def python_type(self) -> type:
        return type(self.as_fake())

    def as_proxy(self) -> fx.Node:
        return self.node

    def as_fake(self) -> Any:
        return self.node.meta["example_value"]


def note_context(tx: Frame, look: Look, context: Var) -> None:
    """What `forward` has set on the context."""
    def read(name: str) -> list[Var]:
        return context.get_attr(tx, name).unpack(tx)

    look.saved = [var for var in read("saved_tensors") if isinstance(var, TensorVar)]
    look.fixed = [var for var in read("fixed") if isinstance(var, TensorVar)]
    fills = context.get_attr(tx, "materialize_grads")
    look.plain = not read("dirty") and fills.is_constant() and fills.as_constant() is True


def has_no_second_order(function: Any) -> bool:
    """True for what `once_differentiable` has made."""
    return getattr(getattr(function, "__func__", function), "__code__", None) is ONCE


def nodes_of(args: Iterable[Var]) -> list[fx.Node]:
    """The nodes of the graph among arguments; Break for what can't be an argument of a node."""
    found: list[fx.Node] = []
    for arg in args:
        fx.map_arg(arg.as_proxy(), lambda node: found.append(node))  # type: ignore[arg-type, return-value]
    return found


def read_beside(look: Look, args: Iterable[fx.Node]) -> dict[fx.Node, None]:
    """What both halves read of the graph, beside the arguments and what they make."""
    inner = {*look.body, *look.back, *nodes_of(look.seeds), *args}
    used = [node for each in (*look.body, *look.back) for node in each.all_input_nodes]
    results = [var.node for var in parts_of(look.result) if isinstance(var, TensorVar)]
    grads = [var.node for var in parts_of(look.grads) if isinstance(var, TensorVar)]
    return dict.fromkeys(node for node in (*used, *results, *grads) if node not in inner)


def parts_of(value: Var | None) -> list[Var]:
    """The results of a half, one by one."""
    if value is None:
        return []
    return list(value.items) if isinstance(value, TupleVar) else [value]


def call_own(tx: Frame, cls: type, args: list[Var], look: Look, mark: fx.Node) -> Var:
    """The call as one node; the operations after the mark are moved into it.

    Errors: Break where this is not the same as a call of the program's code.
    """
    tensors = [arg for arg in args if isinstance(arg, TensorVar)]
    beside = read_beside(look, [var.node for var in tensors])
    check(cls, look, args, beside)
    own = build(tx.trace, cls, args, tensors, look, beside, mark)
    others = [given_as(node) for node in beside]
    return torch_functions.call_in_graph(tx, own, [*tensors, *others], {})


def given_as(node: fx.Node) -> Var:
    value = node.meta["example_value"]
    return TensorVar(node, value) if isinstance(value, torch.Tensor) else NodeVar(node)


def check(cls: type, look: Look, args: list[Var], beside: dict[fx.Node, None]) -> None:
    """Break where only the program's own code will do."""
    def refuse(why: str) -> None:
        raise Break("call_of_unknown_function", f"apply of {cls.__qualname__!r}, which {why}")

    results = parts_of(look.result)
    if look.decides:
        refuse("reads more than its arguments and decides by values in backward")
    if look.writes:
        refuse("reads more than its arguments and writes into them")
    if not look.plain:
        refuse("reads more than its arguments and marks some as dirty, or gradients as None")
    if not results or not all(isinstance(var, TensorVar) for var in results):
        refuse("reads more than its arguments and returns more than tensors")
    if any(isinstance(var, TensorVar) and var.node in beside for var in results):
        refuse("returns what it reads")
    outside = {storage_of(value) for node in beside
               if isinstance(value := node.meta["example_value"], torch.Tensor)}  # fmt: skip
    for node in (*look.body, *look.back):
        if not outside.isdisjoint(storage_of(fake) for fake in node.meta.get("changed", ())):
            refuse("writes into what it reads")
    late = {read for node in look.back for read in node.all_input_nodes if read in beside}
    late -= {read for node in look.body for read in node.all_input_nodes}
    if late:
        refuse("reads in backward alone what may be something else by then")
    if look.grads is not None:
        check_grads(refuse, look, args)


def check_grads(refuse: Callable[[str], None], look: Look, args: list[Var]) -> None:
    grads = parts_of(look.grads)
    if len(grads) != len(args):
        refuse("reads more than its arguments and returns another number of gradients")
    for grad, arg in zip(grads, args, strict=True):
        none = grad.is_constant() and grad.as_constant() is None
        if not isinstance(grad, TensorVar) and not none:
            refuse("reads more than its arguments and returns gradients that are no tensors")
        if isinstance(grad, TensorVar) and not isinstance(arg, TensorVar):
            refuse("returns gradients of what is no tensor")


def build(
    trace: Evaluation, cls: type, args: list[Var], tensors: list[TensorVar], look: Look,
    beside: dict[fx.Node, None], mark: fx.Node,
) -> OwnFunction:
    """Moves the operations out of the graph."""
    known: dict[fx.Node, Place] = {}
    for index, node in enumerate([*(var.node for var in tensors), *beside]):
        known.setdefault(node, ("input", index))
    backward, handed = build_backward(trace, args, look, len(beside))
    trace.graph.erase([node for node in reversed(trace.graph.operations_after(mark))
                       if node not in look.body])  # fmt: skip
    results = [var.node for var in parts_of(look.result) if isinstance(var, TensorVar)]
    made = list(dict.fromkeys(node for node in (*results, *handed) if node in look.body))
    inputs, module = trace.graph.cut_out(look.body, made, [])
    where = known | places_of("made", made)
    forward = Half(module, tuple(known[node] for node in inputs),
                   tuple(where[node] for node in results))  # fmt: skip
    saved = {var.node for var in look.saved}
    fixed = {var.node for var in look.fixed}
    # Its modes are set back to what they are in backward without gradients of its own.
    once = look.once or (backward is not None and any(
        node.target in MODE_NODES for node in backward.module.graph.nodes))  # fmt: skip
    return OwnFunction(
        cls.__name__, len(tensors), forward, backward, tuple(where[node] for node in handed),
        frozenset(where[node] for node in handed if node in saved),
        tuple(index for index, node in enumerate(results) if node in fixed), once)  # fmt: skip


def build_backward(
    trace: Evaluation, args: list[Var], look: Look, beside: int
) -> tuple[Half | None, list[fx.Node]]:
    """The half, None without, and what it needs of forward."""
    if look.grads is None:
        return None, []
    pairs = zip(parts_of(look.grads), args, strict=True)
    grads = [grad for grad, arg in pairs if isinstance(arg, TensorVar)]
    wanted = [grad.node if isinstance(grad, TensorVar) else None for grad in grads]
    seeds = [var.node for var in look.seeds if isinstance(var, TensorVar)]
    made = list(dict.fromkeys(node for node in wanted if node in look.back))
    inputs, module = trace.graph.cut_out(look.back, made, [])
    needed = [node for node in (*inputs, *wanted) if node and node not in look.back]
    handed = list(dict.fromkeys(node for node in needed if node not in seeds))
    places = places_of("handed", handed) | places_of("seed", seeds) | places_of("made", made)
    results = [*(places[node] if node else None for node in wanted), *[None] * beside]
    return Half(module, tuple(places[node] for node in inputs), tuple(results)), handed


def places_of(kind: str, nodes: Iterable[fx.Node | None]) -> dict[fx.Node, Place]:
    return {node: (kind, index) for index, node in enumerate(nodes) if node is not None}
