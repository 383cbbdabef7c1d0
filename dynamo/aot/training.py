"""Running a partitioned program under autograd: one `torch.autograd.Function` for each group.

In: a `Partition` and compilers. Out: a callable from the program's inputs to the values of the
forward graph (its outputs, then the new values of mutated inputs). With `create_graph=True` the
captured program runs again to be differentiated twice, where it can (`second_order.py`).

A function's edges lead to the inputs that it has gradients for, and no others: autograd goes on
along edges that carry nothing, too, and what it meets there may have run its backward before.

Saved tensors go through `save_for_backward`: freed after backward unless the graph is retained,
with the error of eager where one was written into meanwhile. Backward is compiled when it is first
called. An output that nothing differentiates has no gradient, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import fx
from torch.nn.parallel import DistributedDataParallel

from dynamo.aot.chained_backward import (
    Carrier,
    Chain,
    arrival_counts,
    bucket_limits,
    choose_chain,
    make_relay,
)
from dynamo.aot.fakes import number_at
from dynamo.aot.followed_inputs import OURS, has_followed
from dynamo.aot.joint import JointGraph, Tangent, dense_stride
from dynamo.aot.lazy_backward import LazyBackward, is_in_transform, likely_missing
from dynamo.aot.node_plans import NodePlan, may_learn, plan_nodes
from dynamo.aot.partition import Partition
from dynamo.aot.recipes import noted
from dynamo.aot.records import Compiler, Keeping, Place
from dynamo.aot.second_order import (
    TWICE,
    SecondOrder,
    learnable_sources,
    refuse_to_differentiate,
)
from dynamo.base.fallbacks import DERIVATIVE, line_of, refused

keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]
transforms_active = torch._C._are_functorch_transforms_active


WRITTEN = (
    "dynamo: an output of a compiled graph and an input that it was computed from have both been "
    "modified by inplace operations before backward; do one of these after it, or clone the output."
)


def make_function(
    gm: fx.GraphModule, joint: JointGraph, partition: Partition, forward: Callable[..., Any],
    compiler: Compiler, keeping: Keeping,
) -> Callable[..., Any]:
    """The differentiable callable; gm: the program as it was captured."""
    plans = plan_nodes(gm, joint, partition)
    return function_of(plans, joint.values, forward, compiler, keeping)


def function_of(
    plans: tuple[NodePlan, ...], count: int, forward: Callable[..., Any], compiler: Compiler,
    keeping: Keeping,
) -> Callable[..., Any]:
    """The differentiable callable of these nodes. count: the values of the program."""
    backwards = [
        LazyBackward(at, plan.graph, compiler, keeping, likely_missing(plan.tangents))
        for at, plan in enumerate(plans)
    ]
    functions = [*map(_make_node, plans, backwards)]
    only = functions[0]
    backward = backwards[0]
    chains: dict[Any, Callable[..., Any]] = {}
    partial = [plan.partial for plan in plans]
    may_part = any(partial)
    parted: dict[int, list[Any]] = {}

    def nodes_of(at: int, args: tuple[Any, ...]) -> Iterable[tuple[NodePlan, Any]]:
        """The nodes of a group for this call, one if nothing of it shows."""
        if not has_followed(args, partial[at]):
            return ((plans[at], functions[at]),)
        if at not in parted:
            parted[at] = [_make_node(part, backwards[at]) for part in plans[at].apart]
        return zip(plans[at].apart, parted[at], strict=True)

    def call_one(*args: Any) -> Any:
        if may_part and has_followed(args, partial[0]):
            return call(*args)
        if DistributedDataParallel._active_ddp_module is None or transforms_active():
            return only(forward, args)
        key = limits, singly = bucket_limits(), arrival_counts()
        chained = chains.get(key)
        if chained is None:
            chained, plan = only, plans[0]
            if not plan.dirty:
                chain = choose_chain(
                    backward, plan.gradients, plan.arrival, args, limits, singly)
                if chain is not None:
                    chained = _make_chain(plan, backward, chain, args)
            chains[key] = chained
        return chained(forward, args)

    def call(*args: Any) -> Any:
        with torch.no_grad():
            results = forward_alone(forward, args, range(count))
        shown = results[:count]
        for group in range(len(plans)):
            for plan, function in nodes_of(group, args):
                for at, value in zip(plan.half_outputs, function(lambda *_: results, args),
                                     strict=True):
                    shown[at] = value
        return tuple(shown)

    chosen = call_one if len(functions) == 1 else call
    return noted(  # type: ignore[no-any-return]
        chosen, function_of, plans, count, forward, compiler, keeping)


def _make_node(plan: NodePlan, backward: LazyBackward) -> Callable[..., Any]:
    """Calls forward with the inputs, as one node of autograd's graph: that of a group's outputs."""
    cut, second, marks = plan.cut, plan.second, plan.marks
    count = len(plan.shown)
    members = {"forward": staticmethod(_forward_of(plan)), OURS: plan.arity,
               "backward": staticmethod(_backward_of(plan, backward, _in_places(plan, backward)))}
    node: Any = type("CompiledFunction", (torch.autograd.Function,), members)
    apply: Callable[..., Any] = node.apply
    # What it does beside is for functorch: it looks at each argument.
    apply_plainly = super(torch.autograd.Function, node).apply

    def call(forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        references = None if second is None else second.keep(args)
        if cut:
            args = tuple([given.detach() if at in cut else given for at, given in enumerate(args)])
        run = apply if transforms_active() else apply_plainly
        results = run(forward, references, *args)
        return results[:count] if marks else results

    return call


@dataclass(frozen=True, slots=True)
class Ends:
    """How a node gives gradients. nothing: where there are none. start: makes them of what the
    compiled backward takes; ready: takes them all; give: what autograd gets of either's result."""

    nothing: tuple[None, ...]
    start: Callable[..., Any]
    ready: Callable[..., Any]
    give: Callable[..., Any]


