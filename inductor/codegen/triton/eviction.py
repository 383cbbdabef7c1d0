"""Which accesses of a launch should not push others out of the second-level cache.

In: a `Launch` that loops over its columns. Out: for a stage, whether it is the last pass over rows
that an earlier stage has read, and over which buffers. What such a pass reads is not wanted again,
and what it stores would take the place of rows that other programs are about to read again; what
the passes before it read is wanted.
"""

from __future__ import annotations

from inductor.codegen.triton.launch import Launch, Stage
from inductor.ir.extent import hint_of

# Bytes that stay in the cache of the device measured anyway, until the next kernel reads them.
CACHED = 24 << 20
WIDE = 4  # bytes of an element
EVICT_LAST = 'eviction_policy="evict_last"'
EVICT_FIRST = 'eviction_policy="evict_first"'


def read_for_the_last_time(launch: Launch, stage: Stage) -> frozenset[str]:
    """The buffers that `stage` is the last to read, column by column, and not the first."""
    if launch.persistent or launch.tiled or stage not in launch.stages:
        return frozenset()
    at = launch.stages.index(stage)
    before = {name for each in launch.stages[:at] for name in _by_columns(each)}
    behind = {name for each in launch.stages[at + 1 :] for name in _by_columns(each)}
    bytes_of = {name: _bytes(launch, stage, name) for name in _by_columns(stage)}
    cached = launch.gpu.scaled_by_cache(CACHED)
    return frozenset(
        name for name in (bytes_of.keys() & before) - behind if bytes_of[name] > cached
    )


def reread(launch: Launch, stage: Stage) -> frozenset[str]:
    """The buffers of `stage` that a later one reads for the last time, but for those in half
    precision, of which more rows are on their way than the cache can keep (log-softmax of 4096 x
    30522 in bfloat16 took 186 us in place of 163; of 512 x 50257 in float32 69.9 for 71.2)."""
    if stage not in launch.stages:
        return frozenset()
    behind = launch.stages[launch.stages.index(stage) + 1 :]
    found = frozenset[str]().union(*(read_for_the_last_time(launch, each) for each in behind))
    wide = {op.buffer for op in stage.ops if op.name == "load" and op.dtype.itemsize >= WIDE}
    return found & _by_columns(stage) & wide


def _by_columns(stage: Stage) -> set[str]:
    return {
        op.buffer for op in stage.ops
        if op.name == "load" and op.index is not None and op.index.stride_of("r") != 0
    }  # fmt: skip


def _bytes(launch: Launch, stage: Stage, name: str) -> int:
    """Bytes of a buffer that all programs read; one row where rows share it."""
    found = 0
    for op in stage.ops:
        if op.name == "load" and op.buffer == name and op.index is not None:
            rows = hint_of(launch.rows) if op.index.stride_of("x") != 0 else 1
            found = max(found, rows * hint_of(stage.columns) * op.dtype.itemsize)
    return found
