"""The Triton text of attention of few queries, as in decoding: the keys are shared out.

A program takes all queries of the heads that share one head of keys, so that each key is read once,
and a chunk of the keys (`attention_few`). It leaves what it has found, as if there were no other
keys, with the log-sum-exps of its scores; `attention_join` weighs the chunks by those. Where there
are counters, zeros before the call, there is no such launch: each program counts itself, and the
last one of a head of keys weighs its chunks. The loop over keys is the one of `forward`.
"""

from __future__ import annotations

from typing import Final

FEW: Final = '''
@triton.jit
def attention_few(
    Q, K, V, <tensors>PART, LSE, OUT, ARRIVED,
    HEADS: tl.constexpr, GROUP: tl.constexpr, N_Q: tl.constexpr, N_K: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, PAD_D: tl.constexpr, PAD_E: tl.constexpr,
    QB: tl.constexpr, QH: tl.constexpr, QM: tl.constexpr, QD: tl.constexpr,
    KB: tl.constexpr, KH: tl.constexpr, KN: tl.constexpr, KD: tl.constexpr,
    VB: tl.constexpr, VH: tl.constexpr, VN: tl.constexpr, VD: tl.constexpr,
    HAS_BIAS: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, HAS_MASK: tl.constexpr, MB: tl.constexpr, MH: tl.constexpr,
    MM: tl.constexpr, MN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SCALE: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, MAY_BE_EMPTY: tl.constexpr,
    OB: tl.constexpr, OH: tl.constexpr, OM: tl.constexpr, OD: tl.constexpr,
    NAN_ROWS: tl.constexpr, SPLITS: tl.constexpr, PAD_SPLITS: tl.constexpr, CHUNK: tl.constexpr,
    COUNTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    LN2: tl.constexpr = 0.6931471805599453
    ONES: tl.constexpr = GROUP * N_Q  # rows of the tile that are queries
    split = tl.program_id(0) % SPLITS
    shared = tl.program_id(0) // SPLITS
    b = shared // (HEADS // GROUP)
    own = shared % (HEADS // GROUP)
    at = tl.arange(0, ROWS)
    row = tl.minimum(at, ONES - 1)
    rows = row % N_Q
    h = own * GROUP + row // N_Q
    ds = tl.arange(0, PAD_D)
    es = tl.arange(0, PAD_E)
    q_at = Q + b.to(tl.int64) * QB + h[:, None].to(tl.int64) * QH + rows[:, None] * QM
    q = tl.load(q_at + ds[None, :] * QD, mask=(at[:, None] < ONES) & (ds[None, :] < D), other=0.0)
    K += b.to(tl.int64) * KB + own.to(tl.int64) * KH
    V += b.to(tl.int64) * VB + own.to(tl.int64) * VH
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PAD_E], tl.float32)
    begin = split * CHUNK
    end = tl.minimum(begin + CHUNK, N_K)
    acc, most, total = attention_some(
        acc, most, total, q, K, V, <tensors>0, 0, b, h[:, None], rows, begin, end, <passed>, KN, KD,
        VN, VD, D, E, PAD_D, PAD_E, PLAIN, MAY_BE_EMPTY or CAUSAL, True, True, COLUMNS)
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if PLAIN:
        lse = most * LN2 + tl.log(total)
    else:
        lse = most + tl.log(total)
    lse = tl.where(total == 0.0, float("-inf"), lse)
    to = tl.program_id(0) * ONES + at
    tl.store(LSE + to, lse, mask=at < ONES)
    tl.store(
        PART + to[:, None].to(tl.int64) * E + es[None, :], acc,
        mask=(at[:, None] < ONES) & (es[None, :] < E))
    if COUNTED:
        tl.debug_barrier()  # all threads have stored before one of them counts the program
        arrived = tl.atomic_add(ARRIVED + shared, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            out = attention_joined(
                PART, LSE, shared * SPLITS, at, es, ONES, E, PAD_E, NAN_ROWS, SPLITS, PAD_SPLITS,
                ROWS)
            o_at = OUT + b.to(tl.int64) * OB + h[:, None].to(tl.int64) * OH + rows[:, None] * OM
            tl.store(
                o_at + es[None, :] * OD, out.to(OUT.dtype.element_ty),
                mask=(at[:, None] < ONES) & (es[None, :] < E))
            tl.store(ARRIVED + shared, 0)


@triton.jit
def attention_joined(
    PART, LSE, first, at, es, ONES: tl.constexpr, E: tl.constexpr, PAD_E: tl.constexpr,
    NAN_ROWS: tl.constexpr, SPLITS: tl.constexpr, PAD_SPLITS: tl.constexpr, ROWS: tl.constexpr,
):
    """Chunks of a head of keys, weighed. Other multiprocessors have written them: `.cg` reads past
    the cache of this one."""
    LOG2E: tl.constexpr = 1.4426950408889634
    SIDE_BY_SIDE: tl.constexpr = PAD_SPLITS if PAD_SPLITS < 8 else 8  # whose loads are in flight
    part = tl.arange(0, PAD_SPLITS)
    all_lse = tl.load(
        LSE + (first + part[None, :]) * ONES + at[:, None],
        mask=(part[None, :] < SPLITS) & (at[:, None] < ONES), other=float("-inf"),
        cache_modifier=".cg")
    most = tl.max(all_lse, 1)
    most = tl.where(most == float("-inf"), 0.0, most)
    total = tl.sum(tl.exp2((all_lse - most[:, None]) * LOG2E), 1)
    if not NAN_ROWS:
        total = tl.where(total == 0.0, 1.0, total)
    out = tl.zeros([ROWS, PAD_E], tl.float32)
    for start in range(0, SPLITS, SIDE_BY_SIDE):
        for n in tl.static_range(SIDE_BY_SIDE):
            to = (first + start + n) * ONES + at
            inside = (at < ONES) & (start + n < SPLITS)
            lse = tl.load(LSE + to, mask=inside, other=float("-inf"), cache_modifier=".cg")
            some = tl.load(
                PART + to[:, None].to(tl.int64) * E + es[None, :],
                mask=inside[:, None] & (es[None, :] < E), other=0.0, cache_modifier=".cg")
            out += some * tl.exp2((lse - most) * LOG2E)[:, None]
    return out / total[:, None]


@triton.jit
def attention_join(
    PART, LSE, OUT,
    HEADS: tl.constexpr, GROUP: tl.constexpr, N_Q: tl.constexpr, E: tl.constexpr,
    PAD_E: tl.constexpr, OB: tl.constexpr, OH: tl.constexpr, OM: tl.constexpr, OD: tl.constexpr,
    NAN_ROWS: tl.constexpr, SPLITS: tl.constexpr, PAD_SPLITS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    head = tl.program_id(0) // N_Q
    row = tl.program_id(0) % N_Q
    b = head // HEADS
    h = head % HEADS
    part = tl.arange(0, PAD_SPLITS)
    es = tl.arange(0, PAD_E)
    shared = head // GROUP
    at = (shared * SPLITS + part) * (GROUP * N_Q) + (h % GROUP) * N_Q + row
    lse = tl.load(LSE + at, mask=part < SPLITS, other=float("-inf"))
    some = tl.load(
        PART + at[:, None].to(tl.int64) * E + es[None, :],
        mask=(part[:, None] < SPLITS) & (es[None, :] < E), other=0.0)
    most = tl.max(lse, 0)
    weight = tl.exp2((lse - tl.where(most == float("-inf"), 0.0, most)) * LOG2E)
    total = tl.sum(weight, 0)
    if not NAN_ROWS:
        total = tl.where(total == 0.0, 1.0, total)
    out = tl.sum(some * weight[:, None], 0) / total
    o_at = OUT + b.to(tl.int64) * OB + h.to(tl.int64) * OH + row * OM + es * OD
    tl.store(o_at, out.to(OUT.dtype.element_ty), mask=es < E)
'''
