"""Sums of products in a loop: one instruction for each term.

In: the ops of a stage whose columns are a loop. Out: the sums of which a step can be a fused
multiply-add. Elsewhere a product is rounded before it is added, as eager does, and compilers may
not join the two; here both ways give the same bits. (But for products out of float32's range,
which stay finite until they are added, as they do in a library's GEMM.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch

from inductor.ir.body import Op

# Of an element that a load did not read, and gave as zero, these are zero, too, if all operands
# are.
KEEP_ZERO = frozenset(("to_dtype", "mul", "add", "sub", "neg", "abs", "fma", "where"))
# Of which a value is small where one of the operands is.
CHOOSING = ("where", "maximum", "minimum")
KEEP_SMALL = frozenset(("mul", "neg", "abs", "to_dtype", "where"))
EXACT = 2  # bytes of a float: a product of two has at most 22 bits, of which float32 has 24


def products_in_sums(ops: Sequence[Op], kept: Collection[int]) -> frozenset[int]:
    """The products of two values of half precision, in float32, that are summed and nothing else.
    kept: values that are wanted for something that the ops do not say.

    >>> load = Op("load", (), torch.bfloat16, "x")
    >>> wide = Op("to_dtype", (0,), torch.float32)
    >>> square = Op("mul", (1, 1), torch.float32)
    >>> products_in_sums([load, wide, square, Op("reduction", (2,), torch.float32, imm="sum")], ())
    frozenset({2})
    """
    uses = Counter(arg for op in ops for arg in op.args)
    found = set()
    for op in ops:
        if op.name != "reduction" or op.imm != "sum" or op.dtype is not torch.float32:
            continue
        (at,) = op.args
        term = ops[at]
        is_product = term.name == "mul" and term.dtype is torch.float32
        if is_product and uses[at] == 1 and at not in kept:
            if all(_is_widened(ops, arg) for arg in term.args):
                found.add(at)
    return frozenset(found)


def _is_widened(ops: Sequence[Op], position: int) -> bool:
    op = ops[position]
    if op.name != "to_dtype" or op.dtype is not torch.float32:
        return False
    source = ops[op.args[0]].dtype
    return source.is_floating_point and source.itemsize <= EXACT


def may_vanish(ops: Sequence[Op], position: int, depth: int = 8) -> bool:
    """Whether a value is zero or very small for many elements, by how it is made: an exponential,
    what is chosen beside a zero, a condition as a number, a product of one of these, or a sum of
    them. depth: of operations that are looked at.

    >>> load = Op("load", (), torch.float32, "x")
    >>> may_vanish([load, Op("exp", (0,), torch.float32)], 1), may_vanish([load], 0)
    (True, False)
    """
    op = ops[position]
    if op.name == "exp":
        return True
    if op.name in CHOOSING and any(ops[arg].imm == 0 and ops[arg].name == "constant"
                                   for arg in op.args):
        return True
    if op.name == "to_dtype" and ops[op.args[0]].dtype is torch.bool:
        return True
    if op.name in ("add", "sub"):
        return depth > 0 and all(may_vanish(ops, arg, depth - 1) for arg in op.args)
    through = op.args[:1] if op.name == "truediv" else op.args if op.name in KEEP_SMALL else ()
    return depth > 0 and any(may_vanish(ops, arg, depth - 1) for arg in through)


def is_zero(ops: Sequence[Op], position: int, unread: Collection[int]) -> bool:
    """Whether a value is zero at elements that were not read. unread: the loads that are."""
    known: dict[int, bool] = {}

    def of(at: int) -> bool:
        if at not in known:
            op = ops[at]
            if op.name == "constant":
                known[at] = op.imm == 0
            elif op.name in KEEP_ZERO:
                known[at] = all(map(of, op.args[op.name == "where" :]))
            else:
                known[at] = at in unread
        return known[at]

    return of(position)
