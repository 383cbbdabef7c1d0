"""The Triton text of attention's backward: three kernels, none of which adds to what others write.

Weights are recomputed from the scores and the log-sum-exps that forward kept. `delta` is, for
each query, the sum over a head of result times gradient. `attention_backward_keys` runs over the
queries of a block of keys (transposed, so that GEMMs need no transposed weights) and gives
gradients of keys and values; `attention_backward_queries` runs over the keys of a block of queries
and gives the gradients of queries and, if they are wanted, of all scores: those of the bias.
"""

from __future__ import annotations

from typing import Final

# The texts that run the loops, see `template.Visit`.
RUN_KEYS: Final = """\
dk, dv = attention_keys_some(
    dk, dv, k, v, Q + b * QB + h * QH, GRAD + b * GB + h * GH, LSE + first * N_Q,
    DELTA + first * N_Q, <tensors>{table}b, h, columns, {begin}, {end}, <passed_of_keys>,
    QM, QD, GM, GD, D, E, PAD_D, PAD_E, PLAIN, {edge}, {checked}, ROWS)
"""
RUN_QUERIES: Final = """\
dq = attention_queries_some(
    dq, q, grad, lse, delta, K, V, <tensors>{table}{skip}DB, b, h, rows, {begin}, {end}, {passed},
    KN, KD, VN, VD, D, E, PAD_D, PAD_E, PLAIN, HAS_DB, {edge}, {checked}, COLUMNS)
"""
BACKWARD: Final = '''
@triton.jit
def attention_delta(
    OUT, GRAD, DELTA, HEADS: tl.constexpr, N_Q: tl.constexpr, E: tl.constexpr,
    PAD_E: tl.constexpr, OB: tl.constexpr, OH: tl.constexpr, OM: tl.constexpr, OD: tl.constexpr,
    GB: tl.constexpr, GH: tl.constexpr, GM: tl.constexpr, GD: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    blocks: tl.constexpr = (N_Q + ROWS - 1) // ROWS
    head = (tl.program_id(0) // blocks).to(tl.int64)
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    es = tl.arange(0, PAD_E)
    b = head // HEADS
    h = head % HEADS
    inside = (rows[:, None] < N_Q) & (es[None, :] < E)
    o_at = OUT + b * OB + h * OH + rows[:, None] * OM + es[None, :] * OD
    g_at = GRAD + b * GB + h * GH + rows[:, None] * GM + es[None, :] * GD
    out = tl.load(o_at, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(g_at, mask=inside, other=0.0).to(tl.float32)
    tl.store(DELTA + head * N_Q + rows, tl.sum(out * grad, 1), mask=rows < N_Q)


@triton.jit
def attention_keys_some(
    dk, dv, k, v, Q, GRAD, LSE, DELTA, <tensors><table>b, h, columns, begin, end,
    <facts>
    QM: tl.constexpr, QD: tl.constexpr, GM: tl.constexpr, GD: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr, PLAIN: tl.constexpr,
    EDGE: tl.constexpr, CHECKED: tl.constexpr, ROWS: tl.constexpr,
):
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    <each_queries>
        rows = start + tl.arange(0, ROWS)
        q_at = Q + rows[None, :] * QM + ds[:, None] * QD
        g_at = GRAD + rows[:, None] * GM + es[None, :] * GD
        if CHECKED or PAD_D != D:
            q = tl.load(q_at, mask=(rows[None, :] < N_Q) & (ds[:, None] < D), other=0.0)
        else:
            q = tl.load(q_at)
        if CHECKED:
            lse = tl.load(LSE + rows, mask=rows < N_Q, other=float("inf"))
            delta = tl.load(DELTA + rows, mask=rows < N_Q, other=0.0)
        else:
            lse = tl.load(LSE + rows)
            delta = tl.load(DELTA + rows)
        product = tl.dot(k, q)
        <weights> = attention_weights(
            product, <tensors>b, h, rows[None, :], columns[:, None], lse[None, :],
            <passed>, PLAIN, EDGE, CHECKED)
        if CHECKED or PAD_E != E:
            grad = tl.load(g_at, mask=(rows[:, None] < N_Q) & (es[None, :] < E), other=0.0)
        else:
            grad = tl.load(g_at)
        dv = tl.dot(weight.to(grad.dtype), grad, dv)
        slope = weight * (tl.dot(v, tl.trans(grad)) - delta[None, :])
        slope = attention_slope(slope, product, <slope_turned>)
        dk = tl.dot(slope.to(q.dtype), tl.trans(q), dk)
    return dk, dv


@triton.jit
def attention_backward_keys(
    Q, K, V, <tensors><walk_tensors>GRAD, LSE, DELTA, DK, DV,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    QB: tl.constexpr, QH: tl.constexpr, QM: tl.constexpr, QD: tl.constexpr,
    KB: tl.constexpr, KH: tl.constexpr, KN: tl.constexpr, KD: tl.constexpr,
    VB: tl.constexpr, VH: tl.constexpr, VN: tl.constexpr, VD: tl.constexpr,
    GB: tl.constexpr, GH: tl.constexpr, GM: tl.constexpr, GD: tl.constexpr,
    DKB: tl.constexpr, DKH: tl.constexpr, DKN: tl.constexpr,
    DVB: tl.constexpr, DVH: tl.constexpr, DVN: tl.constexpr,
    <facts>
    <walk_constants>
    PLAIN: tl.constexpr, NAN_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    MASKS_KEYS: tl.constexpr = (
        HAS_MASK and MM == 0 and (MH == 0 or GROUP == 1) and not NAN_ROWS)
    MASKS_SCORES: tl.constexpr = HAS_MASK and not MASKS_KEYS
    blocks: tl.constexpr = (N_K + COLUMNS - 1) // COLUMNS
    shared: tl.constexpr = HEADS // GROUP
    if CAUSAL:
        heads = tl.num_programs(0) // blocks
        block = tl.program_id(0) // heads
        head = tl.program_id(0) % heads
    else:
        block = tl.program_id(0) % blocks
        head = tl.program_id(0) // blocks
    b = (head // shared).to(tl.int64)
    own = (head % shared).to(tl.int64)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    k_at = K + b * KB + own * KH + columns[:, None] * KN + ds[None, :] * KD
    v_at = V + b * VB + own * VH + columns[:, None] * VN + es[None, :] * VD
    k = tl.load(k_at, mask=(columns[:, None] < N_K) & (ds[None, :] < D), other=0.0)
    v = tl.load(v_at, mask=(columns[:, None] < N_K) & (es[None, :] < E), other=0.0)
    dk = tl.zeros([COLUMNS, PAD_D], tl.float32)
    dv = tl.zeros([COLUMNS, PAD_E], tl.float32)
    for member in range(GROUP):
        h = own * GROUP + member
        first = b * HEADS + h
        <over_queries>
    <unseen>
    dk_at = DK + b * DKB + own * DKH + columns[:, None].to(tl.int64) * DKN + ds[None, :]
    dv_at = DV + b * DVB + own * DVH + columns[:, None].to(tl.int64) * DVN + es[None, :]
    tl.store(dk_at, (dk * SCALE).to(DK.dtype.element_ty),
             mask=(columns[:, None] < N_K) & (ds[None, :] < D))
    tl.store(dv_at, dv.to(DV.dtype.element_ty), mask=(columns[:, None] < N_K) & (es[None, :] < E))


@triton.jit
def attention_queries_some(
    dq, q, grad, lse, delta, K, V, <tensors><table><skips>DB, b, h, rows, begin, end,
    <facts>
    KN: tl.constexpr, KD: tl.constexpr, VN: tl.constexpr, VD: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr, PLAIN: tl.constexpr,
    HAS_DB: tl.constexpr, EDGE: tl.constexpr, CHECKED: tl.constexpr, COLUMNS: tl.constexpr,
):
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    <each_keys>
        columns = start + tl.arange(0, COLUMNS)
        k_at = K + ds[:, None] * KD + columns[None, :] * KN
        v_at = V + es[:, None] * VD + columns[None, :] * VN
        if CHECKED or PAD_D != D:
            k = tl.load(k_at, mask=(ds[:, None] < D) & (columns[None, :] < N_K), other=0.0)
        else:
            k = tl.load(k_at)
        if CHECKED or PAD_E != E:
            v = tl.load(v_at, mask=(es[:, None] < E) & (columns[None, :] < N_K), other=0.0)
        else:
            v = tl.load(v_at)
        product = tl.dot(q, k)
        <weights> = attention_weights(
            product, <tensors>b, h, rows[:, None], columns[None, :], lse[:, None],
            <passed>, PLAIN, EDGE, CHECKED)
        slope = weight * (tl.dot(grad, v) - delta[:, None])
        if HAS_DB:
            db_at = DB + rows[:, None] * N_K + columns[None, :]
            if CHECKED:
                inside = (rows[:, None] < N_Q) & (columns[None, :] < N_K)
                tl.store(db_at, slope.to(DB.dtype.element_ty), mask=inside)
            else:
                tl.store(db_at, slope.to(DB.dtype.element_ty))
        slope = attention_slope(slope, product, <slope>)
        dq = tl.dot(slope.to(k.dtype), tl.trans(k), dq)
    return dq


@triton.jit
def attention_backward_queries(
    Q, K, V, <tensors><walk_tensors>GRAD, LSE, DELTA, DQ, DB,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    QB: tl.constexpr, QH: tl.constexpr, QM: tl.constexpr, QD: tl.constexpr,
    KB: tl.constexpr, KH: tl.constexpr, KN: tl.constexpr, KD: tl.constexpr,
    VB: tl.constexpr, VH: tl.constexpr, VN: tl.constexpr, VD: tl.constexpr,
    GB: tl.constexpr, GH: tl.constexpr, GM: tl.constexpr, GD: tl.constexpr,
    DQB: tl.constexpr, DQH: tl.constexpr, DQM: tl.constexpr,
    <facts>
    <walk_constants>
    PLAIN: tl.constexpr, HAS_DB: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    blocks: tl.constexpr = (N_Q + ROWS - 1) // ROWS
    if CAUSAL:
        heads = tl.num_programs(0) // blocks
        block = blocks - 1 - tl.program_id(0) // heads
        head = (tl.program_id(0) % heads).to(tl.int64)
    else:
        block = <block>
        head = (tl.program_id(0) // blocks).to(tl.int64)
    b = head // HEADS
    h = head % HEADS
    rows = block * ROWS + tl.arange(0, ROWS)
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    q_at = Q + b * QB + h * QH + rows[:, None] * QM + ds[None, :] * QD
    g_at = GRAD + b * GB + h * GH + rows[:, None] * GM + es[None, :] * GD
    q = tl.load(q_at, mask=(rows[:, None] < N_Q) & (ds[None, :] < D), other=0.0)
    grad = tl.load(g_at, mask=(rows[:, None] < N_Q) & (es[None, :] < E), other=0.0)
    lse = tl.load(LSE + head * N_Q + rows, mask=rows < N_Q, other=float("inf"))
    delta = tl.load(DELTA + head * N_Q + rows, mask=rows < N_Q, other=0.0)
    K += b * KB + h // GROUP * KH
    V += b * VB + h // GROUP * VH
    DB += head * N_Q * N_K
    dq = tl.zeros([ROWS, PAD_D], tl.float32)
    <over_keys>
    dq_at = DQ + b * DQB + h * DQH + rows[:, None].to(tl.int64) * DQM + ds[None, :]
    tl.store(dq_at, (dq * SCALE).to(DQ.dtype.element_ty),
             mask=(rows[:, None] < N_Q) & (ds[None, :] < D))

'''
