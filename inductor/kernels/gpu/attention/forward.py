"""The Triton text of attention's forward: one program for each block of queries of a head.

Softmax is computed as keys come along (online): `most` is the greatest score of a row so far,
`total` the sum of exp(score - most), `acc` that of the values weighted with it. Scores are float32.
What a kernel is for comes as constants (see `spec.AttentionSpec.constants`). Where scores are
products times a scale, some of them left out (PLAIN), they are kept times log2(e); else as they
are, since adding, say, the least float32 must not overflow. Rows of which all scores are -inf give
zeros and a log-sum-exp of +inf.

Programs of causal attention start with the blocks that see most keys, of all heads: the short ones
fill what is left of the device.

The text is a template with slots, `<name>`: what is done to the scores and which blocks are visited
(see `template`).
"""

from __future__ import annotations

from typing import Final

# The text that runs the loop, see `template.Visit`.
RUN_FORWARD: Final = """\
acc, most, total = attention_some(
    acc, most, total, q, K, V, <tensors>{table}{skip}b, h, rows, {begin}, {end}, {passed},
    KN, KD, VN, VD, D, E, PAD_D, PAD_E, PLAIN, MAY_BE_EMPTY, {edge}, {checked}, COLUMNS)
"""
FORWARD: Final = '''
@triton.jit
def attention_some(
    acc, most, total, q, K, V, <tensors><table><skips>b, h, rows, begin, end,
    <facts>
    KN: tl.constexpr, KD: tl.constexpr, VN: tl.constexpr, VD: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    PLAIN: tl.constexpr, MAY_BE_EMPTY: tl.constexpr, EDGE: tl.constexpr, CHECKED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    <each_keys>
        columns = start + tl.arange(0, COLUMNS)
        k_at = K + ds[:, None] * KD + columns[None, :] * KN
        v_at = V + columns[:, None] * VN + es[None, :] * VD
        if CHECKED or PAD_D != D:
            k = tl.load(k_at, mask=(ds[:, None] < D) & (columns[None, :] < N_K), other=0.0)
        else:
            k = tl.load(k_at)
        product = tl.dot(q, k)
        if PLAIN:
            product = attention_masked(
                product, <masks>b, h, rows[:, None], columns[None, :], N_Q, N_K, HAS_MASK, MB, MH,
                MM, MN, CAUSAL, WINDOW, EDGE, CHECKED)
            now = tl.maximum(most, tl.max(product, 1) * (SCALE * LOG2E))
            if MAY_BE_EMPTY:
                base = tl.where(now == float("-inf"), 0.0, now)
            else:
                base = now
            weight = tl.exp2(product * (SCALE * LOG2E) - base[:, None])
            shrink = tl.exp2(most - base)
        else:
            score = attention_scores(
                product, <tensors>b, h, rows[:, None], columns[None, :],
                <passed>, EDGE, CHECKED)
            now = tl.maximum(most, tl.max(score, 1))
            if MAY_BE_EMPTY:
                base = tl.where(now == float("-inf"), 0.0, now)
            else:
                base = now
            weight = tl.exp2((score - base[:, None]) * LOG2E)
            shrink = tl.exp2((most - base) * LOG2E)
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None]
        if CHECKED or PAD_E != E:
            v = tl.load(v_at, mask=(columns[:, None] < N_K) & (es[None, :] < E), other=0.0)
        else:
            v = tl.load(v_at)
        acc = tl.dot(weight.to(v.dtype), v, acc)
        most = now
    return acc, most, total


@triton.jit
def attention_forward(
    Q, K, V, <tensors><walk_tensors>OUT, LSE,
    HEADS: tl.constexpr, GROUP: tl.constexpr, N_Q: tl.constexpr, N_K: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    QB: tl.constexpr, QH: tl.constexpr, QM: tl.constexpr, QD: tl.constexpr,
    KB: tl.constexpr, KH: tl.constexpr, KN: tl.constexpr, KD: tl.constexpr,
    VB: tl.constexpr, VH: tl.constexpr, VN: tl.constexpr, VD: tl.constexpr,
    OB: tl.constexpr, OH: tl.constexpr, OM: tl.constexpr, OD: tl.constexpr,
    HAS_BIAS: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, HAS_MASK: tl.constexpr, MB: tl.constexpr, MH: tl.constexpr,
    MM: tl.constexpr, MN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SCALE: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, MAY_BE_EMPTY: tl.constexpr,
    <walk_constants>
    NAN_ROWS: tl.constexpr, HAS_LSE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    blocks: tl.constexpr = (N_Q + ROWS - 1) // ROWS
    LN2: tl.constexpr = 0.6931471805599453
    if CAUSAL:
        heads = tl.num_programs(0) // blocks
        block = blocks - 1 - tl.program_id(0) // heads
        head = tl.program_id(0) % heads
    else:
        block = <block>
        head = tl.program_id(0) // blocks
    b = head // HEADS
    h = head % HEADS
    rows = block * ROWS + tl.arange(0, ROWS)
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    q_at = Q + b.to(tl.int64) * QB + h.to(tl.int64) * QH + rows[:, None] * QM + ds[None, :] * QD
    if N_Q % ROWS != 0 or PAD_D != D:
        q = tl.load(q_at, mask=(rows[:, None] < N_Q) & (ds[None, :] < D), other=0.0)
    else:
        q = tl.load(q_at)
    K += b.to(tl.int64) * KB + (h // GROUP).to(tl.int64) * KH
    V += b.to(tl.int64) * VB + (h // GROUP).to(tl.int64) * VH
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PAD_E], tl.float32)
    <over_keys>
    if MAY_BE_EMPTY and not NAN_ROWS:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    else:
        acc = acc / total[:, None]
    o_at = OUT + b.to(tl.int64) * OB + h.to(tl.int64) * OH + rows[:, None] * OM + es[None, :] * OD
    if N_Q % ROWS != 0 or PAD_E != E:
        tl.store(o_at, acc.to(OUT.dtype.element_ty), mask=(rows[:, None] < N_Q) & (es[None, :] < E))
    else:
        tl.store(o_at, acc.to(OUT.dtype.element_ty))
    if HAS_LSE:
        if PLAIN:
            lse = most * LN2 + tl.log(total)
        else:
            lse = most + tl.log(total)
        if MAY_BE_EMPTY:
            nothing: tl.constexpr = <nothing>
            lse = tl.where(total == 0.0, nothing, lse)
        tl.store(LSE + head.to(tl.int64) * N_Q + rows, lse, mask=rows < N_Q)

'''
