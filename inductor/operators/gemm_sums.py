"""Results that are written part by part: rows of a tensor, and sums of products over their terms.

- `dynamo_jit::add_gemm_(total, left, right)` adds `left @ right` to `total`;
- `dynamo_jit::set_gemm_(whole, left, right, start)` writes it into rows of `whole`;
- `dynamo_jit::add_part_(total, part)` and `dynamo_jit::set_rows_(whole, part, start)` do so with
  what is there.

GEMMs of half precision are computed in float32 where the result has that dtype: a gradient that
is summed over parts of the rows is rounded once, as it is where it is one GEMM. The scheduler
begins nothing that stands behind such a call before it is done, so that parts do not mix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynamo.graph_operators.written_operators import twin_of

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("wide_gemm(Tensor left, Tensor right) -> Tensor")
LIBRARY.define("add_gemm_(Tensor(a!) total, Tensor left, Tensor right) -> ()")
LIBRARY.define("set_gemm_(Tensor(a!) whole, Tensor left, Tensor right, int start) -> ()")
LIBRARY.define("add_part_(Tensor(a!) total, Tensor part) -> ()")
LIBRARY.define("set_rows_(Tensor(a!) whole, Tensor part, int start) -> ()")
TERMS_AT_ONCE = 4096  # whose operands are converted on a CPU: a whole weight would take long


def _multiply(left: Tensor, right: Tensor, goal: Tensor) -> None:
    """Writes the GEMM into `goal`."""
    if left.dtype is goal.dtype:
        torch.mm(left, right, out=goal)
    elif goal.is_cuda:
        torch.mm(left, right, out_dtype=goal.dtype, out=goal)  # type: ignore[call-overload]
    else:
        goal.zero_()
        _add_gemm(goal, left, right)


def _wide_gemm(left: Tensor, right: Tensor) -> Tensor:
    goal = left.new_empty((left.shape[0], right.shape[1]), dtype=torch.float32)
    _multiply(left, right, goal)
    return goal


def _add_gemm(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype is total.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)  # type: ignore[call-overload]
    else:
        for start in range(0, left.shape[1], TERMS_AT_ONCE):
            end = start + TERMS_AT_ONCE
            total.addmm_(left[:, start:end].to(total.dtype), right[start:end].to(total.dtype))


def _set_gemm(whole: Tensor, left: Tensor, right: Tensor, start: int) -> None:
    _multiply(left, right, whole[start : start + left.shape[0]])


def _add_part(total: Tensor, part: Tensor) -> None:
    total.add_(part)


def _set_rows(whole: Tensor, part: Tensor, start: int) -> None:
    whole[start : start + part.shape[0]].copy_(part)


LIBRARY.impl(
    "wide_gemm", lambda left, right: left.new_empty(
        (left.shape[0], right.shape[1]), dtype=torch.float32), "Meta")
LIBRARY.impl("wide_gemm", _wide_gemm, "CompositeExplicitAutograd")
for _name, _kernel in (("add_gemm_", _add_gemm), ("set_gemm_", _set_gemm),
                       ("add_part_", _add_part), ("set_rows_", _set_rows)):  # fmt: skip
    LIBRARY.impl(_name, lambda *_: None, "Meta")
    LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")

WIDE = torch.ops.dynamo_jit.wide_gemm.default
ADD_GEMM = torch.ops.dynamo_jit.add_gemm_.default
SET_GEMM = torch.ops.dynamo_jit.set_gemm_.default
ADD_PART = torch.ops.dynamo_jit.add_part_.default
SET_ROWS = torch.ops.dynamo_jit.set_rows_.default
IN_ORDER = frozenset({ADD_GEMM, SET_GEMM, ADD_PART, SET_ROWS})
# What they give as functions of all their arguments: the new value of the first one.
GEMM_ADDED, GEMM_SET = twin_of(ADD_GEMM), twin_of(SET_GEMM)
PART_ADDED, ROWS_SET = twin_of(ADD_PART), twin_of(SET_ROWS)
