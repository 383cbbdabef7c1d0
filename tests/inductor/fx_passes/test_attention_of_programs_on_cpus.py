"""Programs whose attention our own kernel computes on a CPU give what eager gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.base.config import config as base_config
from inductor.autotune import attention_choice
from inductor.codegen import own_functions
from inductor.config import config
from inductor.fx_passes.attention import cpu_calls
from inductor.operators.cpu_attention_ops import load

Tensor = torch.Tensor
LEAST = torch.finfo(torch.float32).min
B, H, S, N, D = 2, 4, 40, 50, 32


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the calls that our kernel computes; it does wherever it can."""
    names: list[str] = []
    call = own_functions.call_attention

    def noted(writer: Any, step: Any) -> None:
        names.append(step.name)
        call(writer, step)

    monkeypatch.setattr(own_functions, "call_attention", noted)
    monkeypatch.setattr(cpu_calls, "is_faster", lambda *facts: load(torch.float32) is not None)
    monkeypatch.setattr("inductor.fx_passes.attention.written_attention.FEWEST_OPERATIONS", 0)
    with torch.no_grad():
        yield names


def plain(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v)


def joined(q, k, v, m):
    out = F.scaled_dot_product_attention(q, k, v, scale=0.5)
    return out.transpose(1, 2).reshape(B, S, H * D) + 1


def causal(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def biased(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m) * 2


def of_two_axes(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m[0, 0])


def masked(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m[:, :1] > 0.5)


def empty_rows(q, k, v, m):
    seen = torch.ones(S, N, dtype=torch.bool).tril(-3)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def grouped(q, k, v, m):
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


def repeated(q, k, v, m):
    k, v = (x[:, :2, None].expand(B, 2, 2, N, D).reshape(B, 4, N, D) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m)


def turned(q, k, v, m):  # keys whose last axis is not dense
    k = k.transpose(2, 3).contiguous().transpose(2, 3)
    return F.scaled_dot_product_attention(q, k, v)


def decoding(q, k, v, m):
    return F.scaled_dot_product_attention(q[:, :, :1], k, v, attn_mask=m[:, :, :1])


def narrow_values(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v[..., :20])


def bert(q, k, v, m):
    x = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D)
    x = F.softmax(x + m, dim=-1)
    x = torch.matmul(F.dropout(x, p=0.1, training=False), v)
    return x.permute(0, 2, 1, 3).contiguous().view(B, S, -1)


def gpt2(q, k, v, m):
    x = torch.matmul(q, k.transpose(-1, -2)) / D**0.5
    seen = torch.ones(S, N, dtype=torch.bool).tril(N - S)
    x = torch.where(seen, x, torch.tensor(LEAST))
    return torch.matmul(F.softmax(x, dim=-1).type(v.dtype), v).transpose(1, 2).contiguous()


def capped(q, k, v, m):
    x = torch.matmul(q, k.transpose(2, 3)) * 0.25
    x = torch.tanh(x / 5.0) * 5.0
    return torch.matmul(F.softmax(x + m, dim=-1), v).transpose(1, 2).contiguous()


def filled(q, k, v, m):
    x = (q @ k.transpose(-1, -2)) * 0.2
    x = x.masked_fill(m > 1, -math.inf)
    return (torch.softmax(x, -1) @ v).transpose(1, 2).contiguous()


def filled_whole_rows(q, k, v, m):
    lost = torch.zeros(B, 1, S, N, dtype=torch.bool)
    lost[:, :, 3:7] = True
    x = (q @ k.transpose(-1, -2)).masked_fill(lost, -math.inf)
    return (torch.softmax(x, -1) @ v).transpose(1, 2).contiguous()


SDPA = [
    plain, joined, causal, biased, of_two_axes, masked, empty_rows, grouped, repeated, decoding,
]  # fmt: skip
WRITTEN = [bert, capped, filled, filled_whole_rows]
LEFT = [turned, narrow_values]


def inputs(lying: bool = True) -> list[Tensor]:
    def made(length: int) -> Tensor:
        if lying:
            return torch.randn(B, length, H, D).transpose(1, 2)
        return torch.randn(B, H, length, D)

    return [made(S), made(N), made(N), torch.randn(B, H, S, N)]


