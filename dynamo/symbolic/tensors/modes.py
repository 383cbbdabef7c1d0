"""Torch's thread-local modes: what the program sets is set while tracing, in the graph, and after.

While tracing, so that fake tensors see it; in the graph, so that its operations do; and as an
effect, so that it holds when the trace ends inside the mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functorch

from dynamo.base.errors import Break
from dynamo.graph_operators.cuts import runs_alone
from dynamo.guards.sources import CallSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import foldable, rule
from dynamo.symbolic.core.var import Var

# Setting twice is setting once: these may be both a node and an effect.
SETTERS: tuple[Callable[..., Any], ...] = (
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
    torch._C._set_default_dtype,
    torch.clear_autocast_cache,  # in the graph, or weights that it changes keep their old casts
)
# What leaves the innermost level of torch.func, by its kind.
LEAVE_LEVEL: dict[Any, Callable[[], Any]] = {
    _functorch.TransformType.Vmap: _functorch._vmap_decrement_nesting,
    _functorch.TransformType.Grad: _functorch._grad_decrement_nesting,
    _functorch.TransformType.Jvp: _functorch._jvp_decrement_nesting,
    _functorch.TransformType.Functionalize: _functorch._func_decrement_nesting,
}
# Counters: only the effect counts, or a nesting would be counted twice.
COUNTERS: tuple[Callable[..., Any], ...] = (
    torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting,
)
# Older names of autocast's functions, each for one kind of device.
OF_ONE_DEVICE: dict[str, tuple[Callable[..., Any], str]] = {
    f"{verb}_autocast_{name}_{what}": (function, device)
    for name, device in (("cpu", "cpu"), ("gpu", "cuda"), ("xla", "xla"), ("ipu", "ipu"))
    for verb, what, function in (
        ("is", "enabled", torch.is_autocast_enabled), ("get", "dtype", torch.get_autocast_dtype),
        ("set", "enabled", torch.set_autocast_enabled), ("set", "dtype", torch.set_autocast_dtype))
}  # fmt: skip


def _constants(args: tuple[Var, ...]) -> tuple[Any, ...]:
    if not all(arg.is_constant() for arg in args):
        raise Break("not_a_constant", "mode of torch")
    return tuple(arg.as_constant() for arg in args)


def _register_setter(function: Callable[..., Any]) -> None:
    @rule(function)
    def set_mode(tx: Frame, *args: Var) -> Var:
        values = _constants(args)
        tx.trace.graph.operation("call_function", function, values, {}, None)
        tx.trace.effects.call(function, *values)
        function(*values)
        return ConstVar(None)


class CastDepth:
    """How deep autocast was nested when the trace began; made before the trace changes it."""

    def __init__(self, trace: Evaluation) -> None:
        self.at_start = nesting()


def _register_counter(function: Callable[..., Any]) -> None:
    @rule(function)
    def count(tx: Frame, *args: Var) -> Var:
        values = _constants(args)
        depth = tx.trace.state(CastDepth).at_start
        if function is torch.autocast_decrement_nesting:  # the outermost region forgets its casts
            source = CallSource(ObjectSource(nesting, "how deep autocast is nested"))
            tx.trace.guard("CONST", source, depth)
        tx.trace.effects.call(function, *values)
        return ConstVar(function(*values))


def _register_old_name(name: str, function: Callable[..., Any], device: str) -> None:
    old = getattr(torch, name, None)
    if old is None:
        return

    @rule(old)
    def for_device(tx: Frame, *args: Var) -> Var:
        return tx.trace.call(tx, function, ConstVar(device), *args)


@runs_alone
def set_deterministic(mode: bool, warn_only: bool) -> None:
    """In a graph: which kernels the operations behind it run."""
    torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)


def use_deterministic(mode: bool, warn_only: bool) -> None:
    """The same for Python behind the graph."""
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


@rule([torch.use_deterministic_algorithms, torch._C._set_deterministic_algorithms])
def use_deterministic_algorithms(
    tx: Frame, mode: Var, *, warn_only: Var = ConstVar(False)  # noqa: B008
) -> Var:
    values = _constants((mode, warn_only))
    set_now = torch._C._set_deterministic_algorithms
    tx.trace.run_real(lambda: set_now(values[0], warn_only=values[1]))
    tx.trace.graph.operation("call_function", set_deterministic, values, {}, None)
    tx.trace.effects.call(use_deterministic, *values)
    return ConstVar(None)


for _function in SETTERS:
    _register_setter(_function)
for _function in COUNTERS:
    _register_counter(_function)
for _name, (_function, _device) in OF_ONE_DEVICE.items():
    _register_old_name(_name, _function, _device)

foldable(
    [
        torch._C._get_privateuse1_backend_name,
        torch._C._are_functorch_transforms_active,
        torch.is_autocast_enabled,
        torch._C._is_any_autocast_enabled,
        torch.get_autocast_dtype,
        torch.is_autocast_cache_enabled,
        torch.Size.numel,
    ]
)


def nesting() -> int:
    """How deep autocast is nested in this thread."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def set_nesting(depth: int) -> None:
    """Makes autocast nested so deep; at no depth it forgets what it has cast."""
    for _ in range(nesting() - depth):
        torch.autocast_decrement_nesting()
    for _ in range(depth - nesting()):
        torch.autocast_increment_nesting()
    if not depth:
        torch.clear_autocast_cache()


def leave_levels(depth: int) -> None:
    """Leaves the levels of torch.func's transforms above this depth."""
    while _functorch.get_dynamic_layer_stack_depth() > depth:
        LEAVE_LEVEL[_functorch.peek_interpreter_stack().key()]()


def keep_modes() -> Callable[[], None]:
    """Remembers this thread's modes; the result sets them again (after an attempt to trace)."""
    grad = torch.is_grad_enabled()
    depth = nesting()
    cache = torch.is_autocast_cache_enabled()
    levels = _functorch.get_dynamic_layer_stack_depth()
    in_place = _functorch.get_inplace_requires_grad_allowed()
    forward = torch._C._is_fwd_grad_enabled()
    default = torch.get_default_dtype()
    deterministic = (torch.are_deterministic_algorithms_enabled(),
                     torch.is_deterministic_algorithms_warn_only_enabled())
    hooks = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    casts = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    ]

    def restore() -> None:
        leave_levels(levels)
        _functorch.set_inplace_requires_grad_allowed(in_place)
        torch._C._set_fwd_grad_enabled(forward)
        if hooks is None:
            torch._C._autograd._saved_tensors_hooks_enable()
        else:
            torch._C._autograd._saved_tensors_hooks_disable(hooks)
        torch._C._set_grad_enabled(grad)
        torch._C._set_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        if torch.get_default_dtype() != default:  # a setter that imports, as the program does
            torch._C._set_default_dtype(default)
        set_nesting(depth)
        torch.set_autocast_cache_enabled(cache)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)

    return restore
