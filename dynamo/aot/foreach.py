"""Decompositions of functions of lists (`torch._foreach_*`).

Each tensor gets an operation of its own, which a loop compiler fuses with what is done to the same
tensor before and behind it. What is then done to many tensors in the same way is one launch again
(`inductor/scheduler/lists.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Lists = Callable[..., Any]

UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "pow")
# What eager calls for a number, and for a tensor.
BOUNDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "maximum": (torch.clamp_min, torch.maximum), "minimum": (torch.clamp_max, torch.minimum),
    "clamp_min": (torch.clamp_min, torch.maximum), "clamp_max": (torch.clamp_max, torch.minimum),
}  # fmt: skip


def _each(function: Callable[..., Any], lists: int) -> Lists:
    """The function for each place of the first `lists` arguments; the others are for all."""

    def call(*args: Any, **options: Any) -> Any:
        columns: Sequence[Sequence[Any]] = args[:lists]
        return [function(*row, *args[lists:], **options) for row in zip(*columns, strict=True)]

    return call


def _by_tensor(function: Callable[..., Any]) -> Lists:
    """The function of each tensor and one that is for all. The value comes first in torch's sums,
    whose factor is for the other one."""

    def call(first: Any, other: Any, **options: Any) -> Any:
        return [function(x, other, **options) for x in first]

    return call


def _quotient(x: Any, number: Any) -> Any:
    """Kernels on a GPU divide floats by a list of numbers; with a single number, and elsewhere,
    they multiply with its reciprocal. This overload stands for the former: see `div` in
    `inductor/lowering/pointwise.py`."""
    return torch.ops.aten.div.Scalar(x, number) if x.is_floating_point() else torch.div(x, number)


def _power_of_number(base: Any, exponents: Any) -> Any:
    return [torch.pow(base, exponent) for exponent in exponents]


def _product(function: Callable[..., Any]) -> Lists:
    """`function(x, a, b, value=factor)` with a factor for each tensor."""

    def one(x: Any, a: Any, b: Any, factor: Any) -> Any:
        return function(x, a, b, value=factor)

    return _each(one, 4)


def _product_of_all(function: Callable[..., Any]) -> Lists:
    def call(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
        return _each(lambda *row: function(*row, value=value), 3)(x, a, b)

    return call


def _table() -> dict[str, Lists]:
    found: dict[str, Lists] = {}
    for name in UNARY:
        found[f"_foreach_{name}.default"] = _each(getattr(torch, name), 1)
    found["_foreach_zero.default"] = _each(torch.zeros_like, 1)
    found["_foreach_copy.default"] = _each(torch.ops.aten.copy.default, 2)
    for name in BINARY:
        function = getattr(torch, name)
        found[f"_foreach_{name}.Scalar"] = _each(function, 1)
        found[f"_foreach_{name}.List"] = found[f"_foreach_{name}.ScalarList"] = _each(function, 2)
    found["_foreach_div.ScalarList"] = _each(_quotient, 2)
    for name in ("add", "mul", "div"):
        found[f"_foreach_{name}.Tensor"] = _by_tensor(getattr(torch, name))
    found["_foreach_pow.ScalarAndTensor"] = _power_of_number
    for name, (by_number, by_tensor) in BOUNDS.items():
        found[f"_foreach_{name}.Scalar"] = _each(by_number, 1)
        found[f"_foreach_{name}.ScalarList"] = _each(by_number, 2)
        found[f"_foreach_{name}.List"] = _each(by_tensor, 2)
    found["_foreach_lerp.Scalar"] = _each(torch.lerp, 2)
    found["_foreach_lerp.List"] = found["_foreach_lerp.ScalarList"] = _each(torch.lerp, 3)
    for name in ("addcmul", "addcdiv"):
        function = getattr(torch, name)
        found[f"_foreach_{name}.Scalar"] = _product_of_all(function)
        found[f"_foreach_{name}.ScalarList"] = _product(function)
    return found


FOREACH = _table()
