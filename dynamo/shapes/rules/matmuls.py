"""Shape rules: GEMMs."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Fresh, OpCache, Outcome
from dynamo.shapes.iteration import broadcast_sizes
from dynamo.shapes.rules.table import Args, Kwargs, contiguous, shape_rule

aten = torch.ops.aten


@shape_rule(aten.mm.default, aten.bmm.default)
def _gemm(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    if len(args) != 2 or kwargs:
        return None
    one, two = args[0].facts, args[1].facts
    rank = 2 if func is aten.mm.default else 3
    if len(one.size) != rank or len(two.size) != rank or one.size[-1] != two.size[-2]:
        return None
    if one.size[:-2] != two.size[:-2] or one.dtype is not two.dtype or one.device != two.device:
        return None
    if one.bits or two.bits:
        return None
    return contiguous(cache, (*one.size[:-1], two.size[-1]), one.dtype, one.device)


@shape_rule(aten.addmm.default, aten.baddbmm.default)
def _gemm_plus(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    gemm = _gemm(
        cache, aten.mm.default if func is aten.addmm.default else aten.bmm.default, args[1:3], {}
    )
    added = args[0].facts
    if not isinstance(gemm, Fresh) or len(args) > 3 or added.bits:
        return None
    made = gemm.facts
    if added.dtype is not made.dtype or added.device != made.device:
        return None
    if broadcast_sizes([added.size, made.size]) != made.size:
        return None
    return gemm
