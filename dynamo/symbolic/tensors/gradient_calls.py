"""`torch.autograd.grad` and `backward` inside of the compiled function: one node of the graph.

The node gives the gradients; what `backward` adds to `grad` of the leaves are operations and
effects behind it. Where anything but the graph's own operations has a say (hooks, values with a
history from elsewhere), and where eager raises, the graph ends before the call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from dynamo.base.errors import Break
from dynamo.graph_operators.cuts import watch_gradient
from dynamo.graph_operators.gradients import gradients, gradients_of_leaves
from dynamo.graph_operators.kernel_launches import launches_recorded
from dynamo.guards.sources import AttrSource
from dynamo.shapes.fake import has_outer_history
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.tensors import torch_functions, transforms
from dynamo.symbolic.tensors.autograd_functions import hook_gradients
from dynamo.symbolic.tensors.checkpointing import Checkpointed
from dynamo.symbolic.tensors.hooks import watch
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar

NONE, NO, YES = ConstVar(None), ConstVar(False), ConstVar(True)
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
LEAF = "torch::autograd::AccumulateGrad"


@rule(torch.autograd.grad)
def grad(
    tx: Frame, outputs: Var, inputs: Var, grad_outputs: Var = NONE,
    retain_graph: Var = NONE, create_graph: Var = NO, only_inputs: Var = YES,
    allow_unused: Var = NONE, is_grads_batched: Var = NO, materialize_grads: Var = NO,
) -> Var:  # fmt: skip
    """`torch.autograd.grad(...)`."""
    if torch_functions.in_transform():
        given = (grad_outputs, retain_graph, create_graph, only_inputs, allow_unused,
                 is_grads_batched, materialize_grads)  # fmt: skip
        return transforms.on_tensors(tx, torch.autograd.grad, (outputs, inputs, *given), {})
    name = "torch.autograd.grad"
    wanted = tensors_of(inputs, name)
    try:
        found = compute(tx, name, outputs, grad_outputs, wanted, retain_graph, create_graph,
                        allow_unused, only_inputs, is_grads_batched, materialize_grads)
    except Break:
        watch_all(tx, wanted)
        raise
    return TupleVar(found)


def compute(
    tx: Frame, name: str, outputs: Var, grad_outputs: Var, wanted: list[TensorVar],
    retain_graph: Var, create_graph: Var, allow_unused: Var, only_inputs: Var,
    is_grads_batched: Var, materialize_grads: Var,
) -> list[Var]:  # fmt: skip
    """The gradients. Errors: Break, before anything is changed."""
    if is_grads_batched.truth(tx) or not only_inputs.truth(tx) or not wanted:
        raise Break("backward", f"{name} with special options")
    create = create_graph.truth(tx)
    keeps = create if is_none(retain_graph) else retain_graph.truth(tx)
    materialize = materialize_grads.truth(tx)
    unused = materialize if is_none(allow_unused) else allow_unused.truth(tx)
    sources = tensors_of(outputs, name)
    paths_to(tx, sources, name)
    given = given_gradients(tx, sources, grad_outputs, name)
    flags = [ConstVar(flag) for flag in (keeps, create, unused)]
    found = run(tx, gradients, [TupleVar([*sources]), TupleVar(given), TupleVar([*wanted]), *flags])
    if materialize:
        found = [tx.trace.call(tx, torch.zeros_like, var) if is_none(one) else one
                 for var, one in zip(wanted, found, strict=True)]
    return found


@rule(torch.Tensor.backward, TensorVar)
def tensor_backward(
    tx: Frame, tensor: Var, gradient: Var = NONE, retain_graph: Var = NONE,
    create_graph: Var = NO, inputs: Var = NONE,
) -> Var:  # fmt: skip
    """`tensor.backward(...)`."""
    return backward(tx, "backward()", tensor, gradient, retain_graph, create_graph, inputs)


@rule(torch.autograd.backward)
def autograd_backward(
    tx: Frame, tensors: Var, grad_tensors: Var = NONE, retain_graph: Var = NONE,
    create_graph: Var = NO, grad_variables: Var = NONE, inputs: Var = NONE,
) -> Var:  # fmt: skip
    """`torch.autograd.backward(tensors, ...)`."""
    name = "torch.autograd.backward"
    if not is_none(grad_variables):
        raise Break("backward", f"{name} with special options")
    return backward(tx, name, tensors, grad_tensors, retain_graph, create_graph, inputs)


def backward(
    tx: Frame, name: str, tensors: Var, grad_tensors: Var, retain_graph: Var,
    create_graph: Var, inputs: Var,
) -> Var:  # fmt: skip
    """Adds gradients to `grad` of the leaves. All that may end the graph is asked first."""
    inference = tensor_state(tx.trace).inference_mode
    if torch_functions.in_transform() or create_graph.truth(tx) or inference:
        raise Break("backward", f"{name} with special options")
    keeps = not is_none(retain_graph) and retain_graph.truth(tx)
    sources = tensors_of(tensors, name)
    leaves, copies = paths_to(tx, sources, name)
    if not is_none(inputs):
        wanted = tensors_of(inputs, name)
        if any(var not in leaves for var in wanted):
            raise Break("backward", f"{name} with inputs that are no leaves of its graph")
        leaves = list(dict.fromkeys(wanted))
    if not leaves or any(var.real is None or var.source is None for var in leaves):
        raise Break("backward", f"{name} to a tensor that is made in the function")
    before = [TensorVar.rules.get_attr(tx, var, "grad") for var in leaves]
    for old in before:
        if not is_none(old) and not (isinstance(old, TensorVar) and not old.fake.requires_grad):
            raise Break("backward", f"{name} to a gradient that is {old!r}")
    given = given_gradients(tx, sources, grad_tensors, name)
    args = [TupleVar([*sources]), TupleVar(given), TupleVar([*leaves])]
    found = run(tx, gradients_of_leaves, [*args, ConstVar(keeps), ConstVar(copies)])
    for leaf, old, new in zip(leaves, before, found, strict=True):
        if is_none(new):
            continue
        if isinstance(old, TensorVar):
            tx.trace.call(tx, torch.Tensor.add_, old, new)
        else:
            TensorVar.rules.set_attr(tx, leaf, "grad", new)
    return NONE


def is_none(var: Var) -> bool:
    return var.is_constant() and var.as_constant() is None


def tensors_of(var: Var, name: str) -> list[TensorVar]:
    """A tensor, or a list or tuple of tensors."""
    items: Sequence[Var] = var.items if isinstance(var, TupleVar | ListVar) else [var]
    tensors = [item for item in items if isinstance(item, TensorVar)]
    if len(tensors) != len(items) or not items:
        raise Break("backward", f"{name} of {var!r}")
    return tensors


def given_gradients(
    tx: Frame, outputs: list[TensorVar], given: Var, name: str
) -> list[Var]:
    """The gradients of the outputs: ones for a number. What eager refuses is left to it."""
    known: Sequence[Var] = [given] * len(outputs) if is_none(given) else [given]
    if isinstance(given, TupleVar | ListVar):
        known = given.items
    if len(known) != len(outputs):
        raise Break("backward", f"{name} with another number of gradients")
    found: list[Var] = []
    for output, grad in zip(outputs, known, strict=True):
        fake = output.fake
        if is_none(grad):
            if fake.dim() and fake.numel() != 1 or not fake.dtype.is_floating_point:
                raise Break("backward", f"{name} of {output!r} without a gradient")
            found.append(tx.trace.call(tx, torch.ones_like, output))
        elif isinstance(grad, TensorVar):
            if tuple(grad.fake.shape) != tuple(fake.shape) or grad.fake.dtype != fake.dtype:
                raise Break("backward", f"{name} with {grad!r} for {output!r}")
            if grad.fake.requires_grad:
                tensor_state(tx.trace).guard_history(grad)
            found.append(grad)
        else:
            raise Break("backward", f"{name} with {grad!r}")
    return found


def run(tx: Frame, function: Any, args: list[Var]) -> list[Var]:
    """The gradients that the node gives; where it fails, eager raises its own error."""
    try:
        with launches_recorded():
            result = torch_functions.put_in_graph(tx, function, args, {})
    except ObservedException as error:
        raise Break("backward", f"which fails: {error.value!r}") from error
    assert isinstance(result, TupleVar)
    return list(result.items)


# -- what else has a say -----------------------------------------------------------------------


def paths_to(
    tx: Frame, outputs: list[TensorVar], name: str
) -> tuple[list[TensorVar], bool]:
    """The leaves that lead to the outputs, and whether a function of the program lies on the way.

    Errors: Break where hooks may run there, or the way leads out of the graph.
    """
    trace = tx.trace
    if torch.is_anomaly_enabled():
        raise Break("backward", f"{name} while anomalies are looked for")
    if tensor_state(trace).watched or any(is_special(node) for node in trace.graph.graph.nodes):
        raise Break("backward", f"{name} in a graph with hooks")
    known = {id(var.fake): var for var in (*tensor_state(trace).tensor_inputs, *outputs)}
    leaves: dict[TensorVar, None] = {}
    functions = False
    for node in nodes_behind([var.fake for var in outputs]):
        if has_outer_history(node):
            raise Break("backward", f"{name} to a tensor that was computed before")
        functions |= isinstance(node, BackwardCFunction)
        if node.name() == LEAF:
            var = known.get(id(node.variable))
            leaves[var if var is not None else TensorVar(None, node.variable)] = None
    leaves.update((var, None) for var in outputs if var.fake.is_leaf and var.fake.requires_grad)
    if functions and trace.effects.has_outside(gradients=False):
        raise Break("backward", f"{name} by a function that may read what was changed")
    for var in (*outputs, *leaves):
        if var.source is not None and var.real is not None:
            tensor_state(trace).guard_history(var)
            refuse_hooks(tx, var, name)
    return list(leaves), functions


def is_special(node: Any) -> bool:
    """True for hooks of modules, and for a checkpoint that runs backward inside of backward."""
    target = node.target
    return target is hook_gradients or (isinstance(target, Checkpointed) and target.reentrant)


def refuse_hooks(tx: Frame, var: TensorVar, name: str) -> None:
    """Guards that a tensor from outside has no hooks."""
    for part in HOOKS:
        if getattr(var.real, part) is not None:
            raise Break("backward", f"{name} to a tensor with hooks")
        assert var.source is not None
        tx.trace.guard("CONST", AttrSource(var.source, part), None)


def nodes_behind(outputs: list[Any]) -> Collection[Any]:
    """The nodes of autograd's graph that lead to these tensors, in the same order in each process.
    """
    work = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = dict.fromkeys(work)
    while work:
        for node, _ in work.pop().next_functions:
            if node is not None and node not in seen:
                seen[node] = None
                work.append(node)
    return seen.keys()


def watch_all(tx: Frame, inputs: list[TensorVar]) -> None:
    """Each value of the graph that eager is asked for gradients of has its own place in autograd's
    graph."""
    for var in inputs:
        if var.node is not None and var.fake.requires_grad and not var.fake.is_leaf:
            watch(tx, var)


def watch_wanted(trace: Evaluation, outputs: Collection[Var], others: Collection[Var]) -> None:
    """Gradients of one result with respect to another, which backends give one node in autograd's
    graph: where the program is about to ask for them, the other one gets a place of its own.

    others: results that it may mean.
    """
    if any(node.target in (gradients, gradients_of_leaves) for node in trace.graph.graph.nodes):
        return  # recorded as a whole
    tensors = [var for var in outputs if isinstance(var, TensorVar) and var.node is not None]
    for var in tensors:
        fake = var.fake
        meant = var in tensor_state(trace).read_flags or var in others
        if not meant or fake.grad_fn is None or var in tensor_state(trace).watched:
            continue
        later = [other.fake for other in tensors if other is not var and other.fake.requires_grad]
        if fake.grad_fn in nodes_behind(later):
            trace.graph.mark_value(watch_gradient, var.node, storage_of(fake))
