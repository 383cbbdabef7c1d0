"""`with torch.device(...)`: functions that make tensors get the device as an argument.

That is all that torch does in such a block, so the graph needs no trace of it. Where a trace would
end inside of one, it is made again and ends before the block.

`with torch.cuda.device(...)`, as libraries write it around kernels: where that is the current GPU
already, nothing happens. The current GPU is guarded where there are several; another one breaks
the graph.
"""

from __future__ import annotations

import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import CallSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import foldable, rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.contexts import GraphContextVar
from dynamo.symbolic.tensors.meshes import ValueVar
from dynamo.symbolic.tensors.state import tensor_state

NOTHING = ConstVar(None)


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


foldable([torch._utils._get_available_device_type])


@rule([torch.cuda.is_initialized])
def is_initialized(tx: Frame) -> Var | None:
    """It stays so."""
    return ConstVar(True) if torch.cuda.is_initialized() else None


@rule([torch.cuda._lazy_init])
def initialize(tx: Frame) -> Var | None:
    """Nothing, where it was done."""
    return ConstVar(None) if torch.cuda.is_initialized() else None


@rule([torch.cuda.get_device_properties])
def properties_of_gpu(tx: Frame, device: Var = NOTHING) -> Var | None:
    """An object whose attributes are constants, where all GPUs are of one kind: see
    `attributes.fold_about_gpus`."""
    kinds = {torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())}
    if len(kinds) != 1 or not isinstance(device, ConstVar):
        return None
    tx.trace.state(Unguarded).about_gpus = "torch.cuda.get_device_properties"
    return ValueVar(tx.trace, torch.cuda.get_device_properties(device.value), None)


@rule([torch.cuda.current_device])
def current_gpu(tx: Frame) -> Var | None:
    """A constant; None where there is no GPU, which raises."""
    if not torch.cuda.is_available():
        return None
    gpu = torch.cuda.current_device()
    tx.trace.state(Unguarded).about_gpus = "torch.cuda.current_device"
    if torch.cuda.device_count() > 1:
        current = ObjectSource(torch.cuda.current_device, "torch.cuda.current_device")
        tx.trace.guard("CONST", CallSource(current), gpu)
    return ConstVar(gpu)


def exchange(tx: Frame, index: Var) -> Var | None:
    """What it was before: the same."""
    if isinstance(index, ConstVar) and type(index.value) is int and index.value < 0:
        return ConstVar(-1)
    gpu = current_gpu(tx)
    if gpu is None:
        return None
    if not isinstance(index, ConstVar) or index.value != gpu.value:  # type: ignore[attr-defined]
        raise Break("call_of_unknown_function", f"torch.cuda.device({index!r})")
    return gpu


rule([torch.cuda._exchange_device, torch.cuda._maybe_exchange_device])(exchange)


@rule([torch.cuda.set_device])
def set_gpu(tx: Frame, device: Var) -> Var | None:
    """Nothing, where it is the current one."""
    if not isinstance(device, ConstVar):
        return None
    index = torch._utils._get_device_index(device.value, optional=True)
    return None if exchange(tx, ConstVar(index)) is None else ConstVar(None)
