"""`while_loop`, `scan`, `associative_scan` and `map` of torch.

`while_loop`: condition and body are traced once, on tensors of which only the metadata is known;
the node's target is a `Loop`, which every backend runs as it is. `scan` and `map` are what their
definition says: a Python loop, traced; `associative_scan` on a GPU is torch's own general one. What
eager would refuse breaks the graph before the call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynamo.base.errors import Break
from dynamo.graph_operators.cuts import runs_alone
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import late_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.conditional import facts, trace_branch
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar

MOST_STEPS = 100


@runs_alone
def carry(tensor: torch.Tensor) -> torch.Tensor:
    """In a graph: the first value of a tensor that a loop carries."""
    return tensor


class Loop:
    """Runs a graph while another one says so.

    modules: condition and body. places: for each, which of the values it takes: those that the loop
    carries come first.
    """

    runs_alone = True

    def __init__(
        self, modules: tuple[fx.GraphModule, ...], places: tuple[list[int], ...], number: int
    ) -> None:
        self.modules, self.places = modules, places
        self.__name__ = self.__qualname__ = f"loop_{number}"
        self.__module__ = __name__

    def __call__(self, count: int, *inputs: Any) -> Any:
        values, others = tuple(inputs[:count]), inputs[count:]
        condition, body = self.modules
        started = False
        while self._run(condition, 0, values + others)[0]:
            values, started = tuple(self._run(body, 1, values + others)), True
        return values if started else tuple(value.clone() for value in values)

    def _run(self, module: fx.GraphModule, which: int, values: tuple[Any, ...]) -> Any:
        return module(*(values[place] for place in self.places[which]))


def refuse(name: str, why: str) -> Break:
    return Break("call_of_unknown_function", f"{name} {why}")


@late_rule("while_loop", "while_loop")
def while_loop(tx: Frame, cond_fn: Var, body_fn: Var, carried_inputs: Var) -> Var:
    """`while_loop(cond_fn, body_fn, carried_inputs)` of tensors, without gradients."""
    trace = tx.trace
    given = carried_inputs.unpack(tx)
    if torch_functions.in_transform() or not given:
        raise refuse("while_loop", "in a transform, or of nothing")
    carried = [carried_value(tx, var) for var in given]
    operands = TupleVar([*carried])
    test, body = (trace_branch(tx, part, operands) for part in (cond_fn, body_fn))
    if test.written or body.written:
        raise refuse("while_loop", "that writes into tensors")
    if len(test.made) != 1 or test.result is not test.made[0]:
        raise refuse("while_loop", "with a condition that is no tensor")
    [decides], made, result = test.made, body.made, body.result
    if decides.fake.dim() or decides.fake.dtype != torch.bool:
        raise refuse("while_loop", "with a condition that is no bool")
    if type(result) is not TupleVar or list(map(facts, made)) != list(map(facts, carried)):
        raise refuse("while_loop", "whose body gives other tensors than it takes")
    nodes = [var.node for var in carried]
    inputs = list(dict.fromkeys([*nodes, *test.inputs, *body.inputs]))
    places = tuple([inputs.index(node) for node in part.inputs] for part in (test, body))
    number = sum(isinstance(item.target, Loop) for item in trace.graph.graph.nodes)
    target = Loop((test.module, body.module), places, number)
    fakes = tuple(var.fake for var in made)
    call = trace.graph.operation("call_function", target, (len(nodes), *inputs), {}, fakes)
    for index, var in enumerate(made):
        place = (call, index)
        var.move_to(trace.graph.operation("call_function", operator.getitem, place, {}, var.fake))
        trace.world.constants.forget(var.fake)  # the body may not have run
    return result


def carried_value(tx: Frame, var: Var) -> TensorVar:
    """A tensor of which nothing but the metadata is known."""
    if not isinstance(var, TensorVar) or (var.fake.requires_grad and torch.is_grad_enabled()):
        raise refuse("while_loop", f"of {var!r}")
    fake = var.fake
    kinds = {"dtype": fake.dtype, "device": fake.device}
    fresh = torch_functions.run_on_fakes(
        tx, torch.empty_strided, [fake.shape, fake.stride()], kinds)
    node = tx.trace.graph.operation("call_function", carry, (var.node,), {}, fresh)
    return TensorVar(node, fresh)


# -- loops that Python runs ------------------------------------------------------------------------


def scan_in_python(
    combine_fn: Callable[..., Any], init: Any, xs: Any, dim: int, reverse: bool
) -> Any:
    """What `scan` is defined to do."""
    leaves, spec = pytree.tree_flatten(xs)
    parts = [leaf.unbind(dim) for leaf in leaves]
    order = range(len(parts[0]))
    carried, found = init, []
    for at in reversed(order) if reverse else order:
        carried, made = combine_fn(carried, pytree.tree_unflatten([p[at] for p in parts], spec))
        found.append(made)
    if reverse:
        found.reverse()
    rows = [pytree.tree_flatten(made)[0] for made in found]
    stacked = [torch.stack(list(row), dim) for row in zip(*rows, strict=True)]
    return carried, pytree.tree_unflatten(stacked, pytree.tree_flatten(found[0])[1])


def map_in_python(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """What `map` is defined to do."""
    leaves, spec = pytree.tree_flatten(xs)
    parts = [leaf.unbind(0) for leaf in leaves]
    found = [
        f(pytree.tree_unflatten([p[at] for p in parts], spec), *args) for at in range(len(parts[0]))
    ]
    rows = [pytree.tree_flatten(made)[0] for made in found]
    stacked = [torch.stack(list(row)) for row in zip(*rows, strict=True)]
    return pytree.tree_unflatten(stacked, pytree.tree_flatten(found[0])[1])


@late_rule("scan", "scan")
def scan(
    tx: Frame, combine_fn: Var, init: Var, xs: Var, *, dim: Var | None = None,
    reverse: Var | None = None,
) -> Var:
    """`scan(combine_fn, init, xs)`, a step for each slice."""
    number = 0 if dim is None else dim.as_constant()
    backwards = reverse is not None and reverse.truth(tx)
    check_steps(tx, xs, number, "scan")
    before = tensors_of(init)
    result = unrolled(tx, scan_in_python, [combine_fn, init, xs, tx.trace.constant(number),
                                           tx.trace.constant(backwards)])  # fmt: skip
    after = tensors_of(result.unpack(tx)[0])
    if [facts(var)[:4] for var in before] != [facts(var)[:4] for var in after]:
        raise refuse("scan", "whose step gives other tensors than it takes")
    return result


@late_rule("associative_scan", "associative_scan")
def associative_scan(
    tx: Frame, combine_fn: Var, xs: Var, dim: Var, reverse: Var | None = None,
    combine_mode: Var | None = None,
) -> Var:
    """As torch wrote it, on a GPU in its general form: the pointwise one has wrong gradients."""
    from torch._higher_order_ops.associative_scan import associative_scan as in_python

    constant = tx.trace.constant
    mode = constant("pointwise") if combine_mode is None else combine_mode
    found = tensors_of(xs)
    on_gpu = found and all(x.fake.device.type in ("cuda", "xpu") for x in found)
    if on_gpu and mode.as_constant() == "pointwise":
        mode = constant("generic")
    backwards = constant(False) if reverse is None else reverse
    return inline_polyfill(tx, in_python, [combine_fn, xs, dim, backwards, mode], {})


@late_rule("map", "map")
def map_slices(tx: Frame, f: Var, xs: Var, *args: Var) -> Var:
    """`torch._higher_order_ops.map`, a step for each slice."""
    check_steps(tx, xs, 0, "map")
    return unrolled(tx, map_in_python, [f, xs, *args])


def tensors_of(var: Var) -> list[TensorVar]:
    found: list[TensorVar] = []
    torch_functions.collect_tensors(var, found)
    return found


def check_steps(tx: Frame, xs: Var, dim: Any, name: str) -> None:
    """Fixes the number of slices. Break where they can't be counted, or are many."""
    found = tensors_of(xs)
    if not found or type(dim) is not int or any(not 0 <= dim < x.fake.dim() for x in found):
        raise refuse(name, f"of {xs!r}")
    sizes = [x.fake.shape[dim] for x in found]
    counts = {
        n if type(n) is int else tx.trace.symbols.wrap_symbolic(n).as_constant() for n in sizes
    }
    if len(counts) != 1 or not all(0 < n <= MOST_STEPS for n in counts):
        raise refuse(name, f"of {xs!r}")


def unrolled(tx: Frame, loop: Callable[..., Any], args: list[Var]) -> Var:
    """The loop, traced. Break where a step changes something."""
    before, tensors = tx.trace.effects.places(), tensors_of(TupleVar(args))
    versions = [var.fake._version for var in tensors]
    state = tensor_state(tx.trace)
    mutated = dict(state.mutated)
    result = inline_polyfill(tx, loop, args, {})
    written = [var.fake._version for var in tensors] != versions or state.mutated != mutated
    if written or tx.trace.effects.changed_outside(before):
        raise refuse(loop.__name__, "with a step that changes something")
    return result