@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.parametrize("program", SDPA + WRITTEN + LEFT + [gpt2])
def test_same_as_eager(program: Callable[..., Any], lying: bool, calls: list[str]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program)
    for _ in range(2):
        given = inputs(lying)
        out, right = compiled(*given), program(*given)
        assert out.stride() == right.stride()
        torch.testing.assert_close(out, right, rtol=0, atol=3e-6, equal_nan=True)
    assert len(calls) == (program not in LEFT)


def test_what_falls_back_to_aten(calls: list[str]) -> None:
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    def negative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=-1.0)

    q, k, v, _ = inputs()
    dynamo.compile(dropped)(q, k, v)
    torch.testing.assert_close(dynamo.compile(negative)(q, k, v), negative(q, k, v))
    given = [x.double() for x in (q, k, v)]
    out = dynamo.compile(negative)(*given)
    assert out.dtype is torch.float64
    with config.patch(leave_out="attention"):
        dynamo.reset()
        torch.testing.assert_close(dynamo.compile(joined)(q, k, v, None), joined(q, k, v, None))
    assert not calls


def test_with_gradients_it_is_atens(calls: list[str]) -> None:
    given = [x.requires_grad_() for x in inputs()]
    for program in (joined, bert):
        with torch.enable_grad():
            grads = torch.autograd.grad(dynamo.compile(program)(*given).sum(), given[:3])
            right = torch.autograd.grad(program(*given).sum(), given[:3])
        for one, other in zip(grads, right, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not calls


def test_nan_below_fills_is_lost_as_in_eager(calls: list[str]) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, lost: Tensor) -> Tensor:
        x = (q @ k.transpose(-1, -2)).masked_fill(lost, LEAST)
        return (torch.softmax(x, -1) @ v).transpose(1, 2).contiguous()

    q, k, v, _ = inputs()
    k[:, :, -3:] = math.nan
    lost = torch.arange(N) >= N - 3
    out = dynamo.compile(program)(q, k, v, lost)
    assert not out.isnan().any()
    torch.testing.assert_close(out, program(q, k, v, lost))
    assert len(calls) == 1


def test_operator_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes the same by ATen's operators."""
    q, k, v, m = inputs()
    m[..., :3, :] = -math.inf
    facts = (None, False, 0.2, 0, 1.5, False, False, list(q.stride()))
    attend = torch.ops.dynamo_jit.cpu_attention
    ours = attend(q, k, v, m, *facts)
    monkeypatch.setattr("inductor.operators.cpu_attention_ops.load", lambda dtype: None)
    torch.testing.assert_close(attend(q, k, v, m, *facts), ours)
    filled_ = (None, False, 0.2, 0, 0.0, True, True, list(q.stride()))
    q[0, 0, 0, 0] = math.nan
    without = attend(q, k, v, m, *filled_)
    monkeypatch.undo()
    torch.testing.assert_close(attend(q, k, v, m, *filled_), without, equal_nan=True)


def test_choice_is_kept_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    measured: list[Any] = []
    monkeypatch.setattr(attention_choice, "FEWEST_OPERATIONS", 0)
    monkeypatch.setattr(
        attention_choice, "_measure", lambda *facts: measured.append(facts) or answers.pop()
    )
    answers = [0.7, -0.7]
    with base_config.patch(cache_dir=str(tmp_path_factory.mktemp("choice"))):
        q, k, v, m = inputs()
        assert attention_choice.is_faster(q, k, v, None, False)
        assert not attention_choice.is_faster(q, k, v, m, False)
        assert attention_choice.is_faster(q, k, v, None, False)
        assert len(measured) == 2


@pytest.mark.parametrize("grouped_", [False, True])
def test_measuring(grouped_: bool) -> None:
    q, k, v, m = inputs()
    library = load(torch.float32)
    assert library is not None
    if grouped_:
        k, v = k[:, :2], v[:, :2]
    for bias in (None, m, m[0, 0]):
        ratio = attention_choice._measure(library, q, k, v, bias, False, 2)
        assert math.isfinite(ratio)
