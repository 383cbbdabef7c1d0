"""`torch.tensor` of symbolic numbers, in operators that take symbols; fakes of ranges of symbolic
lengths.

In: the arguments of `torch.tensor` and its like. Out: the result. torch's own functions read the
numbers, which makes constants of them; here each is a tensor of its own, and they are stacked.
`torch.linspace` and its like are made when the program runs: here is only what they look like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from dynamo.graph_operators.cuts import RANGES, length_of

OPEN = (torch.SymInt, torch.SymFloat)
# Into these every int converts as in eager (what int32 can't hold is left to torch, which raises);
# narrower ones raise, or round in ways of their own.
DTYPES = (torch.int32, torch.int64, torch.float32, torch.float64)


def tensor(
    data: Any, *, dtype: torch.dtype | None = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> torch.Tensor:
    """`torch.tensor`."""
    made = _opened(data, dtype, device)
    if made is None or pin_memory:
        return torch.tensor(
            data, dtype=dtype, device=device, requires_grad=requires_grad, pin_memory=pin_memory)
    return made.requires_grad_() if requires_grad else made


def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """`torch.as_tensor`."""
    made = _opened(data, dtype, device)
    return torch.as_tensor(data, dtype=dtype, device=device) if made is None else made


def new_tensor(
    self: torch.Tensor, data: Any, *, dtype: torch.dtype | None = None, device: Any = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """`Tensor.new_tensor`."""
    made = _opened(data, dtype or self.dtype, device or self.device)
    if made is None:
        return self.new_tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
    return made.requires_grad_() if requires_grad else made


def closed(value: Any) -> Any:
    """A number instead of an open one."""
    return 1 if type(value) is torch.SymInt else 1.0 if type(value) is torch.SymFloat else value


def _range(function: Any) -> Callable[..., torch.Tensor]:
    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        """A fake of the function's result; what has no symbolic length is left to it."""
        length = length_of(function, args, kwargs)
        if type(length) is not torch.SymInt or "out" in kwargs or not length >= 1:
            return cast("torch.Tensor", function(*args, **kwargs))
        like = function(*map(closed, args), **{name: closed(arg) for name, arg in kwargs.items()})
        made = torch.empty(length, dtype=like.dtype, device=like.device)
        return made.requires_grad_() if like.requires_grad else made

    return run


CREATIONS: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.tensor: tensor, torch.as_tensor: as_tensor, torch.Tensor.new_tensor: new_tensor,
}  # fmt: skip
# In a trace only: when a graph is compiled, they have been made.
MADE_BEFORE: Mapping[Any, Callable[..., torch.Tensor]] = {name: _range(name) for name in RANGES}


def _opened(data: Any, dtype: torch.dtype | None, device: Any) -> torch.Tensor | None:
    """The tensor; None where no number is symbolic, or torch has to see what they are."""
    numbers = _flat(data)
    if numbers is None or not any(type(number) in OPEN for number in numbers):
        return None
    shape = torch.tensor(_closed(data), dtype=dtype, device="cpu")
    if shape.dtype not in DTYPES:
        return None
    ints = all(type(number) in (int, torch.SymInt) for number in numbers)
    if not (ints or shape.dtype.is_floating_point):
        return None
    if shape.dtype is torch.int32 and not all(-2**31 <= number < 2**31 for number in numbers):
        return None
    made = [torch.full((), number, dtype=shape.dtype, device=device) for number in numbers]
    return made[0] if shape.dim() == 0 else torch.stack(made).view(shape.shape)


def _flat(data: Any) -> list[Any] | None:
    """The numbers in nested lists; None with anything else among them."""
    if isinstance(data, (list, tuple)):
        parts = [_flat(part) for part in data]
        return None if None in parts else [n for part in parts for n in part or ()]
    return [data] if type(data) in (int, float, *OPEN) else None


def _closed(data: Any) -> Any:
    """The same lists with other numbers."""
    if isinstance(data, (list, tuple)):
        return [_closed(part) for part in data]
    return 0.0 if type(data) in (float, torch.SymFloat) else 0
