"""Before Triton's PTX is assembled, packed additions in 16 bits are taken apart.

ptxas 12.8 and 12.9 assemble `add.s16x2` wrongly where one half of the sum is not used: of a
constant operand the other half becomes zero. LLVM makes such additions of arithmetic on small
indices, as in `(r + 1 - r) != 1` for r < 512; a part of the results was wrong.

    >>> unpacked("add.s16x2 \\t%r3, %r1, %r2;").count("add.s16 ")
    2
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

# Says the assembler's default; with it a kernel has another key in Triton's cache than without.
OPTIONS = "-O3"
_PACKED = re.compile(r"\badd\.[su]16x2\s+(%\w+),\s*(%\w+),\s*(%\w+|-?\w+)\s*;")
_HALVES = (
    "{{ .reg .b16 a0, a1, b0, b1, c0, c1; .reg .b32 b; mov.b32 {{a0, a1}}, {a}; mov.b32 b, {b};"
    " mov.b32 {{b0, b1}}, b; add.s16 c0, a0, b0; add.s16 c1, a1, b1; mov.b32 {c}, {{c0, c1}}; }}"
)


def unpacked(text: str) -> str:
    """The PTX with two additions for each packed one."""
    if "16x2" not in text:
        return text
    return _PACKED.sub(lambda found: _HALVES.format(c=found[1], a=found[2], b=found[3]), text)


def install_unpacking() -> None:
    """From now on for all that Triton compiles in this process, behind a hook that is there."""
    if "triton" not in sys.modules:  # it compiles nothing
        return
    from triton import knobs

    before = knobs.runtime.add_stages_inspection_hook
    if getattr(before, "unpacks", False):
        return

    def on_stages(*given: Any) -> tuple[str, str] | None:
        key = before(*given) if before is not None else None
        if not given:  # from Triton 3.8 on: by what a cached kernel is told from others
            first, second = key or ("", "")
            return f"{first} unpacked", f"{second} unpacked"
        stages = given[1]
        make: Callable[..., str] | None = stages.get("ptx")
        if make is not None:
            stages["ptx"] = lambda source, metadata: unpacked(make(source, metadata))
        return None

    on_stages.unpacks = True  # type: ignore[attr-defined]
    on_stages.before = before  # type: ignore[attr-defined]
    knobs.runtime.add_stages_inspection_hook = on_stages


def other_hooks() -> bool:
    """Whether something of this process's looks at what Triton compiles, or changes it."""
    if "triton" not in sys.modules:
        return False
    from triton import knobs

    stages = knobs.runtime.add_stages_inspection_hook
    if getattr(stages, "unpacks", False):
        stages = stages.before
    hooks = (stages, knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook,
             knobs.compilation.listener)
    return any(hook is not None for hook in hooks) or bool(knobs.compilation.instrumentation_mode)
