"""A wrapper subclass for tests: integers and a scale, with a kind that is context only."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """`data * scale`; most operations are those of the plain tensor."""

    @staticmethod
    def __new__(cls, data: Any, scale: Any, kind: Any = "row") -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data.shape, strides=data.stride(), dtype=scale.dtype, device=data.device)

    def __init__(self, data: Any, scale: Any, kind: Any = "row") -> None:
        self.numbers, self.scale, self.kind = data, scale, kind

    def __tensor_flatten__(self) -> Any:
        return ["numbers", "scale"], (self.kind,)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Scaled:
        return cls(inner["numbers"], inner["scale"], *context)

    @classmethod
    def quantize(cls, x: torch.Tensor) -> Scaled:
        scale = x.abs().amax() / 127
        return cls((x / scale).round().to(torch.int8), scale)

    def plain(self) -> torch.Tensor:
        return self.numbers.to(self.scale.dtype) * self.scale

    @property
    def twice(self) -> torch.Tensor:
        return self.plain() * 2

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        first, options = args[0], kwargs or {}
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            made = type(first)(func(first.numbers), func(first.scale), first.kind)
            return return_and_correct_aliasing(func, args, options, made)
        if func is aten.neg.default:
            return Scaled(first.numbers, -first.scale, first.kind)
        if func is aten.copy_.default and isinstance(first, Scaled):
            other = args[1] if isinstance(args[1], Scaled) else Scaled.quantize(args[1])
            first.numbers.copy_(other.numbers)
            first.scale.copy_(other.scale)
            return first
        plain, named = pytree.tree_map_only(Scaled, lambda one: one.plain(), (args, options))
        return func(*plain, **named)


def parts(value: Any) -> Any:
    """A value with wrappers taken apart, their classes beside."""
    if isinstance(value, TwoTensor):
        return ["two", parts(value.a), parts(value.b)]
    if isinstance(value, Scaled):
        return ["scaled", value.kind, parts(value.numbers), parts(value.scale)]
    if isinstance(value, (tuple, list)):
        return [parts(item) for item in value]
    return value


def assert_same(found: Any, wanted: Any) -> None:
    """Equal classes and values, wrappers part by part."""
    left, right = pytree.tree_flatten(parts(found)), pytree.tree_flatten(parts(wanted))
    assert left[1] == right[1]
    for mine, other in zip(left[0], right[0], strict=True):
        assert type(mine) is type(other)
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, other)
        else:
            assert mine == other
