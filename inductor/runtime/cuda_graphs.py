"""CUDA graphs: the launches of one compiled graph, recorded once and started together.

In: the function of a generated wrapper (`GraphedCall`), and why a schedule must not be recorded
(`refusal`). Out: a callable with the same inputs and outputs. The rules (docs/inductor.md):

- The first calls run as they are. They say which inputs stay at one address (parameters mostly);
  those are read in place, all others are copied into memory of the recording.
- An input that was read in place and comes from another address is copied from then on, in a new
  recording; after a few recordings the graph runs without.
- Outputs are copied out, so a result is never overwritten by a later call.
- A call on another stream than the recorded one, or while somebody records, runs as it is.
- What draws random numbers, waits for the device, writes inputs or runs code that is not known is
  never recorded, and a recording that fails is never tried again.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dynamo.base import logs
from inductor import metrics
from inductor.ir.graph import ComputedBuffer, ExternKernel, LoopGraph, ViewRef
from inductor.scheduler.schedule import Kernel, Schedule

WARM_UP_CALLS = 2
MOST_RECORDINGS = 4
FEWEST_STEPS = 3  # a graph costs as much as so many launches
MOST_COPIED = 1 << 28  # bytes for each call
KNOWN = ("aten", "prims")
NON_BLOCKING = 1  # the stream does not wait for the default one
WAITS = (
    "nonzero", "item", "_local_scalar_dense", "unique", "masked_select", "index_put", "index",
    "bincount", "repeat_interleave", "histc", "linalg_", "_linalg_", "_embedding_bag", "equal",
    "embedding_dense_backward", "embedding_backward",
)  # beginnings of names of operators that may wait for the device
WAITING_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def refusal(graph: LoopGraph, schedule: Schedule, slow: Sequence[str]) -> str:
    """Why a schedule is not recorded; empty if it may be. slow: kernels that run as ATen."""
    if graph.device.type != "cuda":
        return f"no CUDA graphs on {graph.device}"
    tensors = [b for b in (*graph.inputs, *graph.constants) if b is not None]
    if any(buffer.layout.device != graph.device for buffer in tensors):
        return "an input is on another device"
    if any(isinstance(node, ComputedBuffer) and (node.mutates or "").startswith(("arg", "const"))
           for node in graph.nodes):
        return "an input is written"
    if slow:
        return f"{slow[0]} runs as ATen operators"
    for step in schedule.steps:
        if isinstance(step, ExternKernel):
            why = _extern_refusal(step)
            if why:
                return why
    if sum(isinstance(step, (Kernel, ExternKernel)) for step in schedule.steps) < FEWEST_STEPS:
        return "too few launches"
    layouts = graph.layouts()
    outputs = [layouts[o.buffer] for o in graph.outputs if isinstance(o, ViewRef)]
    if sum(layout.numel() * layout.dtype.itemsize for layout in outputs) > MOST_COPIED:
        return "its outputs are large, and would be copied"
    return ""


def _extern_refusal(step: ExternKernel) -> str:
    target = step.target
    name = target._schema.name.split("::")[1]
    if target.namespace not in KNOWN:
        return f"{target} is not known"
    if torch.Tag.nondeterministic_seeded in target.tags and _argument(step, "dropout_p") != 0:
        return f"{target} draws random numbers"
    if any(tag in target.tags for tag in WAITING_TAGS):
        return f"{target} waits for the device"
    if step.mutates:
        return f"{target} writes {step.mutates[0]}"
    if name.startswith(WAITS):
        return f"{target} may wait for the device"
    return ""


def _argument(step: ExternKernel, name: str) -> Any:
    """The value of an argument of a call; None if there is no such."""
    for position, argument in enumerate(step.target._schema.arguments):
        if argument.name == name:
            if position < len(step.args):
                return step.args[position]
            return dict(step.kwargs).get(name, argument.default_value)
    return None


class Recorder(Protocol):
    """What a `GraphedCall` needs of the device."""

    def place(self) -> int | None:
        """Which stream is current; None while it is being recorded."""

    def record(
        self, call: Callable[..., Any], inputs: Sequence[torch.Tensor]
    ) -> tuple[Callable[[], None], Sequence[Any]]:
        """How to run the call again on the same memory, and its outputs."""


@dataclass(frozen=True, slots=True)
class CudaRecorder:
    """Records with `torch.cuda.CUDAGraph`, each recording in a memory pool of its own."""

    device: torch.device

    def place(self) -> int | None:
        if torch.cuda.is_current_stream_capturing():
            return None
        return torch.cuda.current_stream(self.device).cuda_stream

    def record(
        self, call: Callable[..., Any], inputs: Sequence[torch.Tensor]
    ) -> tuple[Callable[[], None], Sequence[Any]]:
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        call(*inputs)  # once more, so that nothing is set up while recording
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(_new_stream(self.device)):
            gc.disable()
            try:
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    outputs = call(*inputs)
                finally:
                    graph.capture_end()
            finally:
                if collecting:
                    gc.enable()
        torch.cuda.synchronize(self.device)
        return graph.replay, outputs


def _new_stream(device: torch.device) -> torch.cuda.ExternalStream:
    """A stream that nobody has used, and that is never given back.

    Torch keeps one workspace of cuBLAS for each stream, for anybody to free. On a new stream the
    recording makes its own, in the recording's memory, which lives as long as the recording does.
    """
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), NON_BLOCKING)
    if code != 0 or not handle.value:
        raise RuntimeError(f"no new stream: CUDA error {code}")
    return torch.cuda.ExternalStream(handle.value, device=device)


@dataclass(slots=True)
class Recording:
    """addresses: of inputs that are read in place; copied: inputs with memory of their own."""

    addresses: dict[int, int]
    copied: dict[int, torch.Tensor]
    run: Callable[[], None]
    outputs: Sequence[Any]
    place: int


@dataclass(slots=True)
class GraphedCall:
    """See the top of the file; call it with the graph's tensors."""

    call: Callable[..., Any]
    recorder: Recorder
    warm_ups: int = 0
    recordings: int = 0
    recording: Recording | None = None
    seen: list[int] = field(default_factory=list)  # addresses in the first call
    moving: set[int] = field(default_factory=set)  # inputs that are copied
    off: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self.off:
            return self.call(*inputs)
        place = self.recorder.place()
        if place is None:
            return self.call(*inputs)
        with self.lock, torch.no_grad():
            if self._is_ready(inputs, place):
                recording = self.recording
                assert recording is not None
                for position, memory in recording.copied.items():
                    _span(memory).copy_(_span(inputs[position]))
                recording.run()
                return tuple(_copy(output) for output in recording.outputs)
        return self.call(*inputs)

    def _is_ready(self, inputs: Sequence[torch.Tensor], place: int) -> bool:
        """Whether there is a recording for these inputs; makes one if it is time to."""
        if self.off:
            return False
        if self.warm_ups < WARM_UP_CALLS:
            self._warm_up([tensor.data_ptr() for tensor in inputs])
            return False
        recording = self.recording
        if recording is not None:
            if recording.place != place:
                return False
            known = recording.addresses
            moved = {n for n, address in known.items() if inputs[n].data_ptr() != address}
            if not moved:
                return True
            self.moving |= moved
        return self._record(inputs, place)

    def _warm_up(self, addresses: list[int]) -> None:
        self.warm_ups += 1
        if not self.seen:
            self.seen = addresses
        pairs = enumerate(zip(self.seen, addresses, strict=True))
        self.moving |= {n for n, (old, new) in pairs if old != new}

    def _record(self, inputs: Sequence[torch.Tensor], place: int) -> bool:
        self.recording = None
        self.recordings += 1
        if self.recordings > MOST_RECORDINGS:
            return self._give_up("inputs keep moving")
        if sum(_span(inputs[n]).nbytes for n in self.moving) > MOST_COPIED:
            return self._give_up("moving inputs are large, and would be copied")
        try:
            with torch.inference_mode(False), torch.no_grad():
                copied = {n: _copy(inputs[n]) for n in sorted(self.moving)}
                fixed = [copied.get(n, tensor) for n, tensor in enumerate(inputs)]
                run, outputs = self.recorder.record(self.call, fixed)
        except RuntimeError as error:
            return self._give_up(f"recording failed: {error}")
        addresses = {n: t.data_ptr() for n, t in enumerate(inputs) if n not in copied}
        self.recording = Recording(addresses, copied, run, outputs, place)
        metrics.count("cuda_graphs_recorded")
        logs.log("cudagraphs").emit(lambda: f"recorded; copied inputs: {sorted(copied)}")
        return True

    def _give_up(self, reason: str) -> bool:
        self.off, self.recording = True, None
        logs.log("cudagraphs").emit(f"given up: {reason}")
        return False


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first to its last element."""
    if tensor.numel() == 0:
        return tensor.flatten()
    steps = ((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.as_strided((sum(steps) + 1,), (1,))


def _copy(value: Any) -> Any:
    """A tensor with the same strides and contents in new memory; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return _span(value).clone().as_strided(value.size(), value.stride(), 0)
