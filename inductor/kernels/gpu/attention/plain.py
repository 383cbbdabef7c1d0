"""Plain attention: products times a scale, a soft cap, a bias, a mask, a window; all blocks.

`score` is float32; rows and columns are blocks of two axes, of which one is 1. `product` is queries
times keys, or that transposed. Of queries beyond the last one, which nothing stores, a block that
is not checked reads the bias and mask of the last.
"""

from __future__ import annotations

from typing import Final

from inductor.kernels.gpu.attention.attention_template import (
    PASSED,
    Loops,
    Scores,
    Visit,
    Walk,
    fill,
    render,
)
from inductor.kernels.gpu.attention.few import FEW

HEAD: Final = '''\
"""Generated: kernels of attention."""

import triton
import triton.language as tl

'''
SCORES: Final = """
@triton.jit
def attention_masked(
    score, MASK, b, h, rows, columns, N_Q: tl.constexpr, N_K: tl.constexpr,
    HAS_MASK: tl.constexpr, MB: tl.constexpr, MH: tl.constexpr, MM: tl.constexpr,
    MN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EDGE: tl.constexpr,
    CHECKED: tl.constexpr,
):
    if HAS_MASK:
        at = MASK + b.to(tl.int64) * MB + h.to(tl.int64) * MH
        if MM == 0:
            seen = tl.load(at + columns * MN, mask=columns < N_K, other=0) != 0
        elif CHECKED:
            inside = (rows < N_Q) & (columns < N_K)
            seen = tl.load(at + rows * MM + columns * MN, mask=inside, other=0) != 0
        else:
            seen = tl.load(at + tl.minimum(rows, N_Q - 1) * MM + columns * MN) != 0
        score = tl.where(seen, score, float("-inf"))
    if EDGE:
        if CAUSAL:
            score = tl.where(rows >= columns, score, float("-inf"))
        if WINDOW > 0:
            score = tl.where(rows - columns < WINDOW, score, float("-inf"))
        if CHECKED:
            score = tl.where(columns < N_K, score, float("-inf"))
    return score


@triton.jit
def attention_scores(
    product, BIAS, MASK, b, h, rows, columns,
    <facts>
    EDGE: tl.constexpr, CHECKED: tl.constexpr,
):
    score = product * SCALE
    if CAP > 0:
        score = CAP - (2 * CAP) / (tl.exp2(score * (2.8853900817779268 / CAP)) + 1.0)
    if HAS_BIAS:
        at = BIAS + b.to(tl.int64) * BB + h.to(tl.int64) * BH
        if BM == 0:
            bias = tl.load(at + columns * BN, mask=columns < N_K, other=0.0)
        elif CHECKED:
            inside = (rows < N_Q) & (columns < N_K)
            bias = tl.load(at + rows * BM + columns * BN, mask=inside, other=0.0)
        else:
            bias = tl.load(at + tl.minimum(rows, N_Q - 1) * BM + columns * BN)
        score += bias.to(tl.float32)
    score = attention_masked(
        score, MASK, b, h, rows, columns, N_Q, N_K, HAS_MASK, MB, MH, MM, MN, CAUSAL, WINDOW, EDGE,
        CHECKED)
    return score


@triton.jit
def attention_weights(
    product, BIAS, MASK, b, h, rows, columns, lse,
    <facts>
    PLAIN: tl.constexpr, EDGE: tl.constexpr, CHECKED: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    if PLAIN:
        product = attention_masked(
            product, MASK, b, h, rows, columns, N_Q, N_K, HAS_MASK, MB, MH, MM, MN, CAUSAL, WINDOW,
            EDGE, CHECKED)
        weight = tl.exp2(product * (SCALE * LOG2E) - lse * LOG2E)
    else:
        score = attention_scores(
            product, BIAS, MASK, b, h, rows, columns, <passed>, EDGE, CHECKED)
        weight = tl.exp2((score - lse) * LOG2E)
    return weight


@triton.jit
def attention_slope(slope, product, SCALE: tl.constexpr, CAP: tl.constexpr):
    if CAP > 0:
        bent = 1.0 - 2.0 / (tl.exp2(product * (SCALE * 2.8853900817779268 / CAP)) + 1.0)
        slope = slope * (1.0 - bent * bent)
    return slope

"""
# Keys that a mask of keys hides at the start or the end of a sequence are not visited, and between
# these it is not looked at: a load that each step waits for. first, stop: blocks of keys that are
# seen; whole, until: those of which all are, if no other key is hidden between them.
SEEN: Final = """
@triton.jit
def attention_seen_keys(
    MASK, b, h, N_K: tl.constexpr, MB: tl.constexpr, MH: tl.constexpr, MN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    WIDTH: tl.constexpr = triton.next_power_of_2(N_K)
    keys = tl.arange(0, WIDTH)
    at = MASK + b.to(tl.int64) * MB + h.to(tl.int64) * MH + keys * MN
    seen = tl.load(at, mask=keys < N_K, other=0) != 0
    first = tl.min(tl.where(seen, keys, N_K), 0)
    stop = tl.max(tl.where(seen, keys + 1, 0), 0)
    count = tl.sum(seen.to(tl.int32), 0)
    whole = (first + COLUMNS - 1) // COLUMNS * COLUMNS
    until = tl.where(count == stop - first, stop // COLUMNS * COLUMNS, 0)
    return first // COLUMNS * COLUMNS, stop, whole, until

"""
START: Final = "start = tl.where(place < gap, place, place + skipped)"
UNSEEN_KEYS: Final = """\
if MASKS_KEYS:
    seen_at = MASK + b * MB + own * GROUP * MH + columns * MN
    seen = tl.load(seen_at, mask=columns < N_K, other=0) != 0
    dk = tl.where(seen[:, None], dk, 0.0)
    dv = tl.where(seen[:, None], dv, 0.0)
"""
OVER_KEYS: Final = """\
begin = 0
end = N_K // COLUMNS * COLUMNS
last = N_K
if WINDOW > 0:
    begin = tl.maximum(block * ROWS - WINDOW + 1, 0) // COLUMNS * COLUMNS
if CAUSAL:
    end = tl.minimum((block * ROWS + 1) // COLUMNS * COLUMNS, N_K // COLUMNS * COLUMNS)
    last = tl.minimum((block + 1) * ROWS, N_K)
SCANS: tl.constexpr = <scans>
gap = 0
skipped = 0
if SCANS:
    first, stop, whole, until = attention_seen_keys(MASK, b, h, N_K, MB, MH, MN, COLUMNS)
    begin = tl.maximum(begin, first)
    last = tl.minimum(last, stop)
    if WINDOW == 0:
        gap = tl.maximum(begin, whole)
        until = tl.minimum(until, end)
        <seen>
        skipped = tl.maximum(until - gap, 0)
        last = last - skipped
elif WINDOW == 0:
    <inner>
    begin = end
if CAUSAL or WINDOW > 0 or N_K % COLUMNS != 0 or SCANS:
    <outer>
"""
OVER_QUERIES: Final = """\
begin = 0
if CAUSAL:
    begin = block * COLUMNS // ROWS * ROWS
    edge = tl.minimum((block * COLUMNS + COLUMNS + ROWS - 1) // ROWS * ROWS, N_Q)
    <outer>
    begin = edge
<inner>
"""

