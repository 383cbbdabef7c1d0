"""Kernels move large tensors many bytes at a time, as Triton's PTX tells without a GPU."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from moved_bytes import accesses, kernels_of, narrow_share, ptx_of

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import capture

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

LARGE = 1 << 16  # elements
BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64


def made(dtype, *size, grad=False):
    return torch.empty(size, device="meta", dtype=dtype).requires_grad_(grad)


def with_gradients(program):
    """The results of a program and the gradients of what it takes."""

    def call(*given):
        found = program(*given)
        wanted = [x for x in given if x.requires_grad]
        return found, *torch.autograd.grad(found, wanted, torch.ones_like(found))

    return call


def rotated(x, cos, sin):
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return (x.float() * cos + torch.stack([-second, first], -1).flatten(-2) * sin).type_as(x)


def rotated_pairs(x, f):
    y, f = x.float().unflatten(-1, (-1, 2)), f.view(1, x.shape[1], 1, -1, 2)
    pair = y[..., 0] * f[..., 0] - y[..., 1] * f[..., 1], y[..., 1] * f[..., 0] + y[..., 0] * f[..., 1]
    return torch.stack(pair, -1).flatten(3).type_as(x)


def gated(x):
    return F.silu(x[..., ::2]) * (x[..., 1::2] + 1)


def smoothed(x, y):
    return F.cross_entropy(x.float(), y, label_smoothing=0.1)


def weighted(x, y, w):
    return F.cross_entropy(x.float(), y, weight=w, reduction="sum")


def halves(x):
    first, second = x.chunk(2, -1)
    return F.silu(first) * second


def padded(x, y):
    """Rows that begin anywhere, into rows that do not."""
    return F.pad((x.float() - y[:, :10001].float().exp()).bfloat16(), (0, 7))


def normed(x, r, w):
    return F.rms_norm(x + r, x.shape[-1:], w)


def group_normed(x, w, b):
    return F.silu(F.group_norm(x, 32, w, b))


TABLE = made(F32, 1, 512, 1, 128)
IN_PARTS = 0.6  # the ends of a row move one by one, in statements that run once
CASES = [  # share of the bytes that may move otherwise
    (rotated, (made(BF16, 2, 512, 8, 128), TABLE, TABLE), 0.0),
    (rotated_pairs, (made(BF16, 2, 512, 8, 128), made(F32, 512, 64, 2)), 0.0),
    (gated, (made(BF16, 2048, 2816),), 0.0),
    (with_gradients(gated), (made(BF16, 2048, 2816, grad=True),), 0.0),
    (halves, (made(BF16, 2048, 2816),), 0.0),
    (with_gradients(halves), (made(BF16, 2048, 2816, grad=True),), 0.0),
    (with_gradients(smoothed), (made(BF16, 2048, 10001, grad=True), made(I64, 2048)), IN_PARTS),
    (with_gradients(weighted), (made(BF16, 2048, 10001, grad=True), made(I64, 2048), made(F32, 10001)), IN_PARTS),
    (with_gradients(normed), (*(made(BF16, 2048, 1536, grad=True) for _ in range(2)), made(BF16, 1536, grad=True)), 0.0),
    (group_normed, (made(BF16, 2, 128, 64, 64), made(BF16, 128), made(BF16, 128)), 0.0),
]


def shares(program, given, folder):
    """For each large buffer of each function: whether it is written, the narrow share, both as text."""
    for source, buffers in kernels_of(program, given, capture):
        text = ptx_of(source, {name: dtype for name, (dtype, _) in buffers.items()}, folder)
        for n, (name, counts) in enumerate(zip(source.parameters, accesses(text), strict=False)):
            if counts and buffers[name][1] >= LARGE:
                yield f"tl.store(out{n} " in source.text, narrow_share(counts), f"{name}: {counts} in\n{source.text}"


@pytest.mark.parametrize(("program", "given", "most"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_large_tensors_move_many_bytes_at_a_time(program, given, most, tmp_path) -> None:
    found = [*shares(program, given, tmp_path)]
    assert len(found) >= 2
    for _, share, text in found:
        assert share <= most, text


def test_rows_that_do_not_lie_alike_are_stored_many_bytes_at_a_time(tmp_path) -> None:
    given = made(BF16, 2048, 10001), made(BF16, 2048, 10008)
    found = [(share, text) for is_written, share, text in shares(padded, given, tmp_path) if is_written]
    assert found
    for share, text in found:
        assert share <= IN_PARTS, text


def test_counts() -> None:
    text = """
    ld.param.b64 	%rd1, [k_param_0];
    ld.param.b64 	%rd2, [k_param_1];
    mad.wide.s32 	%rd3, %r1, 2, %rd1;
    mov.b64 	%rd4, %rd3;
    @%p1 ld.global.v4.b32 { %r2, %r3, %r4, %r5 }, [ %rd4 + 0 ];
    ld.global.L1::evict_first.b16 { %rs1 }, [ %rd4 + 16 ];
    cp.async.cg.shared.global [ %r7 + 0 ], [ %rd3 + 0 ], 0x10, 0x10;
    st.global.v2.b64 [ %rd2 + 0 ], { %rd7, %rd8 };
    """
    assert accesses(text) == [Counter({16: 2, 2: 1}), Counter({16: 1})]
    assert narrow_share(accesses(text)[0]) == 2 / 34
