"""Flex attention as what `codegen.attention.template` asks: its scores, the blocks that it visits.

Between product and softmax the functions of the program change a tile (see `program`). With the
tables of a block mask, kernels visit the blocks that those name: partial ones with the mask, full
ones without. Counts have one number for each block of queries (keys, where gradients of keys are
computed), indices a row of blocks. Else all blocks are visited, with the mask, if there is one.
Rows that see nothing give zeros, and a log-sum-exp of -inf.
"""

from __future__ import annotations

from typing import Final

from inductor.kernels.gpu.attention.attention_template import (
    Loops,
    Scores,
    Visit,
    Walk,
    fill,
    render,
)
from inductor.kernels.gpu.attention.flex_program import FlexProgram
from inductor.kernels.gpu.attention.plain import WALK

HEAD: Final = '''\
"""Generated: kernels of a flex attention."""

import triton
import triton.language as tl

from inductor.codegen.triton.prelude import *

'''
# A function of the program; along the columns of a turned tile are queries.
OF_TILE: Final = """\
if rows.shape[0] == 1:
    {result} = {function}_turned(
        score, {given}, b.to(tl.int32), h.to(tl.int32), columns, rows, <tensors>score.shape[0],
        score.shape[1])
else:
    {result} = {function}(
        score, {given}, b.to(tl.int32), h.to(tl.int32), rows, columns, <tensors>score.shape[0],
        score.shape[1])
"""
MASKED: Final = """\
if <some_left_out>:
    <mask>
    seen = seen & inside
"""
FUNCTIONS: Final = """
@triton.jit
def attention_seen(
    score, <tensors>b, h, rows, columns, N_Q: tl.constexpr, N_K: tl.constexpr, EDGE: tl.constexpr,
    CHECKED: tl.constexpr,
):
    if CHECKED:
        seen = (rows < N_Q) & (columns < N_K)
    else:
        seen = rows == rows
    <masked>
    return seen


@triton.jit
def attention_masked(
    score, <tensors>b, h, rows, columns, N_Q: tl.constexpr, N_K: tl.constexpr,
    HAS_MASK: tl.constexpr, MB: tl.constexpr, MH: tl.constexpr, MM: tl.constexpr,
    MN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EDGE: tl.constexpr,
    CHECKED: tl.constexpr,
):
    seen = attention_seen(score, <tensors>b, h, rows, columns, N_Q, N_K, EDGE, CHECKED)
    return tl.where(seen, score, float("-inf"))


@triton.jit
def attention_scores(
    product, <tensors>b, h, rows, columns,
    <facts>
    EDGE: tl.constexpr, CHECKED: tl.constexpr,
):
    score = product * SCALE
    <score>
    seen = attention_seen(product, <tensors>b, h, rows, columns, N_Q, N_K, EDGE, CHECKED)
    return tl.where(seen, score, float("-inf"))


@triton.jit
def attention_weights(
    product, <tensors>b, h, rows, columns, lse,
    <facts>
    PLAIN: tl.constexpr, EDGE: tl.constexpr, CHECKED: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    score = product * SCALE
    <score>
    seen = attention_seen(product, <tensors>b, h, rows, columns, N_Q, N_K, EDGE, CHECKED)
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    weight = tl.where(seen, tl.exp2((score - lse) * LOG2E), 0.0)
    return weight, seen


@triton.jit
def attention_slope(slope, product, seen, <tensors>b, h, rows, columns, SCALE: tl.constexpr):
    score = product * SCALE
    <bent>
    return tl.where(seen, slope, 0.0)

"""
TENSORS: Final = "COUNT, INDEX, FULL_COUNT, FULL_INDEX, "
CONSTANTS: Final = """\
FULL: tl.constexpr, TB: tl.constexpr, TH: tl.constexpr, Q_BLOCKS: tl.constexpr,
K_BLOCKS: tl.constexpr, SPARSE_Q: tl.constexpr, SPARSE_K: tl.constexpr,
"""
OVER: Final = """\
row = (b * TB + h * TH) * {all} + {block} // {sparse}
<partial>
if FULL:
    <full>
"""
EACH: Final = """\
for i in range(begin, end):
    start = tl.load(TABLE + i // (SPARSE // {size})) * SPARSE + i % (SPARSE // {size}) * {size}"""


def _loops(own: str, lines: str, other: str, lengths: str, size: str) -> Loops:
    """own, other: Q and K, or the other way round: blocks of `own`, for each of which those of the
    other are visited. lines: the first one of a block; lengths, size: of the other."""
    sparse = f"SPARSE_{other}"

    def visit(table: str, edge: str) -> Visit:
        row = f"{table}INDEX + row * {other}_BLOCKS, {sparse}, "
        count = f"tl.load({table}COUNT + row) * ({sparse} // {size})"
        return Visit("0", count, edge, f"{lengths} % {sparse} != 0", row)

    text = OVER.format(all=f"{own}_BLOCKS", block=lines, sparse=f"SPARSE_{own}")
    return Loops(text, {"partial": visit("", "True"), "full": visit("FULL_", "False")})


TABLES: Final = Walk(
    block="blocks - 1 - tl.program_id(0) % blocks",
    over_keys=_loops("Q", "block * ROWS", "K", "N_K", "COLUMNS"),
    over_queries=_loops("K", "block * COLUMNS", "Q", "N_Q", "ROWS"),
    each_keys=EACH.format(size="COLUMNS"),
    each_queries=EACH.format(size="ROWS"),
    tensors=TENSORS,
    constants=CONSTANTS,
    table="TABLE, SPARSE: tl.constexpr, ",
)


def kernel_text(program: FlexProgram, tables: bool) -> str:
    """The module of all kernels of a program. tables: with a block mask."""
    slots = {
        "masked": MASKED if program.masked else "",
        "some_left_out": "EDGE" if tables else "True",
        "mask": OF_TILE.format(result="inside", function="flex_mask", given="score"),
        "score": OF_TILE.format(result="score", function="flex_score", given="score"),
        "bent": OF_TILE.format(result="slope", function="flex_slope", given="slope"),
    }
    reads = "".join(f"R{place}, " for place in program.reads)
    scores = Scores(
        program.text + fill(FUNCTIONS, slots), reads, reads, "weight, seen",
        f"seen, {reads}b, h, {{rows}}, {{columns}}, SCALE", 'float("-inf")',
    )
    return render(scores, TABLES if tables else WALK, HEAD)
