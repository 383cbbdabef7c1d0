"""Results of eager's that are an accident: floats that no integer holds, as integers, which C++ does not define;
the sign of NaN, which no standard knows; gelu of infinity, which is NaN in a vector of eager's and infinite beside it,
and of a number for which 1 + erf is the rounding of nothing.

In: a call in eager. Out: whether it made one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Parts of names of operators that give integers, but make none of a float.
COUNTS = (
    "arg", "sort", "topk", "max", "min", "median", "mode", "kthvalue", "count", "search", "bucketize", "nonzero",
    "unique", "frexp", "multinomial", "dim",
)  # fmt: skip
# What inputs make a result of an operator such an accident.
ODD: dict[str, Callable[[torch.Tensor], bool]] = {
    "gelu": lambda x: bool((x.isinf() | (x < -5)).any()),
    "signbit": lambda x: bool(x.isnan().any()),
    "copysign": lambda x: bool(x.isnan().any()),
}


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [torch.tensor(x) if isinstance(x, float) else x for x in torch.utils._pytree.tree_leaves((args, kwargs))]
        before = [x.detach().clone() for x in given if _is_float(x)]
        result = func(*args, **(kwargs or {}))
        odd = next((odd for name, odd in ODD.items() if func.__name__.startswith(name)), None)
        self.seen |= odd is not None and any(map(odd, before))
        if not any(part in func.__name__ for part in COUNTS):
            for out in torch.utils._pytree.tree_leaves(result):
                if isinstance(out, torch.Tensor) and not (out.is_floating_point() or out.is_complex()):
                    if out.dtype is not torch.bool:
                        self.seen |= any(_beyond(x, out.dtype) for x in before)
        return result


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _beyond(x: torch.Tensor, dtype: torch.dtype) -> bool:
    info = torch.iinfo(dtype)
    x = x.double()
    return bool((~(x.isfinite() & (x > info.min - 1.0) & (x < info.max))).any())


def undefined(call: Callable[[], Any]) -> bool:
    """True where the call has such a result."""
    with _Watch() as watch:
        call()
    return watch.seen
