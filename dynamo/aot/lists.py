"""Operations that write into a list of tensors, where the list's tensors share memory.

Eager takes them in turn: of `_foreach_mul_([g, g], c)` the second sees what the first has written
(the gradient of a tied weight, clipped). torch's functional form computes all from the old values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from dynamo.aot.fakes import storage_key
from dynamo.aot.records import Unsupported


def writes_a_list(target: Any) -> bool:
    """True for `torch._foreach_mul_` and its like."""
    name = getattr(target, "__name__", "").partition(".")[0]
    return "_foreach_" in name and name.endswith("_")


def one_by_one(
    function: Callable[..., Any], written: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls a function that writes into a list: once for each item where items share memory.

    As after other writes, views have new histories behind it: torch's functionalization of lists
    leaves out the count of writes, by which autograd knows that.
    """
    before = [tensor._version for tensor in written]
    _write(function, written, args, kwargs)
    for tensor, version in zip(written, before, strict=True):
        if tensor._version == version:
            increment_version(tensor)
    return None


def _write(
    function: Callable[..., Any], written: Sequence[Any], args: Sequence[Any],
    kwargs: dict[str, Any],
) -> None:
    if not _depend(written, (*args, *kwargs.values())):
        function(written, *args, **kwargs)
        return
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in written):
        raise Unsupported("tensors of a list that share memory: autograd knows the last write only")
    count = len(written)
    if any(isinstance(arg, torch.Tensor) and arg.shape == (count,) for arg in args):
        raise Unsupported("tensors of a list that share memory, and one tensor of all factors")

    def part(arg: Any, at: int) -> Any:
        return arg[at : at + 1] if isinstance(arg, (list, tuple)) and len(arg) == count else arg

    for at in range(count):
        rest = {name: part(arg, at) for name, arg in kwargs.items()}
        function(written[at : at + 1], *[part(arg, at) for arg in args], **rest)


def unscale(written: Sequence[Any], found_inf: Any, inverse_scale: Any) -> None:
    """`_amp_foreach_non_finite_check_and_unscale_`, whose functional form has no fake kernel, in
    the arithmetic of eager's kernel."""
    scalars = (found_inf, inverse_scale)
    if any(scalar.numel() != 1 or scalar.dtype is not torch.float32 for scalar in scalars):
        raise Unsupported("a scale for which eager raises")
    for tensor in written:
        if not tensor.dtype.is_floating_point or tensor.device != found_inf.device:
            raise Unsupported("a gradient for which eager raises")
        found_inf.copy_(torch.where(torch.isfinite(tensor).all(), found_inf, 1.0))
        held = torch.promote_types(tensor.dtype, torch.float32)
        tensor.copy_(tensor.to(held) * inverse_scale.reshape(()))


def _depend(written: Sequence[Any], others: Sequence[Any]) -> bool:
    """True where an item that is written shares memory with one of another place in the lists."""
    places: dict[int, int] = {}
    for at, tensor in enumerate(written):
        if places.setdefault(storage_key(tensor), at) != at:
            return True
    for other in others:
        for at, item in enumerate(other if isinstance(other, (list, tuple)) else ()):
            if isinstance(item, torch.Tensor) and places.get(storage_key(item), at) != at:
                return True
    return False
