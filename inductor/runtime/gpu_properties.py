"""The properties of the GPU that kernels are for.

In: a device. Out: `GpuProperties`, asked of the driver; what it does not tell is in the row of a
known device (`inductor/ir/gpus.py`), and of others the speed of GEMMs is measured once and kept
in the cache folder. Without a GPU, or with `config.gpu`, a row stands for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo.store.content import cache_store, make_key
from dynamo.store.gpu_facts import kind_of_gpu
from inductor.config import config
from inductor.ir.gpus import MEASURED, GpuProperties, described, known_device

SIDE = 4096  # of matrices whose GEMM is timed
ROUNDS = 5  # of which the best one counts; chosen, not measured
# What the library reached of the maker's figure on an H200: a measured figure is divided by it.
OF_MAKERS = 0.657
TRANSFERS = 2  # of a clock of memory
NEAR = 0.1  # part by which a row may differ from what the device says: rows are rounded


def properties_of(device: torch.device | None = None) -> GpuProperties:
    """The properties of a GPU, or of what stands for it; device: None for the current one.

    >>> properties_of(torch.device("cpu")).name
    'H200'
    >>> with config.patch(gpu="sm_80"):
    ...     properties_of().multiprocessors
    108
    """
    if config.gpu:  # also for what is on a CPU while a package for a GPU is made
        return described(config.gpu)
    if device is not None and device.type != "cuda" or not torch.cuda.is_available():
        return MEASURED
    index = None if device is None else device.index
    return _of_gpu(torch.cuda.current_device() if index is None else index)


def text_of_gpus() -> str:
    """All of them in their order, as part of a key."""
    return repr([properties_of(torch.device("cuda", n)) for n in range(torch.cuda.device_count())])


@functools.cache
def _of_gpu(number: int) -> GpuProperties:
    facts = torch.cuda.get_device_properties(number)
    return properties_from(facts, lambda: _cached_speed(number))


def properties_from(facts: Any, measure: Callable[[], float]) -> GpuProperties:
    """The properties of a device of which torch says these facts. measure: finds its operations a
    second of GEMMs, where no row has them; 0 where that can't be done now."""
    architecture = str(getattr(facts, "gcnArchName", "")).partition(":")[0]
    kind = architecture if architecture.startswith("gfx") else f"sm_{facts.major}{facts.minor}"
    count, bandwidth = facts.multi_processor_count, _bandwidth(facts)
    found = known_device(facts.name, kind)
    if found is None:
        base = described("gfx942" if kind.startswith("gfx") else kind).with_multiprocessors(count)
        found = replace(
            base, name=facts.name, kind=kind, cache=facts.L2_cache_size,
            memory=facts.total_memory, bandwidth=bandwidth or base.bandwidth,
            gemms=measure() or base.gemms)
    if count != found.multiprocessors:
        found = found.with_multiprocessors(count)
    # A model has variants with other memory, and may be shared out (MIG).
    found = replace(
        found, memory=_unless_near(found.memory, facts.total_memory),
        bandwidth=_unless_near(found.bandwidth, bandwidth))
    asked = {
        "shared": "shared_memory_per_block_optin", "warp": "warp_size",
        "registers": "regs_per_multiprocessor", "threads": "max_threads_per_block",
    }  # fmt: skip
    known = {ours: getattr(facts, theirs, 0) for ours, theirs in asked.items()}
    stated: dict[str, Any] = {name: value for name, value in known.items() if value}
    return replace(found, **stated)


def _unless_near(of_row: Any, stated: Any) -> Any:
    """What the driver says, if it says so, and is not what the row rounds."""
    return stated if stated and abs(stated - of_row) > NEAR * of_row else of_row


def _bandwidth(facts: Any) -> float:
    """Bytes a second by the clock (kHz) and the width (bits) of the memory; 0 where torch does not
    tell them."""
    clock, width = (getattr(facts, f"memory_{name}", 0) for name in ("clock_rate", "bus_width"))
    return float(clock) * 1e3 * TRANSFERS * width / 8


def _cached_speed(number: int) -> float:
    store = cache_store()
    key = make_key("gpu", {"kind": kind_of_gpu(number), "torch": torch.__version__})
    if torch.cuda.is_current_stream_capturing() and store.values(key) is None:
        return 0.0
    return float(store.remembered(key, lambda: measured_gemms(torch.device("cuda", number))))


def measured_gemms(device: torch.device) -> float:
    """Operations a second of a large GEMM in half precision, as a maker would say them."""
    with _disable_current_modes(), torch.no_grad(), torch.cuda.device(device):
        left, right = (torch.ones(SIDE, SIDE, dtype=torch.float16, device=device) for _ in "lr")
        result = torch.empty_like(left)
        milliseconds = []
        for _ in range(ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.mm(left, right, out=result)
            end.record()
            end.synchronize()
            milliseconds.append(begin.elapsed_time(end))
    return 2.0 * SIDE**3 / (min(milliseconds) * 1e-3) / OF_MAKERS
