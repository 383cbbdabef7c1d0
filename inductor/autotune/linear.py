"""GEMMs of ATen as linear layers: x times the transpose of a weight, plus a bias.

In: a node of a loop graph and the layouts of its buffers. Out: a `Linear`, where the node is one
that other libraries, or our own GEMM, may compute.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from dynamo.store.processor import HALF_SUPPORT
from inductor.autotune.library_convolutions import is_native
from inductor.ir.extent import hint_of
from inductor.ir.graph import Argument, ExternKernel, Layout, ViewRef
from inductor.kernels.cpu.gemm import ALIAS

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Linear:
    """x [m, k] times the transpose of weight [n, k], plus bias [n] or nothing.

    m, n, k: what they are at the compile, where they are known at a call only; columns: the weight
    lies in memory as [k, n]; turned: x lies there as [k, m].
    """

    m: int
    n: int
    k: int
    x: ViewRef
    weight: ViewRef
    bias: ViewRef | None
    columns: bool
    frozen: bool
    turned: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of both sides and the result."""
        return self.x.dtype

    def shape_class(self) -> tuple[int, int, int, bool, bool, bool, bool, bool, str]:
        """Sizes, each rounded up to a power of two: GEMMs of one class behave alike. The first
        of a class is measured with its own sizes."""
        m, n, k = (1 << (size - 1).bit_length() for size in (self.m, self.n, self.k))
        layout = self.columns, self.frozen, self.turned, self.k % ALIAS == 0
        return m, n, k, self.bias is not None, *layout, str(self.dtype)


def _factors(node: ExternKernel) -> tuple[Argument, ViewRef, ViewRef] | None:
    """Bias or None, left and right operand of `mm` or `addmm`; None for another operator."""
    if node.target not in (aten.mm.default, aten.addmm.default):
        return None
    bias, x, weight = (None, *node.args)[-3:]
    return (bias, x, weight) if isinstance(x, ViewRef) and isinstance(weight, ViewRef) else None


def as_linear(
    node: ExternKernel, layouts: dict[str, Layout], frozen: Collection[str]
) -> Linear | None:
    """The GEMM as a linear layer, if it is one with a dense weight, of float32 or of half
    precision that oneDNN knows on this processor."""
    if node.layout is None or node.kwargs:
        return None
    half = node.layout.dtype in HALF_SUPPORT
    if not (is_native(node.layout.dtype) if half else node.layout.dtype is torch.float32):
        return None
    return _as_dense_linear(node, node.layout, frozen)


def _as_dense_linear(
    node: ExternKernel, layout: Layout, frozen: Collection[str]
) -> Linear | None:
    """As above, whatever knows its dtype."""
    factors = _factors(node)
    if factors is None:
        return None
    bias, x, weight = factors
    (m, k), n = x.size, weight.size[1]
    if x.stride not in ((k, 1), (1, m)) or weight.stride not in ((1, k), (n, 1)):
        return None
    if layout.dtype in HALF_SUPPORT and x.stride != (k, 1):
        return None
    if layout.stride != (n, 1):
        return None
    if isinstance(bias, ViewRef) and (bias.size != (n,) or bias.stride != (1,)):
        return None
    columns = weight.stride == (n, 1)
    turned = replace(weight, size=(n, k), stride=weight.stride[::-1])
    m, n, k = map(hint_of, (m, n, k))
    if min(n, k) < 2:
        return None
    bias = bias if isinstance(bias, ViewRef) else None
    is_frozen = weight.buffer in frozen
    return Linear(m, n, k, x, turned, bias, columns, is_frozen, x.stride[1] != 1)


def as_own_linear(
    node: ExternKernel, layouts: dict[str, Layout], frozen: Collection[str]
) -> Linear | None:
    """As above, where our own GEMM is the only one: of float32 it takes rows at any distance,
    any weight, and sizes of 1. What oneDNN knows does not matter."""
    if node.layout is None or node.kwargs:
        return None
    if node.layout.dtype is torch.bfloat16:
        return _as_dense_linear(node, node.layout, frozen)
    if node.layout.dtype is not torch.float32:
        return None
    factors = _factors(node)
    if factors is None:
        return None
    bias, x, weight = factors
    (m, k), n = x.size, weight.size[1]
    x, weight = _without_ones(x), _without_ones(weight)
    sizes = (m, n, k)
    known = all(type(size) is int and size > 0 for size in sizes)
    if not known or 1 not in x.stride or weight.stride[0] == 0:
        return as_linear(node, layouts, frozen)
    down, across = node.layout.stride
    if m > 1 and down != n or n > 1 and across != 1:
        return None
    if isinstance(bias, ViewRef) and (bias.size != (n,) or n > 1 and bias.stride != (1,)):
        return None
    turned = replace(weight, size=(n, k), stride=weight.stride[::-1])
    bias = bias if isinstance(bias, ViewRef) else None
    columns = turned.stride != (k, 1)
    return Linear(m, n, k, x, turned, bias, columns, weight.buffer in frozen, x.stride[1] != 1)


def _without_ones(view: ViewRef) -> ViewRef:
    """A matrix whose strides of sizes of 1, which say nothing, are those of a dense one."""
    (rows, columns), (down, across) = view.size, view.stride
    if columns == 1:
        across = 1 if down != 1 or rows == 1 else rows
    if rows == 1:
        down = columns
    return replace(view, stride=(down, across))


def with_views(node: ExternKernel, linear: Linear) -> ExternKernel:
    """The call with the operands as `linear` sees them."""
    weight = linear.weight
    right = replace(weight, size=weight.size[::-1], stride=weight.stride[::-1])
    return replace(node, args=(*node.args[:-2], linear.x, right))
