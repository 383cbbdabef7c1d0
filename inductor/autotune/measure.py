"""How long calls take on a GPU.

In: a callable and several sets of its arguments, together larger than the device's second-level
cache, so that what a call reads does not lie there from the call before. Out: microseconds for one
call, recorded as a CUDA graph, so that the time of the CPU does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor.ir.graph import Layout
from inductor.runtime.gpu_properties import properties_of

# Chosen, not measured: the best of so many rounds of so many calls counts.
ROUNDS = 3
FEWEST_CALLS = 8
COLD_BYTES = 1 << 27  # at least, and more than caches hold
MOST_SETS = 8


def time_calls(call: Callable[..., Any], sets: Sequence[Sequence[torch.Tensor]]) -> float:
    """Microseconds of one call: the least of some rounds over all sets."""
    times = math.ceil(FEWEST_CALLS / len(sets))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(*sets[0])
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(times):
                for arguments in sets:
                    call(*arguments)
        finally:
            graph.capture_end()
        graph.replay()
        least = min(_replay(graph) for _ in range(ROUNDS))
    stream.synchronize()
    return least / (times * len(sets)) * 1e3


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def uncached_bytes(device: torch.device) -> int:
    """So many that little of them is still in a cache when all were touched."""
    cache = 0 if device.type == "cpu" else properties_of(device).cache
    return max(COLD_BYTES, 2 * cache)


def random_sets(layouts: Sequence[Layout]) -> list[list[torch.Tensor]]:
    """Sets of tensors with these layouts: noise, and zeros where it could be an index. The
    program's random numbers stay what they are."""
    size = sum(layout.storage_elements() * layout.dtype.itemsize for layout in layouts)
    sources = {layout.device: torch.Generator(layout.device) for layout in layouts}
    cold = max(map(uncached_bytes, sources), default=COLD_BYTES)
    count = max(1, min(MOST_SETS, cold // max(size, 1) + 1))
    return [[_random(each, sources[each.device]) for each in layouts] for _ in range(count)]


def _random(layout: Layout, source: torch.Generator) -> torch.Tensor:
    count = max(layout.storage_elements(), 1)
    whole = torch.zeros(count, dtype=layout.dtype, device=layout.device)
    if layout.dtype.is_floating_point and layout.dtype.itemsize > 1:
        whole.normal_(generator=source)
    return whole.as_strided(layout.size, layout.stride, layout.offset)
