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


def is_near(program, *given) -> None:
    found = dynamo.compile(program, backend=interpreted)(*given)
    eager = program(*given)
    exact = program(*(v.double() if v.is_floating_point() and v.dtype.itemsize > 1 else v for v in given))
    assert found.dtype is eager.dtype
    far = (eager.double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= far + 1e-5 * exact.abs().max()


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
