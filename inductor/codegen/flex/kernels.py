"""The Triton text of flex attention: forward, gradients of keys and values, gradients of queries.

Softmax is computed as keys come along, as in `codegen.attention`. Between product and softmax the
functions of the program change a tile (see `program.py`). With a block mask (`TABLES`) a program
visits the blocks that its tables name: partial ones with the mask, full ones without. Counts have
one number for each block of queries (forward) or keys (`.._turned`), indices a row of blocks. Else
it visits all, with the mask, if there is one. Rows that see nothing give zeros, and a log-sum-exp
of -inf. `#READS` stands for the tensors that those functions read.
"""

from __future__ import annotations

from typing import Final

from inductor.codegen.flex.program import FlexProgram

HEAD: Final = '''\
"""Generated: kernels of a flex attention."""

import triton
import triton.language as tl

from inductor.codegen.triton.prelude import *

'''
SEEN: Final = """
@triton.jit
def flex_seen{turned}(score, g, s, x, r0, #READSN_Q: tl.constexpr, N_K: tl.constexpr,
        MASKED: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr):
    seen = ({queries} < N_Q) & ({keys} < N_K)
    if MASKED:
        seen = seen & flex_mask{turned}(score, score, g, s, x, r0, #READSDOWN, ACROSS)
    return seen

"""
NO_MASK: Final = """
@triton.jit
def flex_mask{turned}(score, slope, g, s, x, r0, #READSDOWN: tl.constexpr, ACROSS: tl.constexpr):
    return x == x

"""
TYPES: Final = """\
    HEADS: tl.constexpr, GROUP: tl.constexpr, N_Q: tl.constexpr, N_K: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    QB: tl.constexpr, QH: tl.constexpr, QM: tl.constexpr, QD: tl.constexpr,
    KB: tl.constexpr, KH: tl.constexpr, KN: tl.constexpr, KD: tl.constexpr,
    VB: tl.constexpr, VH: tl.constexpr, VN: tl.constexpr, VD: tl.constexpr,
    OB: tl.constexpr, OH: tl.constexpr, OM: tl.constexpr, OD: tl.constexpr,
    GB: tl.constexpr, GH: tl.constexpr, GM: tl.constexpr, GD: tl.constexpr,
    SCALE: tl.constexpr, HAS_MASK: tl.constexpr, TABLES: tl.constexpr, FULL: tl.constexpr,
    TB: tl.constexpr, TH: tl.constexpr, Q_BLOCKS: tl.constexpr, K_BLOCKS: tl.constexpr,
    SPARSE_Q: tl.constexpr, SPARSE_K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
"""
FORWARD: Final = """
@triton.jit
def flex_some(
    acc, most, total, q, K, V, g, s, rows, start, #READS
    N_Q: tl.constexpr, N_K: tl.constexpr, KN: tl.constexpr, KD: tl.constexpr, VN: tl.constexpr,
    VD: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    SCALE: tl.constexpr, MASKED: tl.constexpr, EDGE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    columns = start + tl.arange(0, COLUMNS)
    k_at = K + ds[:, None] * KD + columns[None, :] * KN
    v_at = V + columns[:, None] * VN + es[None, :] * VD
    if EDGE or PAD_D != D:
        k = tl.load(k_at, mask=(ds[:, None] < D) & (columns[None, :] < N_K), other=0.0)
    else:
        k = tl.load(k_at)
    raw = tl.dot(q, k) * SCALE
    x = rows[:, None]
    r0 = columns[None, :]
    score = flex_score(raw, raw, g, s, x, r0, #READSROWS, COLUMNS)
    if MASKED:
        seen = flex_seen(raw, g, s, x, r0, #READSN_Q, N_K, True, ROWS, COLUMNS)
        score = tl.where(seen, score, float("-inf"))
    elif EDGE:
        score = tl.where(r0 < N_K, score, float("-inf"))
    now = tl.maximum(most, tl.max(score, 1))
    base = tl.where(now == float("-inf"), 0.0, now)
    weight = tl.exp2((score - base[:, None]) * LOG2E)
    shrink = tl.exp2((most - base) * LOG2E)
    total = total * shrink + tl.sum(weight, 1)
    acc = acc * shrink[:, None]
    if EDGE or PAD_E != E:
        v = tl.load(v_at, mask=(columns[:, None] < N_K) & (es[None, :] < E), other=0.0)
    else:
        v = tl.load(v_at)
    acc = tl.dot(weight.to(v.dtype), v, acc)
    return acc, now, total


@triton.jit
def flex_forward(
    Q, K, V, OUT, LSE, COUNT, INDEX, FULL_COUNT, FULL_INDEX, #READS
#TYPES):
    EDGE: tl.constexpr = N_K % COLUMNS != 0 or (TABLES and N_K % SPARSE_K != 0)
    blocks: tl.constexpr = (N_Q + ROWS - 1) // ROWS
    block = blocks - 1 - tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    g = head // HEADS
    s = head % HEADS
    b = g.to(tl.int64)
    h = s.to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    q_at = Q + b * QB + h * QH + rows[:, None] * QM + ds[None, :] * QD
    q = tl.load(q_at, mask=(rows[:, None] < N_Q) & (ds[None, :] < D), other=0.0)
    K += b * KB + h // GROUP * KH
    V += b * VB + h // GROUP * VH
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PAD_E], tl.float32)
    if TABLES:
        PARTS: tl.constexpr = SPARSE_K // COLUMNS
        row = (g * TB + s * TH) * Q_BLOCKS + block * ROWS // SPARSE_Q
        for i in range(0, tl.load(COUNT + row) * PARTS):
            start = tl.load(INDEX + row * K_BLOCKS + i // PARTS) * SPARSE_K + i % PARTS * COLUMNS
            acc, most, total = flex_some(
                acc, most, total, q, K, V, g, s, rows, start, #READS
                N_Q, N_K, KN, KD, VN, VD, D, E, PAD_D, PAD_E, SCALE, HAS_MASK, EDGE, ROWS,
                COLUMNS)
        if FULL:
            for i in range(0, tl.load(FULL_COUNT + row) * PARTS):
                first = tl.load(FULL_INDEX + row * K_BLOCKS + i // PARTS) * SPARSE_K
                acc, most, total = flex_some(
                    acc, most, total, q, K, V, g, s, rows, first + i % PARTS * COLUMNS, #READS
                    N_Q, N_K, KN, KD, VN, VD, D, E, PAD_D, PAD_E, SCALE, False, EDGE, ROWS,
                    COLUMNS)
    else:
        for start in range(0, N_K, COLUMNS):
            acc, most, total = flex_some(
                acc, most, total, q, K, V, g, s, rows, start, #READS
                N_Q, N_K, KN, KD, VN, VD, D, E, PAD_D, PAD_E, SCALE, HAS_MASK, EDGE, ROWS,
                COLUMNS)
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    o_at = OUT + b * OB + h * OH + rows[:, None] * OM + es[None, :] * OD
    tl.store(o_at, acc.to(OUT.dtype.element_ty), mask=(rows[:, None] < N_Q) & (es[None, :] < E))
    lse = tl.where(total == 0.0, float("-inf"), most + tl.log(total))
    tl.store(LSE + head.to(tl.int64) * N_Q + rows, lse, mask=rows < N_Q)

"""
KEYS: Final = """
@triton.jit
def flex_keys_some(
    dk, dv, k, v, Q, GRAD, LSE, DELTA, g, s, columns, start, #READS
    N_Q: tl.constexpr, N_K: tl.constexpr, QM: tl.constexpr, QD: tl.constexpr, GM: tl.constexpr,
    GD: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    SCALE: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    rows = start + tl.arange(0, ROWS)
    q_at = Q + rows[None, :] * QM + ds[:, None] * QD
    g_at = GRAD + rows[:, None] * GM + es[None, :] * GD
    q = tl.load(q_at, mask=(rows[None, :] < N_Q) & (ds[:, None] < D), other=0.0)
    lse = tl.load(LSE + rows, mask=rows < N_Q, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    delta = tl.load(DELTA + rows, mask=rows < N_Q, other=0.0)
    raw = tl.dot(k, q) * SCALE
    x = columns[:, None]
    r0 = rows[None, :]
    seen = flex_seen_turned(raw, g, s, x, r0, #READSN_Q, N_K, MASKED, COLUMNS, ROWS)
    score = flex_score_turned(raw, raw, g, s, x, r0, #READSCOLUMNS, ROWS)
    weight = tl.where(seen, tl.exp2((score - lse[None, :]) * LOG2E), 0.0)
    grad = tl.load(g_at, mask=(rows[:, None] < N_Q) & (es[None, :] < E), other=0.0)
    dv = tl.dot(weight.to(grad.dtype), grad, dv)
    slope = weight * (tl.dot(v, tl.trans(grad)) - delta[None, :])
    slope = flex_slope_turned(raw, slope, g, s, x, r0, #READSCOLUMNS, ROWS)
    slope = tl.where(seen, slope, 0.0)
    dk = tl.dot(slope.to(q.dtype), tl.trans(q), dk)
    return dk, dv


@triton.jit
def flex_keys(
    Q, K, V, GRAD, LSE, DELTA, DK, DV, COUNT, INDEX, FULL_COUNT, FULL_INDEX, #READS
#TYPES):
    blocks: tl.constexpr = (N_K + COLUMNS - 1) // COLUMNS
    shared: tl.constexpr = HEADS // GROUP
    block = tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    g = head // shared
    b = g.to(tl.int64)
    own = head % shared
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    at = own.to(tl.int64)
    k_at = K + b * KB + at * KH + columns[:, None] * KN + ds[None, :] * KD
    v_at = V + b * VB + at * VH + columns[:, None] * VN + es[None, :] * VD
    k = tl.load(k_at, mask=(columns[:, None] < N_K) & (ds[None, :] < D), other=0.0)
    v = tl.load(v_at, mask=(columns[:, None] < N_K) & (es[None, :] < E), other=0.0)
    dk = tl.zeros([COLUMNS, PAD_D], tl.float32)
    dv = tl.zeros([COLUMNS, PAD_E], tl.float32)
    for member in range(GROUP):
        s = own * GROUP + member
        h = s.to(tl.int64)
        q_of = Q + b * QB + h * QH
        g_of = GRAD + b * GB + h * GH
        lse_of = LSE + (b * HEADS + h) * N_Q
        delta_of = DELTA + (b * HEADS + h) * N_Q
        if TABLES:
            PARTS: tl.constexpr = SPARSE_Q // ROWS
            row = (g * TB + s * TH) * K_BLOCKS + block * COLUMNS // SPARSE_K
            for i in range(0, tl.load(COUNT + row) * PARTS):
                first = tl.load(INDEX + row * Q_BLOCKS + i // PARTS) * SPARSE_Q
                dk, dv = flex_keys_some(
                    dk, dv, k, v, q_of, g_of, lse_of, delta_of, g, s, columns,
                    first + i % PARTS * ROWS, #READS
                    N_Q, N_K, QM, QD, GM, GD, D, E, PAD_D, PAD_E, SCALE, HAS_MASK, ROWS, COLUMNS)
            if FULL:
                for i in range(0, tl.load(FULL_COUNT + row) * PARTS):
                    first = tl.load(FULL_INDEX + row * Q_BLOCKS + i // PARTS) * SPARSE_Q
                    dk, dv = flex_keys_some(
                        dk, dv, k, v, q_of, g_of, lse_of, delta_of, g, s, columns,
                        first + i % PARTS * ROWS, #READS
                        N_Q, N_K, QM, QD, GM, GD, D, E, PAD_D, PAD_E, SCALE, False, ROWS, COLUMNS)
        else:
            for start in range(0, N_Q, ROWS):
                dk, dv = flex_keys_some(
                    dk, dv, k, v, q_of, g_of, lse_of, delta_of, g, s, columns, start, #READS
                    N_Q, N_K, QM, QD, GM, GD, D, E, PAD_D, PAD_E, SCALE, HAS_MASK, ROWS, COLUMNS)
    step: tl.constexpr = HEADS // GROUP
    dk_at = DK + ((b * N_K + columns[:, None]) * step + own) * D + ds[None, :]
    dv_at = DV + ((b * N_K + columns[:, None]) * step + own) * E + es[None, :]
    tl.store(dk_at, (dk * SCALE).to(DK.dtype.element_ty),
             mask=(columns[:, None] < N_K) & (ds[None, :] < D))
    tl.store(dv_at, dv.to(DV.dtype.element_ty), mask=(columns[:, None] < N_K) & (es[None, :] < E))

"""
QUERIES: Final = """
@triton.jit
def flex_queries_some(
    dq, q, grad, lse, delta, K, V, g, s, rows, start, #READS
    N_Q: tl.constexpr, N_K: tl.constexpr, KN: tl.constexpr, KD: tl.constexpr, VN: tl.constexpr,
    VD: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    SCALE: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    columns = start + tl.arange(0, COLUMNS)
    k_at = K + ds[:, None] * KD + columns[None, :] * KN
    v_at = V + es[:, None] * VD + columns[None, :] * VN
    k = tl.load(k_at, mask=(ds[:, None] < D) & (columns[None, :] < N_K), other=0.0)
    v = tl.load(v_at, mask=(es[:, None] < E) & (columns[None, :] < N_K), other=0.0)
    raw = tl.dot(q, k) * SCALE
    x = rows[:, None]
    r0 = columns[None, :]
    seen = flex_seen(raw, g, s, x, r0, #READSN_Q, N_K, MASKED, ROWS, COLUMNS)
    score = flex_score(raw, raw, g, s, x, r0, #READSROWS, COLUMNS)
    weight = tl.where(seen, tl.exp2((score - lse[:, None]) * LOG2E), 0.0)
    slope = weight * (tl.dot(grad, v) - delta[:, None])
    slope = flex_slope(raw, slope, g, s, x, r0, #READSROWS, COLUMNS)
    slope = tl.where(seen, slope, 0.0)
    dq = tl.dot(slope.to(k.dtype), tl.trans(k), dq)
    return dq


@triton.jit
def flex_queries(
    Q, K, V, GRAD, LSE, DELTA, DQ, COUNT, INDEX, FULL_COUNT, FULL_INDEX, #READS
#TYPES):
    blocks: tl.constexpr = (N_Q + ROWS - 1) // ROWS
    block = blocks - 1 - tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    g = head // HEADS
    s = head % HEADS
    b = g.to(tl.int64)
    h = s.to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    q_at = Q + b * QB + h * QH + rows[:, None] * QM + ds[None, :] * QD
    g_at = GRAD + b * GB + h * GH + rows[:, None] * GM + es[None, :] * GD
    q = tl.load(q_at, mask=(rows[:, None] < N_Q) & (ds[None, :] < D), other=0.0)
    grad = tl.load(g_at, mask=(rows[:, None] < N_Q) & (es[None, :] < E), other=0.0)
    at = head.to(tl.int64) * N_Q + rows
    lse = tl.load(LSE + at, mask=rows < N_Q, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    delta = tl.load(DELTA + at, mask=rows < N_Q, other=0.0)
    K += b * KB + h // GROUP * KH
    V += b * VB + h // GROUP * VH
    dq = tl.zeros([ROWS, PAD_D], tl.float32)
    if TABLES:
        PARTS: tl.constexpr = SPARSE_K // COLUMNS
        row = (g * TB + s * TH) * Q_BLOCKS + block * ROWS // SPARSE_Q
        for i in range(0, tl.load(COUNT + row) * PARTS):
            start = tl.load(INDEX + row * K_BLOCKS + i // PARTS) * SPARSE_K + i % PARTS * COLUMNS
            dq = flex_queries_some(
                dq, q, grad, lse, delta, K, V, g, s, rows, start, #READS
                N_Q, N_K, KN, KD, VN, VD, D, E, PAD_D, PAD_E, SCALE, HAS_MASK, ROWS, COLUMNS)
        if FULL:
            for i in range(0, tl.load(FULL_COUNT + row) * PARTS):
                first = tl.load(FULL_INDEX + row * K_BLOCKS + i // PARTS) * SPARSE_K
                dq = flex_queries_some(
                    dq, q, grad, lse, delta, K, V, g, s, rows, first + i % PARTS * COLUMNS, #READS
                    N_Q, N_K, KN, KD, VN, VD, D, E, PAD_D, PAD_E, SCALE, False, ROWS, COLUMNS)
    else:
        for start in range(0, N_K, COLUMNS):
            dq = flex_queries_some(
                dq, q, grad, lse, delta, K, V, g, s, rows, start, #READS
                N_Q, N_K, KN, KD, VN, VD, D, E, PAD_D, PAD_E, SCALE, HAS_MASK, ROWS, COLUMNS)
    dq_at = DQ + ((b * N_Q + rows[:, None]) * HEADS + h) * D + ds[None, :]
    tl.store(dq_at, (dq * SCALE).to(DQ.dtype.element_ty),
             mask=(rows[:, None] < N_Q) & (ds[None, :] < D))

"""


def kernel_text(program: FlexProgram) -> str:
    """The module of all kernels of a program."""
    both = (("", "x", "r0"), ("_turned", "r0", "x"))
    parts = [program.text]
    if not program.masked:
        parts += [NO_MASK.format(turned=turned) for turned, _, _ in both]
    for turned, queries, keys in both:
        parts.append(SEEN.format(turned=turned, queries=queries, keys=keys))
    parts += [FORWARD, KEYS, QUERIES]
    names = "".join(f"R{place}, " for place in program.reads)
    return HEAD + "".join(parts).replace("#TYPES", TYPES).replace("#READS", names)
