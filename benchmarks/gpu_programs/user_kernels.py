"""Triton kernels as users write them, for `kernels`; imported where Triton is installed."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_forward(X, W, Y, R, columns, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    w = tl.load(W + at, mask=at < columns, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(R + row, r)
    tl.store(Y + row * columns + at, x * r * w, mask=at < columns)


@triton.jit
def rms_backward(DY, X, W, R, DX, DW, rows, columns, each, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(W + at, mask=inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program * each, min((program + 1) * each, rows)):
        x = tl.load(X + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(DY + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(R + row)
        normed = x * r
        dyw = dy * w
        dx = r * (dyw - normed * (tl.sum(dyw * normed, axis=0) / columns))
        of_weight += dy * normed
        tl.store(DX + row * columns + at, dx, mask=inside)
    tl.store(DW + program * columns + at, of_weight, mask=inside)


class RmsNorm(torch.autograd.Function):
    """Both directions in Triton; the gradient of the weight is summed over programs by torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        flat = x.contiguous().view(-1, x.shape[-1])
        rows, columns = flat.shape
        y = torch.empty_like(flat)
        r = torch.empty(rows, device=x.device, dtype=torch.float32)
        block = triton.next_power_of_2(columns)
        rms_forward[(rows,)](flat, weight, y, r, columns, eps, BLOCK=block, num_warps=8)
        ctx.save_for_backward(flat, weight, r)
        ctx.block = block
        return y.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, r = ctx.saved_tensors
        dy = grads[0].contiguous().view_as(x)
        rows, columns = x.shape
        programs = min(rows, 256)
        dx = torch.empty_like(x)
        dw = torch.empty(programs, columns, device=x.device, dtype=torch.float32)
        each = triton.cdiv(rows, programs)
        rms_backward[(programs,)](dy, x, weight, r, dx, dw, rows, columns, each,
                                  BLOCK=ctx.block, num_warps=8)  # fmt: skip
        return dx.view(grads[0].shape), dw.sum(0).to(weight.dtype), None


