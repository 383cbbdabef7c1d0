"""What the backend did in this process: counts for tests and reports.

    >>> before = metrics.snapshot()
    >>> compiled(x)
    >>> metrics.snapshot()["kernels"] - before["kernels"]
    1
"""

from __future__ import annotations

import threading
from collections import Counter

_counts: Counter[str] = Counter()
_fallbacks: Counter[str] = Counter()
_lock = threading.Lock()

NAMES = (
    "graphs",  # compiled
    "kernels",  # generated loops nests
    "slow_kernels",  # of these: not by Triton but as ATen operators
    "nodes",  # buffers computed by kernels
    "fused_nodes",  # buffers that share a kernel with another
    "extern_calls",  # calls into ATen or another library
    "fallbacks",  # of these: operators without a lowering
    "not_by_processes",  # Triton kernels that the processes for them failed with
    "cuda_graphs_recorded",
    "cuda_graphs_given_up",  # graphs that run without for the rest
    "measured",  # ways to compute something that ran while compiling
    "measured_failed",  # those that did not run, or gave other results
    "libraries_built",
    "libraries_reused",
    "symbolic_graphs",  # captured for many sizes
    "sizes_compiled",  # of these: compiled for one set of sizes and numbers
    "sizes_bound",  # launchers made for sizes that a library holds for
    "graphs_reused",  # whole graphs that came from the cache
)


def count(name: str, by: int = 1) -> None:
    """Add to a count."""
    with _lock:
        _counts[name] += by


def count_fallback(operator: str) -> None:
    """Note that an operator fell back to ATen."""
    with _lock:
        _counts["fallbacks"] += 1
        _fallbacks[operator] += 1


def snapshot() -> dict[str, int]:
    """All counts; those of nothing yet are 0."""
    with _lock:
        return {name: _counts[name] for name in NAMES}


def fallbacks() -> dict[str, int]:
    """Operators that fell back to ATen, and how often."""
    with _lock:
        return dict(_fallbacks)


def reset() -> None:
    """Forget all counts."""
    with _lock:
        _counts.clear()
        _fallbacks.clear()


def __getattr__(name: str) -> int:
    """Counts by the names that tests of torch's Inductor use."""
    if name == "generated_kernel_count":
        return snapshot()["kernels"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
