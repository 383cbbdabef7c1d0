"""The memory that recordings share, and how a call is recorded on a GPU.

`Pool`: memory of recordings that run on one stream, one after the other. What one of them needs
while it runs is free for the next one; results that somebody holds are known (`Pool.slots`).
`CudaRecorder` records a call with `torch.cuda.CUDAGraph`; tests have one that needs no GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from inductor.runtime._launch import Slots

NON_BLOCKING = 1  # the stream does not wait for the default one
Place = tuple[Any, int]  # a device and a stream


@dataclass(slots=True, eq=False, weakref_slot=True)
class Pool:
    """handle, stream, graphs: the recorder's own. lock: of whoever records or replays."""

    slots: Slots = field(default_factory=Slots)
    lock: threading.Lock = field(default_factory=threading.Lock)
    handle: Any = None
    stream: Any = None
    graphs: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)


class Pools:
    """The pools that live: as long as a recording in them does."""

    def __init__(self) -> None:
        self._known: dict[Place, list[weakref.ref[Pool]]] = {}
        self._lock = threading.Lock()

    def at(self, place: Place) -> list[Pool]:
        """Those of a device and a stream, the oldest first."""
        with self._lock:
            known = self._known.get(place, [])
            return [pool for reference in known if (pool := reference()) is not None]

    def new(self, place: Place) -> Pool:
        """One more."""
        pool = Pool()
        with self._lock:
            known = [found for found in self._known.get(place, []) if found() is not None]
            self._known[place] = [*known, weakref.ref(pool)]
        return pool


@dataclass(frozen=True, slots=True)
class Recorded:
    """run: starts what was recorded. copied: the memory of inputs that are not read in place, flat
    where their elements do not fill it; given: the tensors that the call got; outputs: its results,
    in memory of the pool that is in use as long as they live."""

    run: Callable[[], Any]
    copied: dict[int, torch.Tensor]
    given: tuple[torch.Tensor, ...]
    outputs: tuple[Any, ...]


class Recorder(Protocol):
    """What a `GraphedCall` needs of the device."""

    def place(self) -> Place | None:
        """Which stream is current; None while it is being recorded."""

    def takes(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether these lie where a recording can read them."""

    def record(
        self, call: Callable[..., Any], inputs: Sequence[torch.Tensor], copied: Sequence[int],
        pool: Pool, repeatable: bool,
    ) -> Recorded:
        """Record a call in memory of a pool, of which it uses nothing that is in use. copied:
        inputs that get memory there. repeatable: the call may run once more before."""


@dataclass(frozen=True, slots=True)
class CudaRecorder:
    """Records with `torch.cuda.CUDAGraph`."""

    device: torch.device

    def place(self) -> Place | None:
        if torch.cuda.is_current_stream_capturing():
            return None
        index = self.device.index or 0
        return index, torch._C._cuda_getCurrentRawStream(index)

    def takes(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Some of ATen's kernels give seed and offset on the host, and on the device only while
        they are recorded. A recording would keep such a number, and write over memory of the host
        that somebody else has by then."""
        return all(tensor.device.type == self.device.type for tensor in inputs)

    def record(
        self, call: Callable[..., Any], inputs: Sequence[torch.Tensor], copied: Sequence[int],
        pool: Pool, repeatable: bool,
    ) -> Recorded:
        if repeatable:
            call(*inputs)  # so that nothing is set up while recording
        if pool.stream is None:
            pool.stream = _new_stream(self.device)
        if not pool.graphs:  # the allocator forgets a pool with its last graph
            pool.handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # what the calls before needed
        with torch.cuda.stream(pool.stream), _collection_off():
            try:
                graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                memory = {n: like(inputs[n]) for n in copied}
                given = tuple(
                    over(memory[n], tensor) if n in memory else tensor
                    for n, tensor in enumerate(inputs)
                )
                outputs = call(*given)
                graph.capture_end()
            except BaseException:
                self._abandon(graph, pool)
                raise
        pool.graphs.add(graph)
        torch._C._cuda_clearCublasWorkspaces()  # its workspace is free for other recordings
        torch.cuda.synchronize(self.device)
        return Recorded(graph.replay, memory, given, tuple(outputs))

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Pool) -> None:
        """End a recording that failed; where this fails as well, the allocator still takes the
        pool for being recorded into."""
        try:
            graph.capture_end()
        except RuntimeError:
            index = self.device.index or 0
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(index, pool.handle)
                torch._C._cuda_releasePool(index, pool.handle)


@contextlib.contextmanager
def _collection_off() -> Iterator[None]:
    """Garbage that frees memory of the device must not do so while it records."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _new_stream(device: torch.device) -> torch.cuda.ExternalStream:
    """A stream that nobody has used, and that is never given back.

    Torch keeps one workspace of cuBLAS for each stream. On a new stream the recording makes its
    own, in the recording's memory.
    """
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), NON_BLOCKING)
    if code != 0 or not handle.value:
        raise RuntimeError(f"no new stream: CUDA error {code}")
    return torch.cuda.ExternalStream(handle.value, device=device)


def like(tensor: torch.Tensor) -> torch.Tensor:
    """New memory for the elements of a tensor, flat if they do not fill it."""
    if is_dense(tensor):
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
    return torch.empty(span(tensor), dtype=tensor.dtype, device=tensor.device)


def over(memory: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes and strides over such memory."""
    return memory.as_strided(tensor.size(), tensor.stride(), 0)


def span(tensor: torch.Tensor) -> int:
    """How many elements lie from a tensor's first to its last one."""
    if tensor.numel() == 0:
        return 0
    steps = ((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    return sum(steps) + 1


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory, each at a place of its own."""
    return tensor.numel() == 0 or torch.ops.aten.is_non_overlapping_and_dense(tensor)
