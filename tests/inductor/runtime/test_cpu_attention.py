"""Our own attention on a CPU: right for all sizes, strides, masks and numbers, beside float64."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from dynamo.store.content import cache_store
from inductor.driver.cpu import need_toolchain
from inductor.kernels.attention_reference import scores_of
from inductor.kernels.cpu.attention.library import CpuAttention, load_attention
from tests.seeds import some

INF = math.inf
Tensor = torch.Tensor


@pytest.fixture(scope="module")
def library() -> CpuAttention:
    store = cache_store()
    return load_attention(store, need_toolchain(store), half=False)


def attend(
    library: CpuAttention, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None, causal: bool = False, scale: float = 0.3, window: int = 0,
    cap: float = 0.0, nan_rows: bool = False, fills: bool = False, threads: int = 2,
) -> Tensor:
    size = (*q.shape[:3], v.shape[3])
    out = torch.full(size, 7.0, dtype=q.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    library.attend(
        q, k, v, bias, mask, causal, scale, window, cap, nan_rows, fills, out, threads
    )
    return out


def expected(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    causal: bool = False, scale: float = 0.3, window: int = 0, cap: float = 0.0,
    nan_rows: bool = False,
) -> Tensor:
    q, k, v = (x.double() for x in (q, k, v))
    bias = None if bias is None else bias.double()
    score = scores_of(q, k, bias, mask, causal, scale, window, cap)
    weight = torch.softmax(score, -1)
    if not nan_rows:
        weight = weight.masked_fill(torch.isneginf(score).all(-1, keepdim=True), 0.0)
    return weight @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def made(numbers: random.Random, batch: int, heads: int, length: int, head: int) -> Tensor:
    """Numbers in one of the forms in which programs have them."""
    form = numbers.randrange(4)
    if form == 0:
        return torch.randn(batch, heads, length, head)
    if form == 1:
        return torch.randn(batch, length, heads, head).transpose(1, 2)
    if form == 2:  # a third of one product
        return torch.randn(batch, length, 3, heads, head)[:, :, 1].transpose(1, 2)
    return torch.randn(heads, batch, length + 2, head + 3)[:, :, 2:, 3:].transpose(0, 1)


def added(numbers: random.Random, scores: tuple[int, ...]) -> Tensor:
    size = [numbers.choice((1, n)) for n in scores]
    bias = torch.randn(size)
    return bias if numbers.random() < 0.6 else torch.randn(*size[:2], *size[:1:-1]).mT


@pytest.mark.parametrize("seed", some(range(8), 3))
def test_sizes_strides_and_masks(library: CpuAttention, seed: int) -> None:
    numbers = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(6):
        batch, kv_heads, group = (numbers.choice((1, 2, 3)) for _ in range(3))
        queries, keys = (numbers.choice((1, 2, 5, 33, 64, 130, 530, 1100)) for _ in range(2))
        head, value_head = (numbers.choice((1, 7, 16, 24, 64, 80)) for _ in range(2))
        if numbers.random() < 0.6:
            head = value_head = numbers.choice((32, 64, 128))
        q = made(numbers, batch, kv_heads * group, queries, head)
        k = made(numbers, batch, kv_heads, keys, head)
        v = made(numbers, batch, kv_heads, keys, value_head)
        scores = (*q.shape[:3], keys)
        facts: dict[str, Any] = {"scale": numbers.choice((0.125, 0.3))}
        if numbers.random() < 0.4:
            facts["bias"] = added(numbers, scores)
        if numbers.random() < 0.3:
            facts["mask"] = added(numbers, scores) > 0
        facts["causal"] = numbers.random() < 0.4
        facts["window"] = numbers.choice((0, 0, 3, 70))
        facts["cap"] = numbers.choice((0.0, 0.0, 1.5))
        facts["nan_rows"] = numbers.random() < 0.5
        out = attend(library, q, k, v, threads=numbers.choice((1, 2, 7)), **facts)
        torch.testing.assert_close(
            out.double(), expected(q, k, v, **facts), rtol=0, atol=2e-5, equal_nan=True
        )


@pytest.mark.parametrize("size", [(128, 128), (512, 512), (1, 2000)])
def test_errors_are_not_larger_than_eagers(library: CpuAttention, size: tuple[int, int]) -> None:
    queries, keys = size
    q, k, v = (torch.randn(1, 4, n, 64) for n in (queries, keys, keys))
    exact = expected(q, k, v, scale=0.125)
    ours = (attend(library, q, k, v, scale=0.125) - exact).abs().max()
    eager = (torch.nn.functional.scaled_dot_product_attention(q, k, v) - exact).abs().max()
    assert ours <= 3 * eager


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e20])
def test_large_scores(library: CpuAttention, scale: float) -> None:
    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    out = attend(library, q, k, v, scale=scale)
    score = (q @ k.mT) * scale
    torch.testing.assert_close(out, torch.softmax(score, -1) @ v, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("number", [math.nan, INF, -INF])
def test_numbers_that_spread(library: CpuAttention, number: float, queries: int) -> None:
    for place in ("q", "k", "v"):
        tensors = {"q": torch.randn(1, 2, queries, 64)}
        tensors |= {name: torch.randn(1, 2, 600, 64) for name in "kv"}
        tensors[place][0, 1, 0, 3] = number
        q, k, v = tensors.values()
        torch.testing.assert_close(
            attend(library, q, k, v).double(), expected(q, k, v), equal_nan=True, rtol=0, atol=4e-6
        )


@pytest.mark.parametrize("keys", [3, 600])
@pytest.mark.parametrize("nan_rows", [False, True])
@pytest.mark.parametrize("least", [-INF, torch.finfo(torch.float32).min])
def test_rows_without_keys(
    library: CpuAttention, keys: int, nan_rows: bool, least: float
) -> None:
    q, k, v = (torch.randn(1, 2, n, 16) for n in (20, keys, keys))
    bias = torch.zeros(1, 1, 20, keys)
    bias[..., 5:, :] = least
    bias[..., 7, 1] = 0.5
    out = attend(library, q, k, v, bias, nan_rows=nan_rows)
    right = expected(q.float(), k, v, bias, nan_rows=nan_rows)
    torch.testing.assert_close(out.double(), right, rtol=0, atol=4e-6, equal_nan=True)


def test_fills_replace_nan(library: CpuAttention) -> None:
    q, k, v = (torch.randn(1, 1, 20, 16) for _ in range(3))
    k[0, 0, 3] = math.nan
    lost = torch.zeros(20, dtype=torch.bool)
    lost[3] = True
    for number in (-INF, -1e30, torch.finfo(torch.float32).min):
        bias = torch.zeros(1, 1, 1, 20).masked_fill(lost, number)
        right = torch.softmax((q @ k.mT * 0.3).masked_fill(lost, number), -1) @ v
        torch.testing.assert_close(attend(library, q, k, v, bias, fills=True), right)
        assert attend(library, q, k, v, bias).isnan().all()


def test_bfloat16(library: CpuAttention) -> None:
    store, floats = cache_store(), library
    library = load_attention(store, need_toolchain(store), half=True)
    q, k, v = (torch.randn(2, 4, 70, 64).bfloat16() for _ in range(3))
    with pytest.raises(TypeError, match="bfloat16"):
        attend(floats, q, k, v)
    for bias in (None, torch.randn(70, 70), torch.randn(1, 1, 70, 70).bfloat16()):
        right = expected(q, k, v, bias)
        out = attend(library, q, k, v, bias)
        torch.testing.assert_close(out.double(), right, rtol=2**-8, atol=1e-3)


def test_nothing_is_read_behind_the_ends(library: CpuAttention) -> None:
    """NaN stands around what is handed over."""
    def within(*size: int) -> Tensor:
        whole = torch.full([n + 2 for n in size], math.nan)
        inner = whole[tuple(slice(1, n + 1) for n in size)]
        return inner.copy_(torch.randn(size))

    for queries, keys, head in ((2, 37, 16), (33, 45, 20), (1, 530, 64)):
        q, k, v = within(2, 2, queries, head), within(2, 2, keys, head), within(2, 2, keys, head)
        bias = within(2, 2, queries, keys)
        torch.testing.assert_close(
            attend(library, q, k, v, bias).double(), expected(q, k, v, bias), rtol=0, atol=4e-6
        )
