"""GEMMs with few rows, columns or terms are loops on a GPU, which fuse with what is around them.

In: a functional ATen graph with fakes, perhaps a joint one. Out: the same graph (changed in place)
where each `mm`, `addmm` and `bmm`, in float32 or half precision,

- of few terms, and few rows or columns, is a sum of products that is written out: points times
  matrices of 3 x 3. A library's tiles have 32 rows or more, and steps of 8 terms or more, most of
  which are padding; of many GEMMs of one row it makes a call for each 65,535;
- of few results with many terms is a product and a sum: the gradient by such a matrix. A library
  gives each batch to one program, which adds for as long as it takes;
- of one row or column with a matrix that the graph computes element by element is a product and a
  sum, too: a recurrence's state need not go to memory and back for each product.

Weights that lie there are the library's, or a template's. Products are added in float32.

    >>> # x[:, 0:1] * w[0:1] + x[:, 1:2] * w[1:2] + x[:, 2:3] * w[2:3] for x[n, 3] @ w[3, 3]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.looked_up_matrices import DTYPES, VIEWS, as_it_lay
from inductor.fx_passes.losses.regions import filling, is_elementwise
from inductor.operators.factor_ops import FACTOR

aten = torch.ops.aten
GEMMS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
# Measured on an H200, microseconds, library / loop. Terms that are written out, up to how many, by
# the fewer of rows and columns: of any number 2 (8 x 1024 x 1024 results 14.9 / 12.6; with 4 terms
# 14.7 / 69), with 64 at most 4 (500,000 points times 3 x 64 54 / 37), with 16 at most 8 (64 x 2048
# x 16 results 7.9 / 4.6; with 64 columns 24 / 107).
MOST_TERMS, TERMS_BY_ROWS = 8, ((16, 8), (64, 4), (1 << 62, 2))
# Results of one matrix that are sums: 8 x 8 of 16,384 terms 87 / 5.1, of 64 terms 14.9 / 11.4;
# without batches 3 x 64 of 500,000 terms 116 / 55. More results were not measured. For one row the
# library has kernels for vectors (128 results in half precision 3.0 / 9.4): few is chosen there.
FEW_RESULTS, FEW_OF_VECTOR, FEW_WITHOUT_BATCH, FEW_ROWS = 64, 16, 192, 4
# Terms from which on a GEMM without batches is one of those: shorter ones are layers with few
# columns, for which the library has kernels for vectors. Chosen, not measured.
MANY_TERMS = 1 << 14
# In float32 a few columns of many rows, too: 4096 of 512 terms times 3 columns 25 / 7.0, half a
# million of 64 terms 76 / 58.
MANY_ROWS, TERMS_OF_ROWS = 1 << 12, (64, 512)
ANY = 1 << 62  # an extent that is known at a call alone
MOST_USES = 1 << 16  # that make a difference
MOST_PARTS = 4  # of a matrix: a condition for each element and each part; chosen, not measured


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a GEMM. batch: 0 for one without. What is known at a call alone counts as `ANY`."""

    batch: int
    rows: int
    terms: int
    columns: int


