"""Modes that see torch functions, entered by the traced program, and the switches that turn
`__torch_function__` off.

They are of the trace alone: the program's code has answered by the time that the graph runs.
Where a trace would end inside of one, it is made again and ends before it is entered.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import CallSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.tensors.contexts import MAKERS, GraphContextVar
from dynamo.symbolic.tensors.state import tensor_state

SWITCHES: dict[str, tuple[Any, bool]] = {
    "DisableTorchFunctionSubclass": (torch._C.DisableTorchFunctionSubclass, False),
    "DisableTorchFunction": (torch._C.DisableTorchFunction, False),
    "_EnableTorchFunction": (torch._C._EnableTorchFunction, True),  # type: ignore[attr-defined]
}


class SwitchVar(GraphContextVar):
    """`torch._C.DisableTorchFunctionSubclass()`, made in the trace."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, (), in_trace=False)
        self.before: tuple[bool, list[Any]] = (True, [])

    def python_type(self) -> type:
        return SWITCHES[self.kind][0]  # type: ignore[no-any-return]

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        state = tensor_state(tx.trace)
        tx.trace.effects.tick()
        if name == "__enter__" and self.step is None:
            self.step = tx.step_at_start
            self.before = state.functions_enabled, state.function_modes
            state.functions_enabled = SWITCHES[self.kind][1]
            if self.kind == "DisableTorchFunction":  # modes as well
                state.function_modes = []
            return self
        if name == "__exit__" and self.step is not None:
            self.step = None
            state.functions_enabled, state.function_modes = self.before
            return ConstVar(None)
        raise Break("call_of_unknown_function", f"{name} of {self!r}")


def register(kind: str, made_by: Any) -> None:
    MAKERS[kind] = made_by

    @rule(made_by)
    def make_switch(tx: Frame) -> Var:
        return SwitchVar(kind)


for _kind, (_made_by, _) in SWITCHES.items():
    register(_kind, _made_by)


@rule(torch._C._push_on_torch_function_stack)  # type: ignore[attr-defined]
def push(tx: Frame, mode: Var) -> Var:
    if not isinstance(mode, ObjectVar):
        raise Break("call_of_unknown_function", f"{mode!r} as a mode")
    mode.python_type()
    tx.trace.effects.tick()
    tensor_state(tx.trace).function_modes.append((mode, tx.step_at_start))
    return ConstVar(None)


@rule(torch._C._pop_torch_function_stack)  # type: ignore[attr-defined]
def pop(tx: Frame) -> Var:
    modes = tensor_state(tx.trace).function_modes
    if not modes or modes[-1][1] is None:
        raise Break("call_of_unknown_function", "a mode from outside is left")
    tx.trace.effects.tick()
    return modes.pop()[0]  # type: ignore[no-any-return]


@functools.lru_cache(100)
def reader(number: int) -> Any:
    """What reads the number-th mode around a frame."""
    return functools.partial(torch._C._get_function_stack_at, number)  # type: ignore[attr-defined]


def enter_outer_modes(trace: Evaluation, modes: list[Any]) -> None:
    """Those around the frame: the guard of torch's global state knows their classes."""
    for number, mode in enumerate(modes):
        place = CallSource(ObjectSource(reader(number), f"mode {number} of torch functions"))
        var = trace.wrap(mode, place)
        if not isinstance(var, ObjectVar):
            raise Break("call_of_unknown_function", f"{var!r} as a mode")
        tensor_state(trace).function_modes.append((var, None))


@rule(torch._C._is_torch_function_mode_enabled)
def is_mode_enabled(tx: Frame) -> Var:
    """Those of default devices do not count in the trace."""
    outside = torch._C._is_torch_function_mode_enabled()
    if outside:
        raise Break("call_of_unknown_function", "torch function mode")
    return ConstVar(bool(tensor_state(tx.trace).function_modes))


@rule([torch._C._is_torch_function_enabled])
def is_enabled(tx: Frame) -> Var:
    """Guarded with the thread's state."""
    return ConstVar(tensor_state(tx.trace).functions_enabled)
