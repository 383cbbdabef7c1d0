"""A kernel that is compiled once, before others are: with it come what generated ones import, the
library of functions that they are linked with, and the assembler's version."""
# Triton reads this function, Python never runs it.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from inductor.codegen.triton import prelude_units as prelude_units
from inductor.codegen.triton.prelude import libdevice


@triton.jit
def first_kernel(out0, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out0 + x, libdevice.exp(tl.load(out0 + x)))
