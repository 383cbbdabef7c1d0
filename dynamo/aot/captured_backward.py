"""A compiled program whose backward can't be recorded: its backward is the captured program's own.

In: a captured module, and what compiles its forward. Out: a callable that runs the compiled graph
and gives its values nodes in autograd's graph. When one's backward is called, the captured program
runs again under autograd and is differentiated there: an operation without a derivative raises what
it raises in eager, and outputs that do not depend on it have their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.function_backwards import functions_of
from dynamo.aot.records import AtenGraph, FreshOutput, Unsupported
from dynamo.aot.second_order import SecondOrder, autocast_now, may_rerun
from dynamo.aot.training import forward_alone
from dynamo.graph_operators.cuts import is_own


@dataclass(frozen=True, slots=True)
class _Plan:
    """again: what runs the program again. count: its values. differentiable: those with a history.
    tell: called when a gradient has been computed."""

    gradients: SecondOrder
    count: int
    differentiable: tuple[int, ...]
    tell: Callable[[], None]


def plan_backward(
    gm: fx.GraphModule, graph: AtenGraph, examples: Sequence[Any], tell: Callable[[], None]
) -> _Plan:
    """Errors: Unsupported where the program can't run twice, or an output with a gradient is a view
    of what it computes."""
    nodes = [node for node in graph.module.graph.nodes if not _is_attention_without_dropout(node)]
    writes = graph.mutations or graph.mutates_history
    # An operator of the program may do more than it gives.
    if writes or not may_rerun(nodes) or any(is_own(node.target) for node in nodes):
        raise Unsupported("its backward can't be recorded, and it can't run twice")
    if functions_of(gm):  # whose backward would run for each value by itself
        raise Unsupported("its backward can't be recorded, and it calls autograd functions")
    has_inference = any(
        isinstance(value, torch.Tensor) and value.is_inference() for value in examples)
    if graph.spent or graph.inference or has_inference or _has_own_leaves(graph):
        raise Unsupported("its backward can't be recorded, and it can't be kept apart from it")
    values: Any = graph.module.graph.output_node().args[0]
    places: dict[int, int] = {}
    for at, output in enumerate(graph.outputs):
        if isinstance(output, FreshOutput):
            places.setdefault(output.index, at)
    histories = [graph.outputs[at] for at in graph.needs_grad]
    differentiable = tuple({one.index: 0 for one in histories if isinstance(one, FreshOutput)})
    if len(places) != len(values) or not all(isinstance(one, FreshOutput) for one in histories):
        raise Unsupported("its backward can't be recorded, and an output is a view")
    wanted = tuple([at for at, value in enumerate(examples)
                    if isinstance(value, torch.Tensor) and value.requires_grad])  # fmt: skip
    count = len(values)
    # Whatever is given is saved: a write meanwhile is an error, as it may be in eager.
    gradients = SecondOrder(gm, tuple(range(len(examples))), (), (),
                        tuple([places[at] for at in range(count)]), wanted,
                        autocast_now())  # fmt: skip
    return _Plan(gradients, count, differentiable, tell)


def _is_attention_without_dropout(node: fx.Node) -> bool:
    """Its operators say that they draw random numbers; then they draw none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else argument.default_value
            return bool(node.kwargs.get(argument.name, given) == 0.0)
    return False


def _has_own_leaves(graph: AtenGraph) -> bool:
    """True where a tensor of the program that is no input gets a gradient."""
    constants = [node for node in graph.module.graph.nodes if node.op == "get_attr"]
    return any(getattr(graph.module, str(node.target)).requires_grad for node in constants)


def with_own_backward(plan: _Plan, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The differentiable callable. compiled: gives the values of the program.

    Each value has a node of its own: eager's have histories of their own, of which one may be gone
    already when another one is asked for.
    """

    class RerunProgram(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, at: int, results: list[Any], *args: Any) -> Any:
            ctx.at = at
            ctx.save_for_backward(*[given for given in args if isinstance(given, torch.Tensor)])
            ctx.others = [None if isinstance(given, torch.Tensor) else (given,) for given in args]
            return results[at]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            tensors = iter(ctx.saved_tensors)
            args = [next(tensors) if other is None else other[0] for other in ctx.others]
            grads = [grad if at == ctx.at else None for at in range(plan.count)]
            twice = torch.is_grad_enabled()
            with torch.enable_grad():
                found = plan.gradients.differentiated(args, grads)
            plan.tell()
            if not twice:
                found = [None if item is None else item.detach() for item in found]
            return (None, None, *found)

    def call(*args: Any) -> Any:
        with torch.no_grad():
            results = forward_alone(compiled, args, range(plan.count))
        given = {at: RerunProgram.apply(at, results, *args)  # type: ignore[no-untyped-call]
                 for at in plan.differentiable}  # fmt: skip
        return tuple([given.get(at, value) for at, value in enumerate(results)])

    return call
