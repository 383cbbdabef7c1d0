"""`torch.cond`: both branches are traced; the graph chooses between them when it runs.

The node's target is a `Choice`, whose two modules a backend may look into. A branch that writes
into tensors, which torch takes without gradients alone, writes into copies, and the graph behind it
copies them back. Branches that change anything else, or whose results differ in more than their
values, break the graph before the call.

As in torch, all results have gradients where one input of either branch has, and each of these
inputs gets one: zeros, where the branch that ran has none for it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar


@dataclass(slots=True)
class Branch:
    """inputs: nodes that the module takes. made: the tensors in the result. written: what was
    there before, and the branch writes into."""

    inputs: list[fx.Node]
    module: fx.GraphModule
    made: list[TensorVar]
    result: Var
    written: list[TensorVar]

    def copy_written(self, everything: list[TensorVar]) -> None:
        """The module leaves these as they are, and returns copies as it would leave them."""
        graph = self.module.graph
        output = graph.output_node()
        places = [node for node in graph.nodes if node.op == "placeholder"]
        copies = []
        for var in everything:
            if var.node not in self.inputs:
                before = places[-1].next if places else next(iter(graph.nodes))
                with graph.inserting_before(before):
                    places.append(graph.placeholder(f"written_{len(places)}"))
                places[-1].meta["example_value"] = var.fake
                self.inputs.append(var.node)
        for var in everything:
            place = places[self.inputs.index(var.node)]
            with graph.inserting_after(places[-1]):
                copy = graph.call_method("clone", (place,))
            copy.meta["example_value"] = var.fake
            place.replace_all_uses_with(copy, lambda user, own=copy: user is not own)  # type: ignore[misc]
            copies.append(copy)
        output.args = ((*output.args[0], *copies),)  # type: ignore[misc]
        self.module.recompile()


class Choice:
    """Runs one of two graphs.

    modules: for True and for False; each returns a tuple of tensors. places: for each, which of the
    inputs (behind the predicate) it takes. It reads a value: what is around it is compiled without.
    """

    runs_alone = True

    def __init__(
        self, modules: tuple[fx.GraphModule, ...], places: tuple[list[int], ...], number: int
    ) -> None:
        self.modules, self.places = modules, places
        self.__name__ = self.__qualname__ = f"choice_{number}"
        self.__module__ = __name__

    def __call__(self, predicate: Any, *inputs: Any) -> Any:
        branch = 0 if predicate else 1
        given, learned = list(inputs), [at for at, x in enumerate(inputs) if is_learned(x)]
        if not learned or not torch.is_grad_enabled():
            return self.modules[branch](*(given[place] for place in self.places[branch]))
        together = ReachedTogether.apply(*(inputs[at] for at in learned))
        for at, x in zip(learned, together, strict=True):
            given[at] = x
        made = self.modules[branch](*(given[place] for place in self.places[branch]))
        for result in made:
            record(result, given[learned[0]])
        return made


class ReachedTogether(torch.autograd.Function):
    """The same tensors; where one of them gets a gradient, all others get zeros."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grads


