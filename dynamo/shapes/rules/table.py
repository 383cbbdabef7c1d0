"""The table of shape rules, and what rules share.

A rule takes the operation and its arguments (fakes carry `.facts`) and gives an `Outcome`, or
None for "not mine".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynamo.shapes.facts import (
    Facts,
    Fresh,
    OpCache,
    Outcome,
    Plain,
    Several,
    contiguous_stride,
)
from dynamo.shapes.iteration import channels_last_stride, is_channels_last

aten = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Rule = Callable[[OpCache, Any, Args, Kwargs], "Outcome | None"]

SHAPE_RULES: dict[Any, Rule] = {}


def shape_rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Registers a rule for these overloads."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            SHAPE_RULES[op] = rule
        return rule

    return register


def is_fake(value: Any) -> bool:
    return hasattr(value, "facts")


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensor arguments in flat order, lists included."""
    found: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


def shared_device(tensors: list[Any]) -> torch.device | None:
    """The one device of all tensors, CPU scalars aside; None where they differ."""
    device: torch.device | None = None
    for tensor in tensors:
        facts = tensor.facts
        if device is None or facts.device == device:
            device = facts.device
        elif not facts.size and facts.device.type == "cpu":
            continue
        elif device.type == "cpu" and all(
            not t.facts.size for t in tensors if t.facts.device == device
        ):
            device = facts.device
        else:
            return None
    return device


def contiguous(
    cache: OpCache, size: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Fresh:
    """A new row-major tensor."""
    return Fresh(cache.facts(size, contiguous_stride(size), 0, dtype, device))


def wrap_axis(axis: int, rank: int) -> int | None:
    """The axis as a non-negative number; None where it does not exist."""
    limit = max(rank, 1)
    if not -limit <= axis < limit:
        return None
    return axis + limit if axis < 0 else axis


def argument(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An argument by its name in the schema, wherever it was passed; its default otherwise."""
    for index, declared in enumerate(func._schema.arguments):
        if declared.name == name:
            if index < len(args):
                return args[index]
            return kwargs.get(name, declared.default_value)
    return None


def suggested_stride(source: Facts) -> tuple[int, ...]:
    """Row-major, or channels-last where the tensor is."""
    if is_channels_last(source.size, source.stride):
        return channels_last_stride(source.size)
    return contiguous_stride(source.size)


def common_layout(facts: list[Facts]) -> str | None:
    """"rows" or "channels" where all these CPU tensors are exactly row-major or channels-last.

    None for the rest, and where extents of 1 make it ambiguous what kernels take a tensor for.
    """
    layouts = {_layout(each) for each in facts}
    return layouts.pop() if len(layouts) == 1 else None


def _layout(facts: Facts) -> str | None:
    if facts.bits or facts.device.type != "cpu" or 0 in facts.size:
        return None
    if facts.stride == contiguous_stride(facts.size):
        return "rows"
    if len(facts.size) != 4 or 1 in facts.size[1:]:
        return None
    return "channels" if facts.stride == channels_last_stride(facts.size) else None


def laid_out(
    cache: OpCache, size: tuple[int, ...], dtype: torch.dtype, layout: str, device: torch.device
) -> Fresh:
    """A new tensor in this layout."""
    stride = channels_last_stride(size) if layout == "channels" else contiguous_stride(size)
    return Fresh(cache.facts(size, stride, 0, dtype, device))


def wanted(gradients: list[Fresh], mask: Any) -> Several:
    """The results of a backward operation that is asked for some gradients only."""
    return Several(
        tuple,
        tuple(
            gradient if asked else Plain(None)
            for gradient, asked in zip(gradients, mask, strict=True)
        ),
    )
