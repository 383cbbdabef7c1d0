"""GEMMs of few rows with weights of low precision that lie along columns, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import interpreted, texts
from interpreter_repairs import repair

import dynamo
from inductor.codegen.triton import plan, shared_rows
from inductor.lowering import pointwise, readings

N, K = 48, 64
BF16, I32 = torch.bfloat16, torch.int32


def shifts(dtype=I32):
    return torch.arange(0, 32, 4, dtype=dtype)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    monkeypatch.setattr(readings, "most_rows", lambda call, is_narrow: 4 if is_narrow else 1)
    monkeypatch.setattr(readings, "reads_words", lambda call: True)
    monkeypatch.setattr(pointwise, "converts_small_floats", lambda device: True)
    monkeypatch.setattr(readings, "FEWEST_TERMS", 1)
    monkeypatch.setattr(readings, "FEWEST_BYTES", 1)
    monkeypatch.setattr(shared_rows, "FEWEST_LEFT", 1)


def words(*size):
    return torch.randint(-(2**31), 2**31, size).int()


def is_near(program, *given, slack=1e-5) -> None:
    found = dynamo.compile(program, backend=interpreted)(*given)
    eager = program(*given)
    exact = program(*(v.double() if v.is_floating_point() and v.dtype.itemsize > 1 else v for v in given))
    assert found.dtype is eager.dtype
    far = (eager.double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= far + slack * exact.abs().max()


def gptq_weight(w, z, s):
    """[terms // 8, columns], [groups, columns // 8], [groups, columns]"""
    w = ((w[:, None, :] >> shifts()[None, :, None]) & 15).reshape(s.shape[0], -1, s.shape[1])
    z = ((z[:, :, None] >> shifts()) & 15).reshape(s.shape[0], 1, -1) + 1
    return (s[:, None, :] * (w - z)).reshape(-1, s.shape[1])


def gptq(x, w, z, s):
    return x @ gptq_weight(w, z, s)


def auto_gptq(x, w, z, s):
    """As AutoGPTQ writes it."""
    z = torch.bitwise_right_shift(torch.unsqueeze(z, 2).expand(-1, -1, 8), shifts()[None, None]).to(torch.int8)
    z = (torch.bitwise_and(z, 15) + 1).reshape(-1, 1, s.shape[1])
    w = torch.bitwise_right_shift(torch.unsqueeze(w, 1).expand(-1, 8, -1), shifts()[None, :, None]).to(torch.int8)
    w = torch.bitwise_and(w, 15).reshape(s.shape[0], -1, s.shape[1])
    weights = s[:, None] * (w - z)
    return torch.matmul(x, weights.reshape(-1, s.shape[1]))


def gptq_in_dtype(x, w, z, s):
    w = ((w[:, None, :] >> shifts()[None, :, None]) & 15).reshape(s.shape[0], -1, s.shape[1])
    z = ((z[:, :, None] >> shifts()) & 15).reshape(s.shape[0], 1, -1)
    return x @ ((w.to(x.dtype) - z.to(x.dtype)) * s[:, None]).reshape(-1, s.shape[1])


def symmetric(x, w, z, s):
    return x @ (((w[:, None, :] >> shifts(torch.int64)[None, :, None]) & 15).flatten(0, 1).to(x.dtype) - 8) * s[0]


def gated(x, w, z, s):
    return F.silu(gptq(x, w, z, s)) * auto_gptq(x, w, z, s) + x.sum(-1, keepdim=True) + s[0]


PROGRAMS = (gptq, auto_gptq, gptq_in_dtype, symmetric, gated)


def gptq_inputs(rows, k, n, group, dtype):
    torch.manual_seed(0)
    return torch.randn(rows, k).to(dtype) * 0.1, words(k // 8, n), words(k // group, n // 8), torch.randn(k // group, n).to(dtype)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("group", [16, 64])
def test_scalar_units(program, dtype, rows, group) -> None:
    is_near(program, *gptq_inputs(rows, K, N, group, dtype))
    assert "mm', ''" not in texts[-1] and "tl.dot" not in texts[-1]


@pytest.mark.parametrize("rows", [1, 3, 11, 16])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("k", "group"), [(512, 128), (768, 256), (2816, 128)])
def test_matrix_units(monkeypatch, program, k, group, dtype, rows) -> None:
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    is_near(program, *gptq_inputs(rows, k, N, group, dtype))
    assert "mm', ''" not in texts[-1] and "tl.dot(k_nibbles_" in texts[-1]


@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize("program", [gptq, auto_gptq])
@pytest.mark.parametrize(("k", "n", "group"), [(896, 40, 128), (2880, 72, 2880), (320, 24, 320)])
def test_odd_sizes_by_matrix_units(monkeypatch, program, k, n, group, rows) -> None:
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    is_near(program, *gptq_inputs(rows, k, n, group, BF16))
    assert "mm', ''" not in texts[-1] and "tl.dot(k_nibbles_" in texts[-1]


def shifted_by(x, w, z, s, by):
    """As AutoGPTQ writes it, by distances that are a buffer of the module."""
    z = torch.bitwise_right_shift(torch.unsqueeze(z, 2).expand(-1, -1, 8), by.unsqueeze(0)).to(torch.int8)
    z = (torch.bitwise_and(z, 15) + 1).reshape(-1, 1, s.shape[1])
    w = torch.bitwise_right_shift(torch.unsqueeze(w, 1).expand(-1, 8, -1), by.unsqueeze(-1)).to(torch.int8)
    w = torch.bitwise_and(w, 15).reshape(s.shape[0], -1, s.shape[1])
    return torch.matmul(x, (s[:, None] * (w - z)).reshape(-1, s.shape[1])) + s[0]


@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5, 6, 6]])
def test_distances_that_are_a_buffer(monkeypatch, order, dtype, rows) -> None:
    """They are taken to be 0, 4, 8 ..; where they are not, weights are summed one by one."""
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    by = torch.tensor(order, dtype=I32)[None] * 4
    # What is added behind is rounded once more, so that it may be off by one place in eager or here.
    is_near(shifted_by, *gptq_inputs(rows, 512, N, 128, dtype), by, slack=torch.finfo(dtype).eps)
    assert "mm', ''" not in texts[-1] and "tl.dot(k_nibbles_" in texts[-1]