@triton.jit
def gated_forward(A, B, C, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(A + at, mask=at < count).to(tl.float32)
    b = tl.load(B + at, mask=at < count).to(tl.float32)
    tl.store(C + at, a * tl.sigmoid(a) * b, mask=at < count)


@triton.jit
def gated_backward(DC, A, B, DA, DB, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dc = tl.load(DC + at, mask=at < count).to(tl.float32)
    a = tl.load(A + at, mask=at < count).to(tl.float32)
    b = tl.load(B + at, mask=at < count).to(tl.float32)
    s = tl.sigmoid(a)
    tl.store(DB + at, dc * a * s, mask=at < count)
    tl.store(DA + at, dc * b * (s + a * s * (1 - s)), mask=at < count)


@torch.library.custom_op("programs::gated", mutates_args=())
def gated(a: Tensor, b: Tensor) -> Tensor:
    """silu(a) * b, opaque to a compiler."""
    c = torch.empty_like(a)
    count = a.numel()
    gated_forward[(triton.cdiv(count, 1024),)](a, b, c, count, BLOCK=1024)
    return c


@gated.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return torch.empty_like(a)


@torch.library.custom_op("programs::gated_gradients", mutates_args=())
def gated_gradients(dc: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    da, db = torch.empty_like(a), torch.empty_like(b)
    count = a.numel()
    gated_backward[(triton.cdiv(count, 1024),)](dc, a, b, da, db, count, BLOCK=1024)
    return da, db


@gated_gradients.register_fake
def _(dc: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(b)


def keep_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def gated_derivative(ctx: Any, dc: Tensor) -> Any:
    return gated_gradients(dc.contiguous(), *ctx.saved_tensors)


gated.register_autograd(gated_derivative, setup_context=keep_inputs)


@triton.jit
def softmax_rows(X, Y, scale, columns, stride, BLOCK: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(X + row * stride + at).to(tl.float32) * scale
    else:
        x = tl.load(X + row * stride + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        x = x * scale
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(Y + row * columns + at, e / tl.sum(e, axis=0), mask=at < columns)


@torch.library.triton_op("programs::softmax", mutates_args=())
def softmax(x: Tensor, scale: float) -> Tensor:
    """A compiler sees the kernel within."""
    flat = x.reshape(-1, x.shape[-1])
    y = torch.empty_like(flat, memory_format=torch.contiguous_format)
    rows, columns = flat.shape
    torch.library.wrap_triton(softmax_rows)[(rows,)](
        flat, y, scale, columns, flat.stride(0), BLOCK=triton.next_power_of_2(columns),
        EVEN=triton.next_power_of_2(columns) == columns, num_warps=4,
    )  # fmt: skip
    return y.view(x.shape)


def softmax_derivative(ctx: Any, dy: Tensor) -> Any:
    (y,) = ctx.saved_tensors
    dyy = dy * y
    return (dyy - y * dyy.sum(-1, keepdim=True)) * ctx.scale, None


def keep_output(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)
    ctx.scale = inputs[1]


softmax.register_autograd(softmax_derivative, setup_context=keep_output)


@triton.autotune(
    configs=[triton.Config({"M": m, "N": n, "K": 64, "GROUP": 8}, num_warps=w, num_stages=s)
             for m, n, w, s in ((128, 128, 8, 3), (128, 256, 8, 3), (64, 128, 4, 4))],
    key=["m", "n", "k"],
)  # fmt: skip
@triton.jit
def product(A, B, BIAS, C, m, n, k, sam, sak, sbk, sbn, scm, scn,  # type: ignore[no-untyped-def]
            M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    down, across = tl.cdiv(m, M), tl.cdiv(n, N)
    group = pid // (GROUP * across)
    size = min(down - group * GROUP, GROUP)
    row = group * GROUP + (pid % (GROUP * across)) % size
    column = (pid % (GROUP * across)) // size
    rows = (row * M + tl.arange(0, M)) % m
    columns = (column * N + tl.arange(0, N)) % n
    inner = tl.arange(0, K)
    a = A + rows[:, None] * sam + inner[None] * sak
    b = B + inner[:, None] * sbk + columns[None] * sbn
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, tl.cdiv(k, K)):
        left = k - start * K
        total = tl.dot(tl.load(a, mask=inner[None] < left, other=0.0),
                       tl.load(b, mask=inner[:, None] < left, other=0.0), total)  # fmt: skip
        a += K * sak
        b += K * sbk
    total += tl.load(BIAS + columns)[None].to(tl.float32)
    rows, columns = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
    c = C + rows[:, None].to(tl.int64) * scm + columns[None] * scn
    tl.store(c, total.to(C.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None] < n))


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    (m, k), n = x.shape, weight.shape[0]
    c = torch.empty(m, n, device=x.device, dtype=x.dtype)
    product[lambda meta: (triton.cdiv(m, meta["M"]) * triton.cdiv(n, meta["N"]),)](
        x, weight, bias, c, m, n, k, x.stride(0), x.stride(1), weight.stride(1), weight.stride(0),
        c.stride(0), c.stride(1),
    )  # fmt: skip
    return c


@triton.jit
def entropy_of_rows(X, T, L, columns, stride, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(T + row)
    X += row * stride
    most, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        new = tl.maximum(most, tl.max(x))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new))
        most = new
    of_target = tl.load(X + target).to(tl.float32)
    tl.store(L + row, tl.log(total) + most - of_target)
    tl.debug_barrier()
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        g = tl.exp(x - most) / total - tl.where(at == target, 1.0, 0.0)
        tl.store(X + at, g / count, mask=at < columns)


class CrossEntropy(torch.autograd.Function):
    """Forward writes the gradient over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        rows, columns = logits.shape
        losses = torch.empty(rows, device=logits.device, dtype=torch.float32)
        block = min(16384, triton.next_power_of_2(columns))
        entropy_of_rows[(rows,)](logits, targets, losses, columns, logits.stride(0), rows,
                                 BLOCK=block, num_warps=16)  # fmt: skip
        ctx.save_for_backward(logits)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (logits,) = ctx.saved_tensors
        return logits * grads[0], None


@triton.jit
def rotate_in_place(Q, COS, SIN, length, heads, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, HALF)
    cos = tl.load(COS + (row % length) * HALF + at).to(tl.float32)
    sin = tl.load(SIN + (row % length) * HALF + at).to(tl.float32)
    start = Q + (row.to(tl.int64) * heads + head) * 2 * HALF
    low, high = tl.load(start + at).to(tl.float32), tl.load(start + HALF + at).to(tl.float32)
    tl.store(start + at, low * cos - high * sin)
    tl.store(start + HALF + at, high * cos + low * sin)


def rotate(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads of [batch, length, heads, head], over themselves."""
    batch, length, heads, head = q.shape
    with torch.cuda.device(q.device) if q.is_cuda else torch.no_grad():
        rotate_in_place[(batch * length, heads)](q, cos, sin, length, heads, HALF=head // 2)
    return q


@triton.jit
def attend(Q, K, V, O, length, scale, HEAD: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: E741
    block, of = tl.program_id(0), tl.program_id(1).to(tl.int64) * length * HEAD
    rows, at = block * M + tl.arange(0, M), tl.arange(0, HEAD)
    q = tl.load(Q + of + rows[:, None] * HEAD + at[None], mask=rows[:, None] < length, other=0.0)
    most = tl.full((M,), -float("inf"), tl.float32)
    total, read = tl.zeros((M,), tl.float32), tl.zeros((M, HEAD), tl.float32)
    for start in range(0, (block + 1) * M, N):
        columns = start + tl.arange(0, N)
        inside = columns[:, None] < length
        k = tl.load(K + of + columns[:, None] * HEAD + at[None], mask=inside, other=0.0)
        v = tl.load(V + of + columns[:, None] * HEAD + at[None], mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where(rows[:, None] >= columns[None], s, -float("inf"))
        new = tl.maximum(most, tl.max(s, 1))
        p, shrink = tl.exp(s - new[:, None]), tl.exp(most - new)
        total = total * shrink + tl.sum(p, 1)
        read = read * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        most = new
    read = read / total[:, None]
    tl.store(O + of + rows[:, None] * HEAD + at[None], read.to(q.dtype),
             mask=rows[:, None] < length)  # fmt: skip


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, heads, length, head = q.shape
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    m, n = (16, 16) if length < 64 else (128, 64)
    attend[(triton.cdiv(length, m), batch * heads)](
        q, k, v, out, length, head**-0.5, HEAD=head, M=m, N=n, num_warps=8, num_stages=2
    )
    return out


@triton.heuristics({"BLOCK": lambda args: min(128, triton.next_power_of_2(args["width"]))})
@triton.jit
def sum_segments(X, S, Y, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + row.to(tl.int64) * width + at, mask=at < width)
    segment = tl.load(S + row)
    tl.atomic_add(Y + segment * width + at, x, mask=at < width)


@triton.jit
def read_int4(X, W, S, Y, columns, rows, GROUP: tl.constexpr, R: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * R + tl.arange(0, R)
    total = tl.zeros((R,), tl.float32)
    half = tl.arange(0, GROUP // 2)
    for group in range(0, columns // GROUP):
        packed = tl.load(W + at[:, None] * (columns // 2) + group * (GROUP // 2) + half[None],
                         mask=at[:, None] < rows, other=0)  # fmt: skip
        low = tl.load(X + group * GROUP + half).to(tl.float32)
        high = tl.load(X + group * GROUP + GROUP // 2 + half).to(tl.float32)
        scale = tl.load(S + at * (columns // GROUP) + group, mask=at < rows, other=0.0)
        a = ((packed & 15).to(tl.float32) - 8) * low[None]
        b = ((packed >> 4).to(tl.float32) - 8) * high[None]
        total += tl.sum(a + b, 1) * scale.to(tl.float32)
    tl.store(Y + at, total.to(Y.dtype.element_ty), mask=at < rows)
