"""Sums of products over parts of their terms, in place, in float32 where the operands are halves.

`dynamo_jit::add_product_(total, left, right)` adds `left @ right` to `total`. Operands in half
precision are multiplied and added up in float32: a gradient that is summed over parts of the rows
is rounded once, as it is where it is one product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynamo.graph_operators.written_operators import twin_of

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("add_product_(Tensor(a!) total, Tensor left, Tensor right) -> ()")
LIBRARY.define("wide_product(Tensor left, Tensor right) -> Tensor")


def _shape(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], right.shape[1]), dtype=torch.float32)


def _add_on_cpu(total: Tensor, left: Tensor, right: Tensor) -> None:
    total.addmm_(left.to(total.dtype), right.to(total.dtype))


def _add_on_gpu(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype is total.dtype:
        total.addmm_(left, right)
    else:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)  # type: ignore[call-overload]


def _multiply_on_cpu(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left.float(), right.float())


def _multiply_on_gpu(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right, out_dtype=torch.float32)  # type: ignore[call-overload,no-any-return]


LIBRARY.impl("add_product_", lambda total, left, right: None, "Meta")
LIBRARY.impl("add_product_", _add_on_cpu, "CPU")
LIBRARY.impl("add_product_", _add_on_gpu, "CUDA")
LIBRARY.impl("wide_product", _shape, "Meta")
LIBRARY.impl("wide_product", _multiply_on_cpu, "CPU")
LIBRARY.impl("wide_product", _multiply_on_gpu, "CUDA")

ADD = torch.ops.dynamo_jit.add_product_.default
WIDE = torch.ops.dynamo_jit.wide_product.default
ADDED = twin_of(ADD)  # (total, left, right) -> the new total
