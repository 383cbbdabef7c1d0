"""Flex attention as graphs hold it: attention whose scores pass through functions of the program.

A node's target is a `FlexCall`. What the program's functions do to the scores (`score_mod`) and
which positions they let a query see (`mask_mod`) are two graphs over whole tensors of scores
(batch, heads, queries, keys). Every backend can run it: called, it is a chain of products, these
graphs and a softmax, as torch's own eager form. A backend may serve it by a kernel instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

Tensor = torch.Tensor
TABLES = 8  # tensors of a block mask: counts and indices of partial and full blocks, of keys and
LN2 = math.log(2.0)  # of queries; an absent one is None


@dataclass(frozen=True, slots=True)
class FlexFacts:
    """What of a call is known when it is captured.

    scale: factor of the products. sizes: queries and keys of a block of the block mask; None where
    every position is seen. most: the program asks for the greatest scores.
    """

    scale: float
    sizes: tuple[int, int] | None
    most: bool


class FlexCall:
    """Called with query, key, value, the tables of the block mask, and what its graphs read.

    modules: `score` takes scores and gives others; `mask` gives booleans that broadcast to them,
    None where all is seen. places: for each, which of the inputs behind the tables it takes.
    Gives the result (batch, heads, queries, head), and two tensors (batch, heads, queries): the
    log-sum-exps of the scores and the greatest scores, both divided by ln 2.
    """

    def __init__(
        self, score: fx.GraphModule, mask: fx.GraphModule | None,
        places: tuple[list[int], list[int]], facts: FlexFacts, number: int,
    ) -> None:
        self.score, self.mask = score, mask
        self.modules = (score,) if mask is None else (score, mask)
        self.places, self.facts = places, facts
        self.__name__ = self.__qualname__ = f"flex_attention_{number}"
        self.__module__ = __name__

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *inputs: Any) -> Any:
        given = inputs[TABLES:]
        device = query.device.type
        if not torch.is_autocast_enabled(device):
            return self.by_matmuls(query, key, value, given)
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (cast(x, dtype) for x in (query, key, value))
        with torch.autocast(device, enabled=False):
            return self.by_matmuls(query, key, value, given)

    def by_matmuls(
        self, query: Tensor, key: Tensor, value: Tensor, given: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The results, with a tensor of all scores. given: what the graphs read."""
        key, value = (each_head(x, query) for x in (key, value))
        wide = torch.float64 if query.dtype is torch.float64 else torch.float32
        scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * self.facts.scale
        scores = self.changed(scores, given)
        return attended(scores, query, value)

    def changed(self, scores: Tensor, given: tuple[Any, ...]) -> Tensor:
        """The scores after both graphs: -inf where nothing is seen."""
        seen = self.seen(given)
        if seen is None:
            (result,) = self.score(scores, *(given[place] for place in self.places[0]))
            return result  # type: ignore[no-any-return]
        if scores.requires_grad:  # what is not seen has no slope, be it infinite
            scores = torch.where(seen, scores, scores.detach())
        (result,) = self.score(scores, *(given[place] for place in self.places[0]))
        return torch.where(seen, result, -math.inf)

    def changed_alone(self, scores: Tensor, slope: Tensor, *given: Any) -> Tensor:
        """What `score` makes of the scores, be they seen or not."""
        (result,) = self.score(scores, *(given[place] for place in self.places[0]))
        return result  # type: ignore[no-any-return]

    def slope(self, scores: Tensor, slope: Tensor, *given: Any) -> Tensor:
        """The gradient of the scores, from that of what `score` makes of them."""
        with torch.enable_grad():
            before = scores.detach().requires_grad_()
            after = self.changed_alone(before, slope, *given)
            if not after.requires_grad:
                return torch.zeros_like(slope)
            found = torch.autograd.grad(after, before, slope, allow_unused=True)[0]
        return torch.zeros_like(slope) if found is None else found

    def seen(self, given: tuple[Any, ...]) -> Tensor | None:
        """Which positions are seen; None: all."""
        if self.mask is None:
            return None
        (result,) = self.mask(*(given[place] for place in self.places[1]))
        return result  # type: ignore[no-any-return]


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """As autocast does it."""
    wide = not tensor.is_floating_point() or tensor.dtype is torch.float64
    return tensor if wide else tensor.to(dtype)


def each_head(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values, repeated for each batch and head of the queries."""
    tensor = tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1)
    return tensor.expand(query.shape[0], *tensor.shape[1:])


def attended(scores: Tensor, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The results of scores. A query that sees nothing gives zeros, and -inf for both others."""
    most = scores.detach().amax(-1)
    empty = torch.all(scores == -math.inf, -1)
    base = torch.where(torch.isinf(most), 0.0, most)
    total = torch.exp(scores - base[..., None]).sum(-1)
    lse = torch.where(empty, -math.inf, base + torch.log(torch.where(empty, 1.0, total)))
    weight = torch._safe_softmax(scores, -1)
    result = weight.to(query.dtype) @ value.to(query.dtype)
    return in_order_of(result, query), lse / LN2, most / LN2


def in_order_of(result: Tensor, query: Tensor) -> Tensor:
    """The result with its dimensions in the queries' order in memory, the last one innermost."""
    stride = result_strides(tuple(result.shape), query.stride())
    if result.stride() == stride:
        return result
    return torch.empty_strided(
        result.shape, stride, dtype=result.dtype, device=result.device).copy_(result)


def result_strides(size: tuple[int, ...], query: tuple[int, ...]) -> tuple[int, ...]:
    """Dense strides of a result of this size. query: strides of the queries."""
    inner = sorted(range(len(size)), key=lambda axis: (query[axis], -axis))
    strides = _dense(size, inner)
    last = len(size) - 1
    if strides[last] != 1:
        strides = _dense(size, [last, *(axis for axis in inner if axis != last)])
    return strides


def _dense(size: tuple[int, ...], inner_first: list[int]) -> tuple[int, ...]:
    strides, step = [0] * len(size), 1
    for axis in inner_first:
        strides[axis] = step
        step *= size[axis]
    return tuple(strides)
