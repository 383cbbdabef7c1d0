"""Whether results are right: no further from exact ones than eager's own, by much.

Exact are those of the same step in float64 (for half precision: float32). Some gradients of a deep
model are far from exact in eager, too: where rounding takes an activation across the corner of a
ReLU.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.paper.models import Case, step_of

# Of the largest element, for results and for gradients: what one activation does on the other side
# of a corner. Or eager's error, so many times.
SHARE = {torch.float32: (1e-3, 1e-2), torch.float16: (2e-2, 5e-2), torch.bfloat16: (6e-2, 1e-1)}
TIMES = 10.0


@dataclass(frozen=True, slots=True)
class Judge:
    """exact: the right results. allowed: the largest error of each."""

    exact: list[torch.Tensor]
    allowed: list[float]

    def accepts(self, found: Sequence[torch.Tensor]) -> bool:
        if len(found) != len(self.exact):
            return False
        return all(_error(f, e) <= most
                   for f, e, most in zip(found, self.exact, self.allowed, strict=True))  # fmt: skip


def judge_of(case: Case, training: bool, dtype: torch.dtype) -> Judge:
    """Runs the step once in eager and once more exactly. Errors: what the model raises."""
    found = [result.detach().cpu() for result in step_of(case, case.model, training)()]
    wide = torch.float64 if dtype is torch.float32 else torch.float32

    def widened(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(wide) if is_float else value

    model = case.model
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model).to(wide)
    same = Case(model, tuple(map(widened, case.args)),
                {name: widened(value) for name, value in case.given.items()})  # fmt: skip
    exact = [result.detach().double().cpu() for result in step_of(same, model, training)()]
    largest = max((_largest(e) for e in exact), default=0.0)
    share = SHARE[dtype][training]
    allowed = [max(share * max(_largest(e), 1e-3 * largest), TIMES * _error(f, e)) + 1e-6
               for f, e in zip(found, exact, strict=True)]  # fmt: skip
    return Judge(exact, allowed)


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest; infinite where shapes differ, or where only one is not a number."""
    found = found.detach().cpu().double()
    if found.shape != exact.shape or bool((found.isnan() != exact.isnan()).any()):
        return float("inf")
    return _largest(torch.where(found == exact, 0.0, found - exact))


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.nan_to_num(0.0).abs().max()) if tensor.numel() else 0.0
