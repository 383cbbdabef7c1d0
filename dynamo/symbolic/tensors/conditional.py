"""`torch.cond`: both branches are traced; the graph chooses between them when it runs.

The node's target is a `Choice`, whose two modules a backend may look into. Branches that change
anything, or whose results differ in more than their values, break the graph before the call.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar

Traced = tuple[list[fx.Node], fx.GraphModule, list[TensorVar], Var]


class Choice:
    """Runs one of two graphs.

    modules: for True and for False; each returns a tuple of tensors. places: for each, which of the
    inputs (behind the predicate) it takes.
    """

    def __init__(
        self, modules: tuple[fx.GraphModule, ...], places: tuple[list[int], ...], number: int
    ) -> None:
        self.modules, self.places = modules, places
        self.__name__ = self.__qualname__ = f"choice_{number}"
        self.__module__ = __name__

    def __call__(self, predicate: Any, *inputs: Any) -> Any:
        branch = 0 if predicate else 1
        return self.modules[branch](*(inputs[place] for place in self.places[branch]))


@rule(torch.cond)
def cond(
    tx: Frame, pred: Var, true_fn: Var, false_fn: Var, operands: Var = TupleVar([])  # noqa: B008
) -> Var:
    """`torch.cond(pred, true_fn, false_fn, operands)`; a bool that is known chooses at once."""
    trace = tx.trace
    if pred.python_type() is bool and not isinstance(pred, TensorVar):
        given = operands.unpack(tx)
        if all(isinstance(operand, TensorVar) for operand in given):
            return tx.call(true_fn if pred.truth(tx) else false_fn, given, {})
    if not isinstance(pred, TensorVar) or pred.fake.numel() != 1 or torch_functions.in_transform():
        raise Break("call_of_unknown_function", f"torch.cond of {pred!r}")
    node = pred.node
    traced = [trace_branch(tx, branch, operands) for branch in (true_fn, false_fn)]
    (first, _, made, result), (second, _, others, other) = traced
    if shape_of(result) != shape_of(other) or list(map(facts, made)) != list(map(facts, others)):
        raise Break("call_of_unknown_function", "torch.cond with branches of different results")
    inputs = list(dict.fromkeys([*first, *second]))
    number = sum(isinstance(item.target, Choice) for item in trace.graph.graph.nodes)
    target = Choice(
        tuple(item[1] for item in traced),
        tuple([inputs.index(place) for place in item[0]] for item in traced),
        number,
    )
    fakes = tuple(var.fake for var in made)
    call = trace.graph.operation("call_function", target, (node, *inputs), {}, fakes)
    for index, var in enumerate(made):
        place = (call, index)
        var.move_to(trace.graph.operation("call_function", operator.getitem, place, {}, var.fake))
        trace.world.constants.forget(var.fake)  # the other branch may hold something else
    return result


def trace_branch(tx: Frame, branch: Var, operands: Var) -> Traced:
    """Inputs, module, results (flat and nested) of one branch; its operations leave the graph."""
    trace, state = tx.trace, tensor_state(tx.trace)
    args = operands.unpack(tx)
    mark, before, mutated = trace.graph.mark(), trace.effects.places(), dict(state.mutated)
    tensors: list[TensorVar] = []
    torch_functions.collect_tensors(TupleVar(args), tensors)
    versions = [var.fake._version for var in tensors]
    result = tx.call(branch, args, {})
    written = [var.fake._version for var in tensors] != versions or state.mutated != mutated
    if written or trace.effects.targets_since(before):
        raise Break("call_of_unknown_function", "torch.cond with a branch that changes something")
    made: list[TensorVar] = []
    torch_functions.collect_tensors(result, made)
    body = trace.graph.operations_after(mark)
    if any(node.meta.get("checks") for node in body):
        raise Break("call_of_unknown_function", "torch.cond with a branch that checks a number")
    if not all(var.node in body for var in made) or len(set(made)) < len(made):
        raise Break("call_of_unknown_function", "torch.cond that gives an operand back")
    inputs, module = trace.graph.cut_out(body, [var.node for var in made], first=[])
    return inputs, module, made, result


def facts(var: TensorVar) -> Any:
    """What must be alike in both branches."""
    fake = var.fake
    return fake.shape, fake.stride(), fake.dtype, fake.device, fake.requires_grad


def shape_of(var: Var) -> Any:
    """How a result nests."""
    if isinstance(var, TensorVar):
        return "tensor"
    if isinstance(var, TupleVar | ListVar):
        return var.python_type(), [shape_of(item) for item in var.items]
    if isinstance(var, ConstVar):
        return var.value
    raise Break("call_of_unknown_function", f"torch.cond with the result {var!r}")
