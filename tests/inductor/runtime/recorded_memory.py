"""A recorder that needs no GPU: it runs the call again on memory that it treats as a CUDA graph does.

A pool is an array of bytes. A recording takes what nobody holds for its own, and at each run it
overwrites all of that, but for what it is told to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from inductor.runtime.recorder import Pool, Recorded, is_dense, over, span

Tensor = torch.Tensor
SIZE = 1 << 16
ALIGNMENT = 64
GARBAGE = 255


def borrowed(address: int, nbytes: int, tensor: Tensor, offset: int) -> Tensor:
    """A tensor of that kind over memory of somebody else."""
    storage = torch._C._construct_storage_from_data_pointer(address, tensor.device, nbytes)
    return torch.empty(0, dtype=tensor.dtype).set_(storage, offset, tensor.size(), tensor.stride())


def same(tensor: Tensor) -> Tensor:
    """The memory of a tensor, which may be gone later."""
    storage = tensor.untyped_storage()
    return borrowed(storage.data_ptr(), storage.nbytes(), tensor.detach(), tensor.storage_offset())


class Memory:
    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.bytes = torch.zeros(SIZE, dtype=torch.uint8)
        self.blocks: list[tuple[int, int, StorageWeakRef]] = []
        self.most = 0

    def used(self) -> list[tuple[int, int]]:
        self.blocks = [block for block in self.blocks if not block[2].expired()]
        return sorted((begin, end) for begin, end, _ in self.blocks)

    def new(self, nbytes: int, tensor: Tensor, offset: int = 0) -> Tensor:
        """A tensor in a block that is in use as long as its storage lives."""
        begin = 0
        for start, end in self.used():
            if start - begin >= nbytes:
                break
            begin = max(begin, -(-end // ALIGNMENT) * ALIGNMENT)
        assert begin + nbytes <= SIZE, "the pool is full"
        self.most = max(self.most, begin + nbytes)
        made = borrowed(self.bytes.data_ptr() + begin, nbytes, tensor, offset)
        self.blocks.append((begin, begin + nbytes, StorageWeakRef(made.untyped_storage())))
        return made


class FakeRecorder:
    """Runs the call again on the recorded memory, as a CUDA graph would."""

    def __init__(self) -> None:
        self.stream: int | None = 7
        self.here = True  # inputs lie on the device
        self.recorded = self.replayed = 0
        self.error: Exception | None = None
        self.copied: list[int] = []

    def place(self) -> tuple[str, int] | None:
        return None if self.stream is None else ("test", self.stream)

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        return self.here

    def record(
        self, call: Callable[..., Any], inputs: Sequence[Tensor], copied: Sequence[int],
        pool: Pool, again: bool,
    ) -> Recorded:  # fmt: skip
        if again:
            call(*inputs)
        if self.error is not None:
            raise self.error
        self.recorded += 1
        self.copied = list(copied)
        memory = pool.handle = pool.handle or Memory()
        spared = memory.used()
        filled = {}
        for n in copied:
            shape = inputs[n].detach() if is_dense(inputs[n]) else inputs[n].new_empty(span(inputs[n]))
            filled[n] = memory.new(shape.untyped_storage().nbytes() or 1, shape)
        given = tuple(
            over(filled[n], x) if n in filled else x.detach() for n, x in enumerate(inputs)
        )
        read = [same(x) for x in given]
        outputs = _results(call, given, memory)
        places = [same(x) if isinstance(x, Tensor) else x for x in outputs]

        def run() -> None:
            self.replayed += 1
            values = [_copy(x) if n in filled else x for n, x in enumerate(read)]
            before = 0
            for begin, end in [*spared, (memory.most, memory.most)]:
                memory.bytes[before:begin] = GARBAGE
                before = end
            for place, value in zip(places, call(*values), strict=True):
                if isinstance(place, Tensor) and place.data_ptr() != value.data_ptr():
                    with torch.inference_mode():
                        _flat(place).copy_(_flat(value))

        return Recorded(run, filled, given, outputs)


def _results(call: Callable[..., Any], given: Sequence[Tensor], memory: Memory) -> tuple[Any, ...]:
    """Memory for the results; nothing of it is computed yet."""
    clones = [_copy(same(x)) for x in given]
    owners = {x.untyped_storage()._cdata: n for n, x in enumerate(clones)}
    known: dict[int, Any] = {}
    found: list[Any] = []
    values = call(*clones)
    for n, value in enumerate(values):
        before = [m for m in range(n) if values[m] is value]
        if before:
            found.append(found[before[0]])
            continue
        if not isinstance(value, Tensor):
            found.append(value)
            continue
        storage = value.untyped_storage()
        owner = owners.get(storage._cdata)
        if owner is not None:
            found.append(given[owner].as_strided(value.size(), value.stride()))
        elif storage._cdata in known:
            found.append(torch.empty(0, dtype=value.dtype).set_(
                known[storage._cdata], value.storage_offset(), value.size(), value.stride()))
        else:
            found.append(memory.new(storage.nbytes(), value.detach(), value.storage_offset()))
            known[storage._cdata] = found[-1].untyped_storage()
    return tuple(found)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.as_strided((span(tensor),), (1,))


def _copy(tensor: Tensor) -> Tensor:
    """With the same strides."""
    return _flat(tensor).clone().as_strided(tensor.size(), tensor.stride())
