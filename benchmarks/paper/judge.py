"""Whether results are right: like eager's, or no further from exact ones than eager's, by much.

Exact are those of the same step in float64 (for half precision: float32); they are computed where
results differ from eager's by more than a share of the largest element. Some gradients of a deep
model are far from exact in eager, too: where rounding takes an activation across the corner of a
ReLU.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.paper.models import Case, step_of

# Of the largest element, for results and for gradients: what one activation does on the other side
# of a corner. Or eager's error, so many times.
SHARE = {torch.float32: (1e-3, 1e-2), torch.float16: (2e-2, 5e-2), torch.bfloat16: (6e-2, 1e-1)}
TIMES = 10.0


class Judge:
    """eager: its results. exact: computes the right ones. share: see `SHARE`."""

    def __init__(
        self, eager: list[torch.Tensor], exact: Callable[[], list[torch.Tensor]], share: float
    ) -> None:
        self.eager = eager
        self.exact = functools.cache(exact)
        self.share = share

    def accepts(self, found: Sequence[torch.Tensor]) -> bool:
        if len(found) != len(self.eager):
            return False
        if self._within(found, self.eager, [0.0] * len(found)):
            return True
        exact = self.exact()
        own = [TIMES * _error(e, x) for e, x in zip(self.eager, exact, strict=True)]
        return self._within(found, exact, own)

    def _within(
        self, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], own: Sequence[float]
    ) -> bool:
        """Whether each is as near as the share, or as its own bound."""
        largest = max(map(_largest, wanted), default=0.0)
        return all(
            _error(f, w) <= max(self.share * max(_largest(w), 1e-3 * largest), most) + 1e-6
            for f, w, most in zip(found, wanted, own, strict=True)
        )


def judge_of(case: Case, training: bool, dtype: torch.dtype) -> Judge:
    """Runs the step once in eager. Errors: what the model raises."""
    wide = torch.float64 if dtype is torch.float32 else torch.float32
    eager = [result.detach().clone() for result in step_of(case, case.model, training)()]

    def exact() -> list[torch.Tensor]:
        same = widened_case(case, wide)
        return [result.detach() for result in step_of(same, same.model, training)()]

    return Judge(eager, exact, SHARE[dtype][training])


def widened_case(case: Case, wide: torch.dtype) -> Case:
    """A copy of the model with its arguments in another dtype."""

    def widened(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(wide) if is_float else value

    model = case.model
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model).to(wide)
    return Case(model, tuple(map(widened, case.args)),
                {name: widened(value) for name, value in case.given.items()})  # fmt: skip


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest; infinite where shapes differ, or where only one is not a number."""
    found = found.detach().to(exact.device)
    if found.shape != exact.shape or bool((found.isnan() != exact.isnan()).any()):
        return float("inf")
    wide = torch.promote_types(torch.promote_types(found.dtype, exact.dtype), torch.float32)
    if not found.numel():
        return 0.0
    same = (found == exact) | exact.isnan()  # infinities, too
    return float((found.to(wide) - exact.to(wide)).masked_fill_(same, 0.0).abs().max())


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite element."""
    if not tensor.numel():
        return 0.0
    return float(tensor.detach().nan_to_num(0.0, posinf=0.0, neginf=0.0).abs().max())
