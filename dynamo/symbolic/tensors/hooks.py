"""Hooks on gradients, and what else makes autograd's own record of a tensor matter.

A hook is registered after the graph, as an effect: nothing runs backward before. On a tensor that
the graph computes, the graph has a node at that place (`watch_gradient`), where backends cut it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils.hooks import RemovableHandle

from dynamo.base.errors import Break
from dynamo.graph_operators.cuts import watch_gradient
from dynamo.hook import Disabled
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.handles import HandleVar, HistoryVar
from dynamo.symbolic.tensors.modules import REGISTER_BEFORE, REGISTER_FORWARD, ModuleVar
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar

NO_GRADIENT = "cannot register a hook on a tensor that doesn't require gradient"
NOT_LEAF = "post accumulate grad hooks cannot be registered on non-leaf tensors"
NOT_RETAINED = "can't retain_grad on Tensor that has requires_grad=False"
REGISTER = Disabled(torch.Tensor.register_hook)
REGISTER_ON_LEAF = Disabled(torch.Tensor.register_post_accumulate_grad_hook)


def watch(tx: Frame, var: TensorVar) -> None:
    """The gradient of a tensor is looked at."""
    trace = tx.trace
    if torch_functions.in_transform():
        raise Break("call_of_unknown_function", "a hook on a gradient in a transform")
    tensor_state(trace).guard_history(var)
    if var.source is None or var in tensor_state(trace).mutated:
        trace.graph.mark_value(watch_gradient, var.node, storage_of(var.fake))
    tensor_state(trace).watched[var] = var.fake.grad_fn


def register(
    tx: Frame, function: Callable[..., Any], target: TensorVar, hook: Var
) -> HandleVar:
    """The handle of a hook that is registered after the graph."""
    watch(tx, target)
    handle = HandleVar(function, target, hook)
    if isinstance(target, TensorVar) and target.overrides:  # the real one would be asked again
        raise Break("tensor_subclass", f"a hook of {target!r}")
    handle.place = tx.trace.effects.register(function, target, hook, handle, True)
    return handle


@rule(torch.Tensor.register_hook, TensorVar)
def register_hook(tx: Frame, var: TensorVar, hook: Var) -> Var:
    if not var.fake.requires_grad:
        tx.trace.raise_exception(RuntimeError, NO_GRADIENT)
    node = var.fake.grad_fn
    alone = node is not None and len(node._input_metadata) == 1
    return register(tx, REGISTER_ALONE if alone else REGISTER, var, hook)


def register_alone(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
    """Registers a hook on what an operation with one result gives. Where a backend has made one
    node of many operations, that also tells of results to which no gradient comes, and so does one
    that takes this result among others."""
    node = tensor.grad_fn
    shares = isinstance(node, BackwardCFunction) or (
        node is not None and len(node._input_metadata) > 1)

    def with_gradient(gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else hook(gradient)

    return tensor.register_hook(with_gradient if shares else hook)


REGISTER_ALONE = Disabled(register_alone)


@rule(torch.Tensor.register_post_accumulate_grad_hook, TensorVar)
def register_post_accumulate_grad_hook(tx: Frame, var: TensorVar, hook: Var) -> Var:
    if not var.fake.requires_grad:
        tx.trace.raise_exception(RuntimeError, NO_GRADIENT)
    tensor_state(tx.trace).guard_history(var)
    if not var.fake.is_leaf:
        tx.trace.raise_exception(RuntimeError, NOT_LEAF)
    return register(tx, REGISTER_ON_LEAF, var, hook)


@rule(torch.nn.Module.register_forward_hook, ModuleVar)
def register_forward_hook(
    tx: Frame, module: ModuleVar, /, hook: Var, **options: Var
) -> Var | None:
    return register_on_module(tx, REGISTER_FORWARD, module, hook, options)


@rule(torch.nn.Module.register_forward_pre_hook, ModuleVar)
def register_forward_pre_hook(
    tx: Frame, module: ModuleVar, /, hook: Var, **options: Var
) -> Var | None:
    return register_on_module(tx, REGISTER_BEFORE, module, hook, options)


def register_on_module(
    tx: Frame, function: Callable[..., Any], module: ModuleVar, hook: Var,
    options: dict[str, Var],
) -> Var | None:  # fmt: skip
    """A hook of a module of the program: until the graph has run, calls in this trace run it."""
    if module.real is None or any(option.truth(tx) for option in options.values()):
        raise Break("call_of_unknown_function", "a hook with options, or on a new module")
    handle = HandleVar(function, module, hook)
    handle.place = tx.trace.effects.register(function, module, hook, handle, False)
    return handle


@rule(RemovableHandle.remove, ObjectVar)
def remove_hook(tx: Frame, handle: ObjectVar) -> Var:
    """Of a handle from outside: what it was registered on is anybody's guess."""
    raise Break("call_of_unknown_function", "remove() of the handle of a hook")


