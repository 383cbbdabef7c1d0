"""CUDA graphs: the launches of one compiled graph, recorded once and started together.

In: the function of a generated wrapper (`GraphedCall`), and why a schedule must not be recorded
(`refusal`). Out: a callable with the same inputs and outputs. The rules (docs/inductor.md):

- The first calls run as they are. They say which inputs stay at one address (parameters mostly);
  those are read in place, all others are copied into memory of the recording.
- An input that was read in place and comes from another address is copied from then on, in a new
  recording; after a few recordings the graph runs without.
- Outputs are copied out, so a result is never overwritten by a later call. What a forward graph
  saves for backward is not: backward's recording reads it where it lies, and until it is no longer
  needed the forward runs as it is.
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
from torch.multiprocessing.reductions import StorageWeakRef

from dynamo.base import logs
from inductor import metrics
from inductor.ir.graph import ComputedBuffer, ExternKernel, LoopGraph, ViewRef
from inductor.runtime._launch import Allocation
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


def refusal(
    graph: LoopGraph, schedule: Schedule, slow: Sequence[str], values: int | None = None
) -> str:
    """Why a schedule is not recorded; empty if it may be. slow: kernels that run as ATen. values:
    see `GraphedCall`."""
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
    outputs = [layouts[o.buffer] for o in graph.outputs[:values] if isinstance(o, ViewRef)]
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
        stream: int = torch._C._cuda_getCurrentRawStream(self.device.index or 0)
        return stream

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
class Pairing:
    """What the recordings of a forward graph and of its backward share.

    addresses: of what the forward's recording keeps for backward, which reads it there. lease:
    alive as long as somebody may; until then the forward runs without its recording.
    """

    addresses: frozenset[int] = frozenset()
    lease: StorageWeakRef | None = None

    def is_busy(self) -> bool:
        return self.lease is not None and not self.lease.expired()


@dataclass(frozen=True, slots=True)
class Outputs:
    """The results of a recording. copied: positions of tensors that each call gets in new memory,
    which `new` makes; kept: positions of those that stay for backward; others: of those that are
    copied one by one."""

    values: tuple[Any, ...]
    copied: tuple[int, ...]
    new: tuple[Allocation, ...]
    kept: tuple[int, ...]
    others: tuple[int, ...]

    @staticmethod
    def of(values: Sequence[Any], seen: int | None) -> Outputs:
        """seen: how many results are not kept for backward; None: all."""
        end = len(values) if seen is None else seen
        tensors = [n for n, value in enumerate(values) if isinstance(value, torch.Tensor)]
        copied = tuple(n for n in tensors if n < end and _is_dense(values[n]))
        others = tuple(n for n in tensors if n < end and n not in copied)
        kept = tuple(n for n in tensors if n >= end)
        new = tuple(_allocation(values[n]) for n in copied)
        return Outputs(tuple(values), copied, new, kept, others)

    def take(self, pairing: Pairing) -> tuple[Any, ...]:
        """The results of the last run, for a caller."""
        results = list(self.values)
        if self.copied:
            fresh = [new() for new in self.new]
            torch._foreach_copy_(fresh, [results[n] for n in self.copied])
            for n, tensor in zip(self.copied, fresh, strict=True):
                results[n] = tensor
        for n in self.others:
            results[n] = _copy(results[n])
        if self.kept:
            first = self.kept[0]
            results[first] = _borrowed(results[first])
            pairing.lease = StorageWeakRef(results[first].untyped_storage())
        return tuple(results)


def _borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a storage of its own over the same memory, which tells when nobody has it."""
    storage = tensor.untyped_storage()
    other = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), tensor.device, storage.nbytes()
    )
    result = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    result.set_(other, tensor.storage_offset(), tensor.size(), tensor.stride())
    result.owner = tensor  # type: ignore[attr-defined]  # keeps the memory
    return result


