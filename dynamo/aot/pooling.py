"""Before the cut, on a GPU: where the greatest element of a window lies takes one byte, not eight.

In: a joint graph, decomposed. Out: the same graph, where the backward of a max pooling reads the
place of each window's element inside of the plane through its place inside of the window, which is
what forward then saves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
Tensor = torch.Tensor
MOST = 127  # elements of a window that one byte tells apart
_POOL = aten.max_pool2d_with_indices.default
_BACKWARD = aten.max_pool2d_with_indices_backward.default
_within: list[None] = []  # while the operation itself is recorded


def _pair(value: Any) -> tuple[int, int]:
    numbers = [value] if isinstance(value, int) else [*value]
    return numbers[0], numbers[-1]


@contextlib.contextmanager
def _as_it_is() -> Iterator[None]:
    _within.append(None)
    try:
        yield
    finally:
        _within.pop()


def pool_backward(
    grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, places: Tensor,
) -> Any:
    """The same of places that have gone through one byte each. In 32 bits: a GPU divides these
    by a constant in a few steps."""
    size = _pair(kernel)
    if _within or size[0] * size[1] > MOST or x.shape[-1] * x.shape[-2] >= 2**31:
        return NotImplemented
    steps = _pair(stride) if stride not in ((), []) else size
    gaps, width = _pair(dilation), x.shape[-1]
    rows, columns = (
        torch.arange(count, dtype=torch.int32, device=x.device) * step - pad
        for count, step, pad in zip(places.shape[-2:], steps, _pair(padding), strict=True)
    )
    rows = rows.unsqueeze(-1)
    narrow = places.to(torch.int32)
    h, w = _quotient(narrow, width), torch.remainder(narrow, width)
    down, across = _quotient(h - rows, gaps[0]), _quotient(w - columns, gaps[1])
    saved = (down * size[1] + across).to(torch.int8)

    inside = saved.to(torch.int32)
    h = _quotient(inside, size[1]) * gaps[0] + rows
    w = torch.remainder(inside, size[1]) * gaps[1] + columns
    with _as_it_is():
        return _BACKWARD(
            grad, x, kernel, stride, padding, dilation, ceil_mode, (h * width + w).to(torch.int64))


def _quotient(value: Tensor, divisor: int) -> Tensor:
    return value if divisor == 1 else torch.div(value, divisor, rounding_mode="floor")


POOLS: Mapping[Any, Callable[..., Any]] = {_BACKWARD: pool_backward}


def reads_places(node: fx.Node) -> bool:
    """For which backward: on a GPU, and nothing else wants the places."""
    places: Any = node.args[7]
    pool = places.args[0] if places.op == "call_function" and places.args else None
    return (
        node.meta["val"].device.type != "cpu"
        and isinstance(pool, fx.Node) and pool.target is _POOL
        and all(user.target is _BACKWARD for user in places.users)
    )  # fmt: skip
