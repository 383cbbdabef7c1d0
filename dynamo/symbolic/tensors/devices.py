"""`with torch.device(...)`: functions that make tensors get the device as an argument.

That is all that torch does in such a block, so the graph needs no trace of it. Where a trace would
end inside of one, it is made again and ends before the block.
"""

from __future__ import annotations

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.contexts import GraphContextVar
from dynamo.symbolic.tensors.state import tensor_state


class DeviceContextVar(GraphContextVar):
    """`torch.device(...)` as the context manager of one block."""

    def __init__(self, device: torch.device) -> None:
        super().__init__("device", (device,), in_trace=False)

    def entered(self) -> Var:
        return ConstVar(self.args[0])

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        trace = tx.trace
        trace.effects.tick()
        if name == "__enter__":
            self.step = tx.step_at_start
            tensor_state(trace).default_devices.append(self.args[0])
            return self.entered()
        tensor_state(trace).default_devices.pop()
        self.step = None
        return ConstVar(None)


def as_context(manager: Var) -> Var:
    """What a `with` block enters in the place of this value."""
    if isinstance(manager, ConstVar) and type(manager.value) is torch.device:
        return DeviceContextVar(manager.value)
    return manager


@rule(torch.get_default_device)
def get_default_device(tx: Frame) -> Var:
    """Guarded as part of the global state."""
    devices = tensor_state(tx.trace).default_devices
    if not devices:
        return tx.trace.constant(torch.get_default_device())
    if devices[-1].type not in ("cpu", "meta"):  # others get an index
        raise Break("call_of_unknown_function", "torch.get_default_device")
    return ConstVar(devices[-1])