@dataclass(slots=True)
class Recording:
    """addresses: of inputs that are read in place, of which `kept` lie where the forward keeps
    them; copied: inputs with memory of their own."""

    addresses: dict[int, int]
    kept: frozenset[int]
    copied: dict[int, torch.Tensor]
    run: Callable[[], None]
    outputs: Outputs
    place: int
    dense: dict[int, torch.Tensor] = field(init=False)  # of `copied`, what fills its memory

    def __post_init__(self) -> None:
        self.dense = {n: memory for n, memory in self.copied.items() if _is_dense(memory)}

    def fill(self, inputs: Sequence[torch.Tensor]) -> None:
        """Copy what is not read in place."""
        if self.dense:
            torch._foreach_copy_(list(self.dense.values()), [inputs[n] for n in self.dense])
        if len(self.dense) < len(self.copied):
            for n in self.copied.keys() - self.dense.keys():
                _span(self.copied[n]).copy_(_span(inputs[n]))


@dataclass(slots=True)
class GraphedCall:
    """See the top of the file; call it with the graph's tensors.

    values: of a forward graph, how many results its caller sees; the others go to backward.
    """

    call: Callable[..., Any]
    recorder: Recorder
    pairing: Pairing = field(default_factory=Pairing)
    values: int | None = None
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
                recording.fill(inputs)
                recording.run()
                return recording.outputs.take(self.pairing)
        return self.call(*inputs)

    def _is_ready(self, inputs: Sequence[torch.Tensor], place: int) -> bool:
        """Whether there is a recording for these inputs; makes one if it is time to."""
        if self.off or (self.values is not None and self.pairing.is_busy()):
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
            kept = self._kept(inputs)
            if not moved.isdisjoint(recording.kept - kept):
                return False  # its forward ran without a recording
            self.moving |= moved - kept
        return self._record(inputs, place, self._kept(inputs))

    def _kept(self, inputs: Sequence[torch.Tensor]) -> frozenset[int]:
        """Inputs that the recording of the forward graph has kept."""
        addresses = self.pairing.addresses if self.values is None else ()
        return frozenset(n for n, x in enumerate(inputs) if x.data_ptr() in addresses)

    def _warm_up(self, addresses: list[int]) -> None:
        self.warm_ups += 1
        if not self.seen:
            self.seen = addresses
        pairs = enumerate(zip(self.seen, addresses, strict=True))
        self.moving |= {n for n, (old, new) in pairs if old != new}

    def _record(self, inputs: Sequence[torch.Tensor], place: int, kept: frozenset[int]) -> bool:
        self.recording = None
        self.recordings += 1
        moving = sorted(self.moving - kept)
        if self.recordings > MOST_RECORDINGS:
            return self._give_up("inputs keep moving")
        if sum(_span(inputs[n]).nbytes for n in moving) > MOST_COPIED:
            return self._give_up("moving inputs are large, and would be copied")
        try:
            with torch.inference_mode(False), torch.no_grad():
                copied = {n: _copy(inputs[n]) for n in moving}
                fixed = [copied.get(n, tensor) for n, tensor in enumerate(inputs)]
                run, found = self.recorder.record(self.call, fixed)
                outputs = Outputs.of(found, self.values)
        except RuntimeError as error:
            return self._give_up(f"recording failed: {error}")
        addresses = {n: t.data_ptr() for n, t in enumerate(inputs) if n not in copied}
        self.recording = Recording(addresses, kept, copied, run, outputs, place)
        if self.values is not None:
            kept_here = [outputs.values[n] for n in outputs.kept]
            self.pairing.addresses = frozenset(t.data_ptr() for t in kept_here if t.numel())
        metrics.count("cuda_graphs_recorded")
        logs.log("cudagraphs").emit(lambda: f"recorded; copied inputs: {moving}")
        return True

    def _give_up(self, reason: str) -> bool:
        self.off, self.recording = True, None
        if self.values is not None:
            self.pairing.addresses = frozenset()
        logs.log("cudagraphs").emit(f"given up: {reason}")
        return False


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first to its last element."""
    if tensor.numel() == 0:
        return tensor.flatten()
    steps = ((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.as_strided((sum(steps) + 1,), (1,))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory, each at a place of its own."""
    return tensor.numel() == 0 or torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _allocation(tensor: torch.Tensor) -> Allocation:
    """Makes tensors of its kind."""
    return Allocation(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, tensor.device)


def _copy(value: torch.Tensor) -> torch.Tensor:
    """A tensor with the same strides and contents in new memory."""
    return _span(value).clone().as_strided(value.size(), value.stride(), 0)
