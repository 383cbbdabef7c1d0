"""What the suite takes the processor for: kinds with other instructions, libraries said to be the fastest.

`DYNAMO_PROCESSOR="x86-64-v3 mkl" pytest ...` runs all tests so; `python -m tests.processors` says which descriptions
this machine can run, a line each.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from dynamo.store.content import cache_store
from dynamo.store.processor import kind_in
from inductor.driver.cpu import need_toolchain
from inductor.package.link import for_processor, needed_instructions

# AVX2; AVX-512 without and with products of bfloat16; AMX beside them. Ours and each library are the fastest.
DESCRIPTIONS = (
    "x86-64-v3 mkl", "x86-64-v3 ours", "x86-64-v4 onednn", "cooperlake ours", "sapphirerapids ours", "mkl", "onednn", "ours",
)


@functools.cache
def runs_here(description: str) -> bool:
    """Whether this machine has the instructions of the kind, and its compiler knows them."""
    kind = kind_in(description)
    if not kind:
        return True
    try:
        needed = needed_instructions(for_processor(need_toolchain(cache_store()), kind))
    except ValueError:
        return False
    return platform.machine() == "x86_64" and set(needed.split()) <= set(Path("/proc/cpuinfo").read_text().split())


if __name__ == "__main__":
    print(*filter(runs_here, DESCRIPTIONS), sep="\n")