WALK: Final = Walk(
    block="tl.program_id(0) % blocks",
    over_keys=Loops(OVER_KEYS, {
        "seen": Visit(
            "gap", "until", "False", "N_Q % ROWS != 0 and (<stores>False)",
            masked="False", skip="0, 0, ",
        ),
        "inner": Visit(
            "begin", "end", "False", "N_Q % ROWS != 0 and (<stores>False)", skip="0, 0, ",
        ),
        "outer": Visit("begin", "last", "True", "True", skip="gap, skipped, "),
    }),
    over_queries=Loops(OVER_QUERIES, {
        "inner": Visit(
            "begin", "N_Q", "WINDOW > 0",
            "N_Q % ROWS != 0 or N_K % COLUMNS != 0"
            " and (HAS_BIAS and BM != 0 or MASKS_SCORES and MM != 0)",
        ),
        "outer": Visit("begin", "edge", "True", "True"),
    }),
    each_keys="for place in range(begin, end, COLUMNS):\n    " + START,
    each_queries="for start in range(begin, end, ROWS):", skips="gap, skipped, ", functions=SEEN,
)  # fmt: skip


def kernel_text() -> str:
    """The module of all kernels."""
    scores = Scores(
        SCORES, "BIAS, MASK, ", "MASK, ", "weight", "SCALE, CAP",
        'float("nan") if NAN_ROWS else float("inf")', UNSEEN_KEYS,
    )
    few = fill(FEW, {"tensors": scores.tensors, "passed": PASSED})
    return render(scores, WALK, HEAD) + few