def add_in_loops(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    found = False
    for target in GEMMS:
        for node in module.graph.find_nodes(op="call_function", target=target):
            made = _written(node)
            if made is not None:
                node.replace_all_uses_with(as_it_lay(node, made))
                module.graph.erase_node(node)
                found = True
    if found:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def chosen(sizes: Sizes) -> bool:
    """Whether such a GEMM is faster as a loop, whatever its operands are.

    >>> chosen(Sizes(8, 3, 4, 122880)), chosen(Sizes(8, 3, 122880, 4)), chosen(Sizes(0, 64, 64, 64))
    (True, True, False)
    """
    fewest, results = min(sizes.rows, sizes.columns), sizes.rows * sizes.columns
    if sizes.terms <= MOST_TERMS:
        return any(fewest <= rows and sizes.terms <= terms for rows, terms in TERMS_BY_ROWS)
    if sizes.batch:
        return results <= (FEW_RESULTS if fewest > 1 else FEW_OF_VECTOR)
    few = results <= FEW_RESULTS or fewest <= FEW_ROWS and results <= FEW_WITHOUT_BATCH
    return few and sizes.terms >= MANY_TERMS


def _is_narrow(sizes: Sizes) -> bool:
    """Whether many rows, all of them known, are multiplied with a few columns."""
    least, most = TERMS_OF_ROWS
    fits = MANY_ROWS <= sizes.rows < ANY and least <= sizes.terms <= most
    return fits and not sizes.batch and sizes.columns <= FEW_ROWS


def _written(node: fx.Node) -> fx.Node | None:
    """What stands for a GEMM; None where it stays."""
    left, right = node.args[-2:]
    if node.kwargs or not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    facts, other = (facts_of(operand.meta["val"]) for operand in (left, right))
    if not on_gpu(facts.device) or facts.dtype not in DTYPES:
        return None
    batch, (rows, terms), columns = facts.size[:-2], facts.size[-2:], other.size[-1]
    known = [_count(extent) for extent in (*batch, rows, terms, columns)]
    sizes = Sizes(*known) if batch else Sizes(0, *known)
    if 0 in known:
        return None
    narrow = facts.dtype is torch.float32 and _is_narrow(sizes)
    if not (chosen(sizes) or narrow or _is_row_of_made(left, right, sizes)):
        return None
    call = Calls(node)
    operands = (
        _operand(call, left, sizes.columns, sizes.terms),
        _operand(call, right, sizes.rows, sizes.terms))
    made = _product(call, *operands, sizes)
    if node.target is aten.addmm.default:
        bias = node.args[0]
        assert isinstance(bias, fx.Node)
        made = call(aten.add.Tensor, made, _wide(call, bias))
    if facts.dtype is torch.float32:
        return made
    return call(aten._to_copy.default, made, dtype=facts.dtype)


def _count(extent: Any) -> int:
    return extent if type(extent) is int else ANY


def _is_row_of_made(left: fx.Node, right: fx.Node, sizes: Sizes) -> bool:
    """Whether one row, or one column, is multiplied with a matrix that loops make. Such a GEMM
    without batches is a layer of one token, whose weight is read in a way of its own."""
    if not sizes.batch:
        return False
    return sizes.rows == 1 and _is_made(right) or sizes.columns == 1 and _is_made(left)


def _is_made(node: fx.Node) -> bool:
    """Whether a tensor is computed element by element."""
    while node.target in VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    if node.target is aten.cat.default:  # a cache of few bits, and its last rows as they are
        parts: Any = node.args[0]
        sizes = [math.prod(map(_count, facts_of(part.meta["val"]).size)) for part in parts]
        return len(parts) <= MOST_PARTS and _is_made(parts[sizes.index(max(sizes))])
    return is_elementwise(node.target) or filling(node) is not None


def _operand(call: Calls, given: fx.Node, results: int, terms: int) -> fx.Node:
    """An operand in float32, each element of which so many results read."""
    uses = max(results - 1, terms if terms <= MOST_TERMS else 1)
    if given.op == "call_function" and uses > 1:
        given = call(FACTOR, given, min(uses, MOST_USES))
    return _wide(call, given)


def _wide(call: Calls, given: fx.Node) -> fx.Node:
    """The same in float32."""
    if facts_of(given.meta["val"]).dtype is torch.float32:
        return given
    return call(aten._to_copy.default, given, dtype=torch.float32)


def _product(call: Calls, left: fx.Node, right: fx.Node, sizes: Sizes) -> fx.Node:
    """A GEMM of matrices in float32 as operations on elements."""
    if sizes.terms <= MOST_TERMS:
        return _by_terms(call, left, right, sizes.terms)
    rank = 3 if sizes.batch else 2
    if sizes.columns == 1:
        turned = call(aten.transpose.int, right, rank - 2, rank - 1)
        return call(aten.sum.dim_IntList, call(aten.mul.Tensor, left, turned), [rank - 1], True)
    if sizes.rows == 1:
        turned = call(aten.transpose.int, left, rank - 2, rank - 1)
        return call(aten.sum.dim_IntList, call(aten.mul.Tensor, turned, right), [rank - 2], True)
    turned = call(aten.transpose.int, right, rank - 2, rank - 1)
    products = call(
        aten.mul.Tensor, call(aten.unsqueeze.default, left, rank - 1),
        call(aten.unsqueeze.default, turned, rank - 2))
    return call(aten.sum.dim_IntList, products, [rank])


def _by_terms(call: Calls, left: fx.Node, right: fx.Node, terms: int) -> fx.Node:
    """The sum of the products of a column with a row each."""
    if terms == 1:
        return call(aten.mul.Tensor, left, right)
    rank = len(facts_of(left.meta["val"]).size)
    total: fx.Node | None = None
    for at in range(terms):
        column = call(aten.slice.Tensor, left, rank - 1, at, at + 1)
        row = call(aten.slice.Tensor, right, rank - 2, at, at + 1)
        product = call(aten.mul.Tensor, column, row)
        total = product if total is None else call(aten.add.Tensor, total, product)
    assert total is not None
    return total