class Recorded(torch.autograd.Function):
    """The first tensor itself, which gets a history: it does not depend on the second."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, learned: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(made)
        ctx.save_for_backward(learned)
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, torch.zeros_like(*ctx.saved_tensors)


def record(made: torch.Tensor, learned: torch.Tensor) -> None:
    if not made.requires_grad and (made.is_floating_point() or made.is_complex()):
        with torch.autograd._unsafe_preserve_version_counter(made):
            Recorded.apply(made, learned)


def is_learned(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


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
    first, second = traced
    record_all(tx, [node.meta["example_value"] for branch in traced for node in branch.inputs],
               [var.fake for branch in traced for var in branch.made])
    made, result = first.made, first.result
    if shape_of(result) != shape_of(second.result) or (
            list(map(facts, made)) != list(map(facts, second.made))):
        raise Break("call_of_unknown_function", "torch.cond with branches of different results")
    written = list(dict.fromkeys([*first.written, *second.written]))
    if written:
        for branch in traced:
            branch.copy_written(written)
    inputs = list(dict.fromkeys([*first.inputs, *second.inputs]))
    number = sum(isinstance(item.target, Choice) for item in trace.graph.graph.nodes)
    target = Choice(
        tuple(branch.module for branch in traced),
        tuple([inputs.index(place) for place in branch.inputs] for branch in traced),
        number,
    )
    copies = [tensor_state(trace).run_fake(torch.clone, var.fake) for var in written]
    fakes = (*(var.fake for var in made), *copies)
    call = trace.graph.operation("call_function", target, (node, *inputs), {}, fakes)
    for index, var in enumerate(made):
        place = (call, index)
        var.move_to(trace.graph.operation("call_function", operator.getitem, place, {}, var.fake))
        trace.world.constants.forget(var.fake)  # the other branch may hold something else
    for index, (var, fake) in enumerate(zip(written, copies, strict=True), len(made)):
        part = trace.graph.operation("call_function", operator.getitem, (call, index), {}, fake)
        trace.call(tx, torch.Tensor.copy_, var, TensorVar(part, fake))
    return result


def record_all(tx: Frame, inputs: list[Any], made: list[torch.Tensor]) -> None:
    """The results of the branches get the histories that `Choice` gives them."""
    learned = next(filter(is_learned, inputs), None)
    if learned is None or not torch.is_grad_enabled():
        return
    for fake in made:
        if fake._is_view() and not fake.requires_grad:
            raise Break("call_of_unknown_function", "torch.cond that gives a view without gradient")
        tensor_state(tx.trace).run_fake(record, fake, learned)


def trace_branch(tx: Frame, branch: Var, operands: Var) -> Branch:
    """One branch; its operations leave the graph."""
    trace = tx.trace
    args = operands.unpack(tx)
    mark, before = trace.graph.mark(), trace.effects.places()
    result = tx.call(branch, args, {})
    body = trace.graph.operations_after(mark)
    if trace.effects.targets_since(before):
        raise Break("call_of_unknown_function", "torch.cond with a branch that changes something")
    made: list[TensorVar] = []
    torch_functions.collect_tensors(result, made)
    if any(node.meta.get("checks") for node in body):
        raise Break("call_of_unknown_function", "torch.cond with a branch that checks a number")
    if not all(var.node in body for var in made) or len(set(made)) < len(made):
        raise Break("call_of_unknown_function", "torch.cond that gives an operand back")
    written = written_in(tx, body, args)
    inputs, module = trace.graph.cut_out(body, [var.node for var in made], first=[])
    return Branch(inputs, module, made, result, written)


def written_in(tx: Frame, body: dict[fx.Node, None], args: list[Var]) -> list[TensorVar]:
    """What was there before and the operations write into, each a whole tensor in memory of its
    own; a Break for all else, and where gradients are recorded, as torch refuses it there."""
    outside = dict.fromkeys(given for node in body for given in node.all_input_nodes
                            if given not in body and is_tensor(given))
    storages = [storage_of(node.meta["example_value"]) for node in outside]
    changed = {id(fake): fake for node in body for fake in node.meta.get("changed", ())}
    fakes = [fake for fake in changed.values() if storage_of(fake) in storages]
    if not fakes:
        return []
    known: list[TensorVar] = []
    torch_functions.collect_tensors(TupleVar(args), known)
    known += tensor_state(tx.trace).mutated
    found = [next((var for var in known if var.fake is fake), None) for fake in fakes]
    alone = all(storages.count(storage_of(fake)) == 1 for fake in fakes)
    if torch.is_grad_enabled() or None in found or not alone:
        raise Break("call_of_unknown_function", "torch.cond with a branch that changes something")
    return [var for var in found if var is not None]


def is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


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
