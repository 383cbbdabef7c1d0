"""Stand-in for CUDA's math library when Triton runs in its interpreter (TRITON_INTERPRET=1).

The interpreter's tensors hold numpy arrays; each function computes with torch on the CPU, so that a
test compares with what eager computes there. Imports triton only when a function is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "atan2", "hypot", "copysign", "nextafter", "fmod", "pow", "exp", "exp2", "expm1", "log",
        "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "floor", "ceil",
        "trunc",
    )
} | {"rint": torch.round, "fast_dividef": torch.div, "fast_log2f": torch.log2}


class Libdevice:
    """`libdevice.exp(x)` and so on over the interpreter's tensors."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(name)
        return lambda *args: _apply(function, *args)


def _apply(function: Callable[..., torch.Tensor], *args: Any) -> Any:
    arrays = [torch.from_numpy(arg.handle.data.copy()) for arg in args]
    result = function(*arrays).numpy()
    first = max(args, key=lambda arg: len(arg.shape))
    handle = type(first.handle)(result, first.handle.dtype)
    kind = first.type
    if kind.is_block():
        kind = type(kind)(kind.scalar, list(result.shape))
    return type(first)(handle, kind)


libdevice = Libdevice()
