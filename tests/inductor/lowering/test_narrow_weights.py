"""A row times weights of fewer bits than it has, on a CPU; shifts, as what unpacks them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynamo
from inductor import metrics
from inductor.lowering import readings

N, K = 96, 512


@pytest.fixture(autouse=True)
def any_size(monkeypatch) -> None:
    monkeypatch.setattr(readings, "FEWEST_BYTES", 1)
    dynamo.reset()
    metrics.reset()


def scaled(x, w, s):
    return F.linear(x, w.to(x.dtype)) * s


def packed(x, q, s):
    w = torch.stack([q & 15, q >> 4], -1).reshape(N, K).to(x.dtype) - 8
    return F.linear(x, (w.view(N, -1, 64) * s.view(N, -1)[..., None]).reshape(N, K))


@pytest.mark.parametrize(("rows", "calls"), [(1, 0), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("program", [scaled, packed])
def test_a_row_reads_weights_as_they_are_stored(program, dtype, rows, calls) -> None:
    is_packed = program is packed
    x = torch.randn(rows, K).to(dtype)
    w = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8) if is_packed else torch.randint(-99, 99, (N, K), dtype=torch.int8)
    s = torch.rand(N * K // 64 if is_packed else N).to(dtype)
    found, eager = dynamo.compile(program)(x, w, s), program(x, w, s)
    exact = program(x.double(), w, s.double())
    assert (found - exact).abs().max() <= (eager - exact).abs().max() + 1e-5 * exact.abs().max()
    assert (metrics.snapshot()["extern_calls"] > 0) == (calls > 0)


@pytest.mark.parametrize("x", [[torch.inf], [-torch.inf], [torch.nan], [torch.inf] * 2, [3e38], [1.0]], ids=str)
@pytest.mark.parametrize("in_words", [False, True])
def test_rows_that_are_infinite_or_very_large(in_words, x) -> None:
    """What is taken out of the sum would make NaN of them all."""
    def program(x, q, s, z):
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        w = (q[..., None] >> shifts) & 15 if in_words else torch.stack([q & 15, q >> 4], -1)
        return F.linear(x, ((w.view(N, -1, 64) - 8) * s[..., None] + z[..., None]).view(N, K))

    q = torch.randint(-2**31, 2**31, (N, K // 8)).int() if in_words else torch.randint(0, 256, (N, K // 2), dtype=torch.uint8)
    z = torch.randn(N, K // 64) / 100
    z[:9] = 0.0
    row = torch.randn(1, K)
    row[0, 5 : 5 + 3 * len(x) : 3] = torch.tensor(x)
    given = row, q, torch.rand(N, K // 64) / 100, z
    torch.testing.assert_close(dynamo.compile(program)(*given), program(*given), equal_nan=True)
    assert metrics.snapshot()["extern_calls"] == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_shifts(dtype) -> None:
    def program(x, n):
        return x >> 3, x << 3, x >> 40, x << 40, x >> n, x << n, torch.bitwise_right_shift(x, n)

    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 5, 100, *range(info.max - 20, info.max)], dtype=dtype)
    n = torch.arange(len(x)).to(dtype) % info.bits
    for one, other in zip(dynamo.compile(program)(x, n), program(x, n), strict=True):
        assert torch.equal(one, other) and one.dtype is other.dtype