def _in_places(plan: NodePlan, backward: LazyBackward) -> Ends:
    """All gradients together."""
    nothing = (None,) * (2 + plan.arity)
    gradients = plan.gradients

    def give(computed: Any) -> Any:
        results: list[Any] = [*nothing]
        for at, grad in zip(gradients, computed, strict=False):
            results[2 + at] = grad
        return tuple(results)

    return Ends(nothing, backward, lambda found: found, give)


def _make_chain(
    plan: NodePlan, backward: LazyBackward, chain: Chain, args: tuple[Any, ...]
) -> Callable[..., Any]:
    """Calls forward as the first node of a chain (`chained_backward.py`)."""
    cut, second, count = plan.cut, plan.second, len(plan.shown)
    places = [[plan.gradients[at] for at in part] for part in chain.given]
    own, *later = map(picker, places)
    carrier = Carrier(args[places[0][0]].device)
    relays = [make_relay(carrier, len(part), part is places[-1]) for part in places[1:]]
    order = [*zip(reversed(relays), reversed(later), strict=True)]
    saving = _forward_of(plan)
    nothing = (None,) * (4 + len(places[0]))

    def forward(
        ctx: Any, forward: Any, references: Any, args: tuple[Any, ...], *edges: Any
    ) -> Any:
        return saving(ctx, forward, references, *args)

    def give(rest: Any) -> Any:
        found = next(rest)
        return (None, None, None, carrier.load(rest), *found)

    ends = Ends(nothing, chain.start, chain.ready, give)
    members = {"forward": staticmethod(forward), OURS: plan.arity,
               "backward": staticmethod(_backward_of(plan, backward, ends))}
    node: Any = type("CompiledFunction", (torch.autograd.Function,), members)
    apply = super(torch.autograd.Function, node).apply

    def call(forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        references = None if second is None else second.keep(args)
        if cut:
            args = tuple([given.detach() if at in cut else given for at, given in enumerate(args)])
        link = None
        for relay, inputs in order:
            link = relay(link, *inputs(args))
        results = apply(forward, references, args, link, *own(args))
        return results[:count] if plan.marks else results

    return call


def _forward_of(plan: NodePlan) -> Callable[..., Any]:
    """The `forward` of the node. Names are local, as it runs at each call."""
    shown, outputs, loose, foreign = plan.shown, plan.outputs, plan.loose, plan.foreign
    sizes, dirty, without_gradient = plan.sizes, plan.dirty, plan.without_gradient
    marks, helpers, views = plan.marks, plan.helpers, plan.views
    saved_inputs, saved_outputs = picker(plan.inputs), picker(outputs)
    results_shown, undifferentiated = picker(shown), picker(without_gradient)

    def forward(ctx: Any, forward: Callable[..., Any], references: Any, *args: Any) -> Any:
        results = forward_alone(forward, args, shown)
        ctx.set_materialize_grads(False)
        saved = saved_outputs(results)
        if foreign:
            saved = tuple([value.detach() if at in foreign else value
                           for at, value in zip(outputs, saved, strict=True)])
        mark = (torch.empty(0),) if marks else ()
        ctx.save_for_backward(*saved_inputs(args), *saved, *mark)
        ctx.references = references
        if loose:
            ctx.loose = [_noted(results[at]) for at in loose]
            ctx.loose += [_noted(args[at]) for at in helpers]
        if sizes:
            ctx.sizes = [_read(args, place) for place in sizes]
        for at, view in views:
            results[at] = view.of(args, results)
        if without_gradient:
            ctx.mark_non_differentiable(*undifferentiated(results))
        if not dirty:
            return results_shown(results) + mark
        given_back = list(results_shown(results))
        for given, at in dirty:
            args[given].data.copy_(results[at])  # `mark_dirty` counts the write
            given_back[at] = args[given]
        ctx.mark_dirty(*[args[given] for given, _ in dirty])
        return (*given_back, *mark)

    return forward


def _reporting_once(second: SecondOrder | None) -> Callable[[], None]:
    """Reports at its first call that the captured program has run again, outside of the graph."""
    reported: list[bool] = []

    def report() -> None:
        if second is not None and not reported:
            reported.append(True)
            refused(DERIVATIVE, "create_graph=True is given outside of the compiled part that is "
                    "differentiated", line_of(second.gm.graph.nodes), strict=False)

    return report


def _backward_of(plan: NodePlan, backward: LazyBackward, ends: Ends) -> Callable[..., Any]:
    """The `backward` of the node."""
    nothing, start, ready, give = ends.nothing, ends.start, ends.ready, ends.give
    sizes, restore, absent = plan.sizes, plan.restore, plan.absent
    second, tangents, gradients = plan.second, plan.tangents, plan.gradients
    saved = len(plan.inputs) + len(plan.outputs)
    restored = picker(plan.order)
    own, each = _by_values(plan)
    sources: dict[tuple[int, ...], list[frozenset[int]]] = {}
    report = _reporting_once(second)

    def refuse(found: Any, missing: tuple[int, ...], learns: list[bool], given: Any) -> Any:
        """Gradients that can't be differentiated. learns: which of what backward takes may."""
        known = sources.get(missing)
        if known is None:
            known = sources[missing] = learnable_sources(backward.module(missing))
        is_open = [any(learns[at] for at in places) for places in known]
        return refuse_to_differentiate(found, is_open, given)

    def gradients_of(ctx: Any, *grads: Any) -> Any:
        # See above: an edge that carries nothing.
        if grads[0] is None and all(grad is None for grad in grads):
            again = None if second is None else second.of_nothing(ctx)
            return nothing if again is None else give(ready([again[at] for at in gradients]))
        tensors = ctx.saved_tensors
        runs = None if second is None or second.calls is None else second.note_run(ctx, each(grads))
        if second is not None and torch.is_grad_enabled() and ctx.references is not None:
            again = second.gradients(ctx.references, tensors, own(tensors), each(grads), runs)
            if again is not None:
                report()
                return give(ready([again[at] for at in gradients]))
        if restore is not None:
            tensors = tensors[:saved] + _current(ctx.loose, plan, tensors)
        given, missing = list(restored(tensors)), [*absent]
        if sizes:
            given += ctx.sizes
        for output, at, tangent in tangents:
            grad = grads[at]
            if grad is None:
                missing.append(output)
            else:
                given.append(_fit(grad, tangent))
        is_differentiable = torch.is_grad_enabled()
        if is_differentiable and is_in_transform():  # which loses the history of a refusal
            raise RuntimeError(TWICE)
        if not keeps_graph():  # each of them dies at its last use
            ctx.maybe_clear_saved_tensors()
            ctx.references = ctx.loose = None
        if is_differentiable:
            learns = [second is not None or may_learn(plan, at, tensors) for at in plan.order]
            learns += [isinstance(value, torch.Tensor) and value.requires_grad
                       for value in given[len(learns) :]]
            with torch.no_grad():
                found = backward(tuple(missing), given)
            others = [] if second is None else second.history(ctx.references)
            return give(ready(refuse(found, tuple(missing), learns, (*tensors, *others, *grads))))
        tensors = ()
        return give(start(tuple(missing), given))

    return gradients_of


def _by_values(plan: NodePlan) -> tuple[Callable[..., dict[int, Any]], Callable[..., list[Any]]]:
    """What gives the program's own values among the saved tensors, and what gives for each value
    the gradient that has come."""
    outputs, begin = plan.outputs, len(plan.inputs)
    place = {output: at for at, output in enumerate(plan.shown)}

    def own(tensors: Sequence[Any]) -> dict[int, Any]:
        return dict(zip(outputs, tensors[begin:], strict=False))

    def each(grads: Sequence[Any]) -> list[Any]:
        return [grads[place[at]] if at in place else None for at in range(plan.values)]

    return own, each


def forward_alone(
    forward: Callable[..., Any], args: tuple[Any, ...], shown: Sequence[int]
) -> list[Any]:
    """The results of forward, of which those at `shown` are no views: a kernel of ATen's that ends
    in a view gives one, into which autograd would let nobody write."""
    results = list(forward(*args))
    for at in shown:
        value = results[at]
        if isinstance(value, torch.Tensor) and value._is_view():
            results[at] = _as_no_view(value, [*results[:at], *results[at + 1 :]])
    return results


def _as_no_view(value: torch.Tensor, others: list[Any]) -> torch.Tensor:
    """The same memory; a copy where another result lies there, which backward may need as it is."""
    storage = value.untyped_storage()._cdata
    tensors = [other for other in others if isinstance(other, torch.Tensor)]
    if all(other.untyped_storage()._cdata != storage for other in tensors):
        return value.data
    copy = value.clone()
    return copy if copy.stride() == value.stride() else value


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes the items at these places.

    >>> picker([2])("abc"), picker([2, 0])("abc")
    (('c',), ('c', 'a'))
    """
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[at] for at in places])


def _read(inputs: tuple[Any, ...], place: Place) -> int:
    index, dim = place
    return number_at(inputs[index], dim)  # type: ignore[no-any-return]


def _noted(value: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The same memory, which counts the same writes, and how many these are now."""
    return value.detach(), value._version


def _current(
    seen: list[tuple[torch.Tensor, int]], plan: NodePlan, tensors: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """The values that the loose outputs had. tensors: the other saved tensors, inputs first."""
    same = [value._version == version for value, version in seen]
    values = [value for value, _ in seen]
    count = len(same) - len(plan.helpers)
    if all(same[:count]):
        return tuple(values[:count])
    if not all(same[count:]):
        raise RuntimeError(WRITTEN)
    places = {"input": 0, "output": plan.strict.count("input")}
    given = []
    for kind in plan.strict:
        given.append(tensors[places[kind]])
        places[kind] += 1
    assert plan.restore is not None
    with torch.no_grad():
        return tuple(plan.restore.module()(*given, *values[count:]))


def _fit(grad: torch.Tensor, tangent: Tangent) -> torch.Tensor:
    """The gradient as the backward graph expects it."""
    size, stride = tangent.form or (grad.shape, dense_stride(grad.shape, tangent.order))
    if grad.stride() == stride and not grad.is_conj() and not grad.is_neg():
        return grad
    if is_in_transform():  # which writes nothing batched into what is not
        inverse = [tangent.order.index(axis) for axis in range(grad.dim())]
        dense = grad.resolve_conj().resolve_neg().permute(tangent.order).contiguous()
        return dense.permute(inverse)
    fitted = torch.empty_strided(size, stride, dtype=tangent.dtype, device=grad.device)
    return fitted.copy_(grad)
