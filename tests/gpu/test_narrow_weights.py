"""GEMMs of few rows with weights of 4 and 8 bits, beside eager in the same and in double precision.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynamo

pytestmark = pytest.mark.gpu
COLUMNS, TERMS, GROUP = 4096, 4096, 128


def nibbles_of(w):
    if w.dtype is torch.int32:
        return ((w[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32, device=w.device)) & 15).flatten(1)
    return torch.stack([w & 15, w >> 4], -1).flatten(1)


def with_zeros(x, w, s, z):
    n = nibbles_of(w).view(w.shape[0], s.shape[1], -1).to(x.dtype)
    return F.linear(x, ((n - 8) * s[..., None] + z[..., None]).flatten(1))


def gated(x, w, s, z, up, t, y):
    return x[..., :1] + F.silu(with_zeros(x, w, s, z)) * with_zeros(x, up, t, y)


def by_rows(x, w, s):
    return F.linear(x, w.to(x.dtype)) * s


def made(stored, columns, dtype):
    w = torch.randint(-(2**31), 2**31, (columns, TERMS // 8), device="cuda").int()
    w = w.view(torch.uint8) if stored is torch.uint8 else w
    s, z = (torch.randn(columns, TERMS // GROUP, device="cuda").mul(0.02).to(dtype) for _ in range(2))
    return w, s, z


def is_near(program, given) -> None:
    found = dynamo.compile(program, fullgraph=True)(*given)
    eager = program(*given)
    exact = program(*(v.double() if v.is_floating_point() else v for v in given))
    far = (eager.double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= far + 1e-5 * exact.abs().max()
    assert not dynamo.counters["not_compiled"]


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 11, 16, 17])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("program", "stored"), [(with_zeros, torch.int32), (with_zeros, torch.uint8), (gated, torch.int32)])
def test_int4(program, stored, dtype, rows) -> None:
    x = torch.randn(rows, TERMS, device="cuda").to(dtype)
    weights = [part for _ in range(2 if program is gated else 1) for part in made(stored, COLUMNS, dtype)]
    is_near(program, (x, *weights))


@pytest.mark.parametrize("columns", [4096, 16384])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_int8(dtype, columns) -> None:
    w = torch.randint(-128, 128, (columns, TERMS), dtype=torch.int8, device="cuda")
    s = torch.rand(columns, device="cuda").to(dtype)
    is_near(by_rows, (torch.randn(1, TERMS, device="cuda").mul(0.05).to(dtype), w, s))


@pytest.mark.parametrize("rows", [1, 7, 16])
@pytest.mark.parametrize(("tiles", "group"), [(8, 128), (4, 64), (8, 32)])
def test_packed_by_torch(tiles, group, rows) -> None:
    n = torch.randint(0, 16, (COLUMNS, TERMS), dtype=torch.int32, device="cuda")
    packed = torch.ops.aten._convert_weight_to_int4pack((n[:, ::2] << 4 | n[:, 1::2]).to(torch.uint8), tiles)
    scales = torch.randn(TERMS // group, COLUMNS, 2, device="cuda").mul(0.02).bfloat16()
    x = torch.randn(rows, TERMS, device="cuda").bfloat16()
    found = dynamo.compile(torch.ops.aten._weight_int4pack_mm.default, fullgraph=True)(x, packed, group, scales)
    s, z = scales.double().repeat_interleave(group, 0).unbind(-1)
    exact = x.double() @ ((n.t().double() - 8) * s + z)
    torch.testing.assert_close(found.double(), exact, rtol=8e-3, atol=4e-3 * exact.abs().max().item())


def test_small_kernels_side_by_side() -> None:
    """Rotation and two writes into a cache are one launch, and keep their places."""
    def program(x, pos, keys, values):
        a, b, c = x.split([512, 128, 128], -1)
        keys[:, pos] = torch.stack([b[..., ::2] * 2, b[..., 1::2] - 1], -1).flatten(1)[:, None]
        values[:, pos] = c[:, None]
        return a.cos() * 3

    x, pos = torch.randn(2, 768, device="cuda"), torch.tensor([3], device="cuda")
    caches = [torch.zeros(2, 8, 128, device="cuda") for _ in range(4)]
    compiled = dynamo.compile(program, fullgraph=True)
    for step in range(3):
        found, eager = compiled(x + step, pos + step, *caches[:2]), program(x + step, pos + step, *caches[2:])
        torch.testing.assert_close(found, eager)
        torch.testing.assert_close(caches[:2], caches[2:])