@rule(torch.Tensor.retain_grad, TensorVar)
def retain_grad(tx: Frame, var: TensorVar) -> Var:
    if not var.fake.requires_grad:
        tx.trace.raise_exception(RuntimeError, NOT_RETAINED)
    tensor_state(tx.trace).guard_history(var)
    if not var.fake.is_leaf:
        watch(tx, var)
        if isinstance(var, TensorVar) and var.overrides:
            raise Break("tensor_subclass", f"retain_grad of {var!r}")
        tx.trace.effects.register(torch.Tensor.retain_grad, var, None, None, False)
    return ConstVar(None)


@rule(torch.Tensor.requires_grad_, TensorVar)
def requires_grad(tx: Frame, var: TensorVar, /, *args: Var, **kwargs: Var) -> Var | None:
    """In a transform, of a tensor with a level: see `transforms`. Else a leaf appears in the graph,
    or the program's own tensor changes."""
    flag = next(iter((*args, *kwargs.values())), ConstVar(True))
    if torch_functions.in_transform() or not flag.is_constant() or set(kwargs) - {"requires_grad"}:
        return None
    return set_requires_grad(tx, var, flag)


def set_requires_grad(tx: Frame, var: TensorVar, flag: Var) -> Var:
    """`var.requires_grad_(flag)`. A view that no-grad mode made says that it is a leaf with a
    gradient before it is one: also there the call has an effect. No guard knows views from
    outside."""
    trace = tx.trace
    tensor_state(trace).guard_history(var)
    outside = var.source is not None and var.cls is torch.Tensor
    known = not (var.fake.is_leaf and (outside or var.fake._is_view()))
    if var.fake.requires_grad is flag.as_constant() and (known or not var.fake.requires_grad):
        if var.node is not None and var.fake.requires_grad:
            tensor_state(trace).read_flags.add(var)
        return var
    if type(flag.as_constant()) is not bool:
        raise Break("argument_mismatch", f"requires_grad_({flag!r})")
    if var in tensor_state(trace).watched:
        raise Break("hooked_tensor_changed", repr(var))
    if var.source is not None:
        tensor_state(trace).settings_of_grad.setdefault(var, trace.steps)
    result = torch_functions.call_in_graph(tx, torch._C.TensorBase.requires_grad_, [var, flag], {})
    trace.graph.mark().meta["written"] = (var.fake,)
    tensor_state(trace).note_mutation(var)
    return result


def history(tx: Frame, var: TensorVar) -> HistoryVar:
    """`var.grad_fn`."""
    return HistoryVar(var, lambda name, hook: register(tx, REGISTER_ON_NODE[name], var, hook))


def hook_node(name: str) -> Callable[..., Any]:
    """A function that registers a hook on the node of a tensor."""

    def hook_on_node(tensor: torch.Tensor, hook: Any) -> Any:
        return getattr(tensor.grad_fn, name)(hook)

    return Disabled(hook_on_node)


REGISTER_ON_NODE = {name: hook_node(name) for name in ("register_hook", "register_prehook")}
