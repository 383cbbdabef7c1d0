"""The generated C++ in the order in which a person reads it.

In: the schedule, the printed kernels and the wrapper. Out: text: kernels first, each below the
lines of the program that it computes, then the wrapper, and last the prelude.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from inductor.codegen.cpp.kernel import KernelSource
from inductor.codegen.cpp.prelude import prelude_for
from inductor.scheduler.schedule import Kernel, Schedule


def readable_code(schedule: Schedule, sources: Sequence[KernelSource], wrapper: str) -> str:
    """See the top of the file."""
    by_name = {kernel.name: kernel for kernel in schedule.kernels()}
    texts = [kernel.text for kernel in sources]
    parts = [
        (_head(by_name[kernel.name]) if kernel.name in by_name else "") + kernel.text
        for kernel in sources
    ]
    return "\n".join([
        *parts, "// the wrapper: runs the kernels and calls the libraries", wrapper,
        "// the prelude: the same for all graphs", prelude_for([*texts, wrapper])])


def _head(kernel: Kernel) -> str:
    """Comments: what the kernel computes, and for which lines."""
    lines = [f"// {kernel.name}: {', '.join(kernel.origins.nodes)}"]
    for place in kernel.origins.lines:
        file, _, number = place.rpartition(":")
        text = linecache.getline(file, int(number)).strip()
        lines.append(f"//   {place}" + (f": {text}" if text else ""))
    return "\n".join(lines) + "\n"
