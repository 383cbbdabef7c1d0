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


def words(*size):
    return torch.randint(-(2**31), 2**31, size, device="cuda").int()


def awq(x, w, z, s, places, by):
    order = torch.arange(s.shape[1], device=x.device).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].view(-1)
    w, z = (((v[:, :, None] >> torch.arange(0, 32, 4, device=x.device)) & 15).to(torch.int8).flatten(1)[:, order] for v in (w, z))
    return x @ ((w - z.repeat_interleave(GROUP, 0)) * s.repeat_interleave(GROUP, 0))


def gptq(x, w, z, s, places, by):
    w = ((w.unsqueeze(1) >> by[None, :, None]) & 15).view(s.shape[0], -1, s.shape[1])
    z = ((z.unsqueeze(2) >> by) & 15).view(s.shape[0], 1, -1) + 1
    return F.relu(x @ (s[:, None] * (w - z).to(x.dtype)).flatten(0, 1))


def in_any_order(x, w, z, s, places, by):
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
    w = ((w.unsqueeze(1) >> shifts[None, :, None]) & 15).view(-1, s.shape[1])
    z = ((z.unsqueeze(2) >> by) & 15).view(s.shape) + 1
    return x @ (s[places] * (w - z[places]).to(x.dtype))


@pytest.mark.parametrize("rows", [1, 2, 8, 13, 16, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("program", "columns"), [(awq, 4096), (awq, 4128), (gptq, 4096), (in_any_order, 4096), (in_any_order, 4104)])
def test_int4_along_columns(program, columns, dtype, rows) -> None:
    w = words(TERMS, columns // 8) if program is awq else words(TERMS // 8, columns)
    s = torch.randn(TERMS // GROUP, columns, device="cuda").mul(0.02).to(dtype)
    places = torch.randperm(TERMS, device="cuda") // GROUP
    x = torch.randn(rows, TERMS, device="cuda").to(dtype)
    by = torch.arange(0, 32, 4, dtype=torch.int32, device="cuda")
    is_near(program, (x, w, words(TERMS // GROUP, columns // 8), s, places, by))
    if program is gptq:
        is_near(program, (x, w, words(TERMS // GROUP, columns // 8), s, places, by.flip(0)))


def signed(x, w, s):
    n = torch.stack([(w << 4).view(torch.int8) >> 4, w.view(torch.int8) >> 4], -1)
    return F.linear(x, (n.view(len(w), -1, GROUP).to(x.dtype) * s[..., None]).flatten(1))


@pytest.mark.parametrize("rows", [1, 8, 16, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_signed_int4(dtype, rows) -> None:
    w = torch.randint(0, 256, (COLUMNS, TERMS // 2), dtype=torch.uint8, device="cuda")
    s = torch.randn(COLUMNS, TERMS // GROUP, device="cuda").mul(0.02).to(dtype)
    is_near(signed, (torch.randn(rows, TERMS, device="cuda").to(dtype), w, s))


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
