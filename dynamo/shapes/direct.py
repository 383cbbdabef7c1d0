"""Results of operations with symbolic sizes whose rules in torch are long computations.

Torch finds the sizes of a normalization's results by running what it is made of, on symbolic
sizes: a tenth of a second each. Where the sizes are plainly right, the results are written down
here; all else is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64)
Sizes = tuple[Any, ...]
# What gives the sizes of the results, all of them row-major and of the first argument's type, or
# None for "not mine".
Rule = Callable[..., "tuple[Sizes, ...] | None"]
RULES: dict[Any, Rule] = {}


def rule(func: Any) -> Callable[[Rule], Rule]:
    """Registers the rule of an overload."""

    def register(made: Rule) -> Rule:
        RULES[func] = made
        return made

    return register


def direct(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sizes, ...] | None:
    """The sizes of the results of an operation on dense floats on the CPU, where a rule knows."""
    found = RULES.get(func)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if found is None or any(not _is_plain(tensor, tensors[0]) for tensor in tensors):
        return None
    return found(*args, **kwargs)


def _is_plain(tensor: torch.Tensor, first: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu" and tensor.layout is torch.strided
        and tensor.dtype in FLOATS and tensor.dtype is first.dtype
    )


def same(a: Any, b: Any) -> bool:
    """True where two sizes are one number, whatever the symbols are."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return type(a) is int and type(b) is int and a == b


def all_same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def is_positive(size: Any) -> bool:
    return bool(statically_known_true(size > 0))


def is_row_major(tensor: torch.Tensor) -> bool:
    """True for a contiguous tensor that is in no other layout of images, too."""
    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not same(stride, step) or not is_positive(size):
            return False
        step = step * size
    return tensor.dim() < 4 or not any(same(size, 1) for size in tensor.shape[1:])


@rule(aten.gelu.default)
def _gelu(source: torch.Tensor, *, approximate: str = "none") -> tuple[Sizes, ...] | None:
    return (source.shape,) if approximate in ("none", "tanh") and is_row_major(source) else None


@rule(aten.addmm.default)
def _addmm(
    added: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> tuple[Sizes, ...] | None:
    if left.dim() != 2 or right.dim() != 2 or not same(left.shape[1], right.shape[0]):
        return None
    if not all_same(added.shape, right.shape[1:]) or {type(beta), type(alpha)} != {int}:
        return None
    return ((left.shape[0], right.shape[1]),)


def _fit(parameters: list[torch.Tensor | None], size: Sizes) -> bool:
    return all(each is None or all_same(each.shape, size) for each in parameters)


@rule(aten.native_layer_norm.default)
def _layer_norm(
    source: torch.Tensor, normalized: Any, weight: Any, bias: Any, eps: float
) -> tuple[Sizes, ...] | None:
    rank = len(normalized)
    if not rank or not all_same(source.shape[-rank:], normalized):
        return None
    if not _fit([weight, bias], tuple(normalized)):
        return None
    statistics = (*source.shape[:-rank], *(1,) * rank)
    return source.shape, statistics, statistics


@rule(aten.native_group_norm.default)
def _group_norm(
    source: torch.Tensor, weight: Any, bias: Any, batch: Any, channels: Any, inner: Any,
    groups: int, eps: float,
) -> tuple[Sizes, ...] | None:
    if source.dim() < 2 or not all_same(source.shape[:2], (batch, channels)):
        return None
    if type(channels) is not int or groups <= 0 or channels % groups:
        return None
    if not _fit([weight, bias], (channels,)) or not is_row_major(source):
        return None
    found: Any = 1
    for size in source.shape[2:]:
        found = found * size
    return (source.shape, (batch, groups), (batch, groups)) if same(found, inner) else None


@rule(aten._native_batch_norm_legit.no_stats)
def _batch_norm(
    source: torch.Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Sizes, ...] | None:
    if source.dim() < 2 or not training or not is_row_major(source):
        return None
    channels = source.shape[1:2]
    return (source.shape, channels, channels) if _fit([weight, bias], channels) else None


@rule(aten.grid_sampler_2d.default)
def _grid_sampler(
    source: torch.Tensor, grid: torch.Tensor, how: int, padding: int, aligned: bool
) -> tuple[Sizes, ...] | None:
    if source.dim() != 4 or grid.dim() != 4 or not same(grid.shape[3], 2):
        return None
    if not same(source.shape[0], grid.shape[0]) or not all(map(is_positive, source.shape)):
        return None
    return ((*source.shape[:2], *grid.shape[1:3]),)


@rule(aten.unfold_backward.default)
def _unfold_backward(
    grad: torch.Tensor, sizes: Any, axis: int, size: Any, step: Any
) -> tuple[Sizes, ...] | None:
    whole = 0 <= axis < len(sizes) == grad.dim() - 1
    return (tuple(sizes),) if whole and same(grad.shape[-1], size) else None