def by_place(x, w, z, s, places):
    """Groups of terms in any order (GPTQ's `g_idx`)."""
    w = ((w[:, None, :] >> shifts()[None, :, None]) & 15).flatten(0, 1)
    z = ((z[:, :, None] >> shifts()) & 15).flatten(1) + 1
    return x @ (s[places] * (w - z[places]))


@pytest.mark.parametrize("rows", [1, 3])
def test_groups_in_any_order(monkeypatch, rows) -> None:
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    given = gptq_inputs(rows, 512, N, 128, BF16)
    is_near(by_place, *given, (torch.randperm(512) // 128).int())
    assert ("aten::mm'" in texts[-1]) == (rows > 1)


@pytest.mark.parametrize("value", [1.0, float("inf"), 6e4])
def test_groups_in_any_order_and_distances_that_are_a_buffer(monkeypatch, value) -> None:
    """One row. Sums that are not finite are made again in a loop of its own, which looks places up, too."""
    def program(x, w, z, s, places, by):
        z = ((z.unsqueeze(2) >> by) & 15).view(s.shape) + 1
        w = ((w.unsqueeze(1) >> shifts()[None, :, None]) & 15).view(-1, s.shape[1])
        return x @ (s[places] * (w - z[places]).to(x.dtype))

    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    x, w, z, s = gptq_inputs(1, 512, N, 128, torch.float16)
    x[0, 5], x[0, 300] = value, -value
    rest = w, z, s, torch.randperm(512) // 128, torch.arange(0, 32, 4, dtype=I32)
    found, eager = dynamo.compile(program, backend=interpreted)(x, *rest), program(x, *rest)
    assert torch.equal(found.isnan(), eager.isnan()) and torch.equal(found.isinf(), eager.isinf())
    torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2, equal_nan=True)
    assert "EXACT" in texts[-1]


AWQ = [0, 4, 1, 5, 2, 6, 3, 7]


def eights(w, dtype=torch.int64):
    return ((w[:, :, None] >> shifts(dtype)) & 15).to(torch.int8).flatten(1)


def order_of(n, order=AWQ):
    return torch.arange(n).view(-1, 8)[:, order].view(-1)


def awq(x, w, z, s):
    """As AutoAWQ writes it: words of eight columns each, in an order of their own."""
    w, z = eights(w)[:, order_of(s.shape[1])], eights(z)[:, order_of(s.shape[1])]
    group = w.shape[0] // s.shape[0]
    return x @ ((w - z.repeat_interleave(group, 0)) * s.repeat_interleave(group, 0))


def awq_in_dtype(x, w, z, s):
    w, z = eights(w, I32)[:, order_of(s.shape[1])].to(x.dtype), eights(z, I32)[:, order_of(s.shape[1])].to(x.dtype)
    return F.silu(x @ ((w.view(s.shape[0], -1, s.shape[1]) - z[:, None]) * s[:, None]).flatten(0, 1)) + x[:, :1]


def other_order(x, w, z, s):
    order = order_of(s.shape[1], [0, 2, 4, 6, 1, 3, 5, 7])
    return x @ (eights(w)[:, order].to(x.dtype) * s.repeat_interleave(x.shape[1] // s.shape[0], 0))


def in_columns(x, w, z, s):
    group = x.shape[1] // s.shape[0]
    return (x @ ((eights(w).to(x.dtype) - 8) * s.repeat_interleave(group, 0) + eights(z).to(x.dtype).repeat_interleave(group, 0))) * s[0]


def awq_inputs(rows, k, n, group, dtype):
    torch.manual_seed(0)
    return torch.randn(rows, k).to(dtype) * 0.1, words(k, n // 8), words(k // group, n // 8), torch.randn(k // group, n).to(dtype)


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("program", [awq, awq_in_dtype, other_order, in_columns])
@pytest.mark.parametrize(("k", "group", "n"), [(512, 128, 64), (768, 256, 64), (1280, 32, 128), (352, 32, 96), (904, 904, 32)])
def test_words_of_eight_columns(monkeypatch, program, k, group, n, dtype, rows) -> None:
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    is_near(program, *awq_inputs(rows, k, n, group, dtype))
    alone = program is in_columns and group == k and rows == 1  # one group, one row: number by number
    assert "mm', ''" not in texts[-1] and ("= k_eight_" in texts[-1]) is not alone


@pytest.mark.parametrize(("rows", "n", "dtype"), [(1, 48, BF16), (17, 64, BF16), (2, 64, torch.float32)])
def test_words_of_eight_columns_that_stay_with_the_library(monkeypatch, rows, n, dtype) -> None:
    """Odd columns, many rows, float32: one kernel unpacks the weight, which looks nothing up."""
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    is_near(awq, *awq_inputs(rows, 512, n, 128, dtype))
    assert "aten::mm'" in texts[-1] and texts[-1].count("@triton.jit") == 1


def test_places_that_are_loaded(monkeypatch) -> None:
    """Where they lie says nothing of what they are."""
    def program(x, w, z, s, by):
        return x @ (((w[:, :, None] >> by[::4]) & 15).flatten(1).to(x.dtype) * s.repeat_interleave(128, 0))

    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    is_near(program, *awq_inputs(2, 512, 64, 128, BF16), torch.randint(0, 29, (32,)).int())
    assert "k_eight_" not in texts[-1].partition("@triton.jit")[2]


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 6e4])
def test_what_is_not_finite_in_words_of_eight_columns(monkeypatch, value) -> None:
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    x, *rest = awq_inputs(2, 512, 64, 128, torch.float16)
    x[0, 5], x[1, 3], x[1, 300] = value, 6e4, -6e4
    found, eager = dynamo.compile(awq, backend=interpreted)(x, *rest), awq(x, *rest)
    assert torch.equal(found.isnan(), eager.isnan()) and torch.equal(found.isinf(), eager.isinf())


def cast(x, w, s):
    return x @ w.to(x.dtype)


def cast_and_scaled(x, w, s):
    return torch.mm(x, (w * s).to(x.dtype)) if w.dtype.itemsize == 1 and not w.is_floating_point() else torch.mm(x, w.to(x.dtype) * s)


def with_bias(x, w, s):
    return F.relu(torch.addmm(s, x, w.to(x.dtype))) + x[:, :1]


def in_groups(x, w, s):
    return x @ (w.to(x.dtype).view(4, -1, N) * s[:4, None]).view(-1, N)


def in_bytes(x, w, s):
    """Two numbers of a column in each byte."""
    w = w.view(torch.uint8)
    return x @ (torch.stack([w & 15, w >> 4], 1).flatten(0, 1)[: x.shape[1]].to(x.dtype) * s)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("stored", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("program", [cast, cast_and_scaled, with_bias])
@pytest.mark.parametrize("k", [64, 300])
def test_bytes(program, stored, dtype, rows, k) -> None:
    w = torch.randn(k, N).to(stored) if stored.is_floating_point else torch.randint(0, 127, (k, N), dtype=stored)
    is_near(program, torch.randn(rows, k).to(dtype), w, torch.rand(N).to(dtype))
    assert "aten::mm'" not in texts[-1] and "tl.sum(" in texts[-1]


@pytest.mark.parametrize("rows", [1, 2])
def test_bytes_in_groups(rows) -> None:
    x, s = torch.randn(rows, 64).to(BF16), torch.rand(4, N).to(BF16)
    w = torch.randint(-128, 127, (64, N), dtype=torch.int8)
    is_near(in_groups, x, w, s)
    assert "aten::mm'" not in texts[-1]
    is_near(in_bytes, x, w[:32].contiguous(), s[0])
    assert "aten::mm'" not in texts[-1]


def test_few_columns() -> None:
    """The terms of a sum are those of several programs, and a second launch adds what they found."""
    w, s = torch.randint(-128, 127, (2048, 64), dtype=torch.int8), torch.rand(64).to(BF16)
    is_near(with_bias, torch.randn(1, 2048).to(BF16), w, s)
    assert texts[-1].count("@triton.jit") == 2


def test_what_stays_with_the_library() -> None:
    """Many rows, and weights of which neither columns nor terms lie side by side."""
    w, s = torch.randint(-128, 127, (64, N), dtype=torch.int8), torch.rand(N).to(BF16)
    is_near(cast, torch.randn(40, 64).to(BF16), w, s)
    assert "aten::mm'" in texts[-1]
    is_near(cast, torch.randn(1, 64).to(BF16), torch.randint(-9, 9, (64, 2 * N), dtype=torch.int8)[:, ::2], s)
    assert "aten::mm'" in texts[-1]


def test_numbers_that_wrap_around() -> None:
    """A difference in int8 is no difference in float32."""
    def program(x, w, z):
        return x @ (w - z).to(x.dtype)

    w, z = torch.randint(-128, 127, (64, N), dtype=torch.int8), torch.full((N,), 100, dtype=torch.int8)
    is_near(program, torch.randn(1, 64).to(BF16), w, z)
    is_near(gptq_like_with_wide_zeros, *gptq_inputs(1, K, N, 16, BF16)[:2], torch.randint(-(2**31), 2**31, (4, N)).int(), torch.rand(4, N).to(BF16))


def gptq_like_with_wide_zeros(x, w, z, s):
    """Zeros that float32 does not have exactly."""
    w = ((w[:, None, :] >> shifts()[None, :, None]) & 15).reshape(s.shape[0], -1, s.shape[1])
    return x @ (((w - z[:, None]) >> 20).to(x.dtype) * s[:, None] + (w - z[:, None]).to(x.dtype)).reshape(-1, s.shape[1])
