"""Flex attention on a GPU: values and gradients against float64, as it is and under CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dynamo
from dynamo.graph_operators.flex_calls import FlexCall
from inductor.operators.flex_ops import ChosenFlex

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
SIZES = (2, 4, 2, 300, 300, 64)
LENGTH = SIZES[3]


def programs(device: str) -> dict[str, Any]:
    """(score_mod, mask_mod) by name."""
    slopes = torch.rand(SIZES[1], device=device)
    document = torch.arange(LENGTH, device=device) // 71
    bias = torch.randn(SIZES[0], SIZES[1], LENGTH, LENGTH, device=device, dtype=torch.float16)
    return {
        "plain": (None, None),
        "alibi": (lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(), None),
        "cap": (lambda s, b, h, i, j: torch.tanh(s / 3.0) * 3.0, lambda b, h, i, j: i >= j),
        "bias": (lambda s, b, h, i, j: s + bias[b, h, i, j], lambda b, h, i, j: i >= j),
        "window": (None, lambda b, h, i, j: (i >= j) & (i - j < 37)),
        "documents": (None, lambda b, h, i, j: document[i] == document[j]),
        "nothing": (lambda s, b, h, i, j: s * 0.5, lambda b, h, i, j: (i > 99) & (h != 1) & (j < i)),
    }  # fmt: skip


def expected(mod: Any, mask: Any, q: Any, k: Any, v: Any, scale: float) -> Any:
    """Result and log-sum-exps in float64, with broadcast indices."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score = q @ k.transpose(2, 3) * scale
    b, h, i, j = (torch.arange(n, device=q.device).view([-1 if a == at else 1 for a in range(4)])
                  for at, n in enumerate(score.shape))
    if mod is not None:
        score = mod(score, b, h, i, j)
    if mask is not None:
        score = torch.where(mask(b, h, i, j), score, -torch.inf)
    empty = torch.isneginf(score).all(-1, keepdim=True)
    weight = torch.softmax(torch.where(empty, 0.0, score), -1).masked_fill(empty, 0.0)
    lse = torch.logsumexp(torch.where(empty, 0.0, score), -1).masked_fill(empty[..., 0], 0.0)
    return weight @ v, lse


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", list(programs("cpu")))
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_values_and_gradients(name: str, dtype: torch.dtype, mode: str | None) -> None:
    mod, mask = programs("cuda")[name]
    batch, heads, kv_heads, queries, keys, head = SIZES
    blocks = None if mask is None else create_block_mask(mask, batch, heads, queries, keys, "cuda")

    def program(q: Any, k: Any, v: Any) -> Any:
        q, k, v = q * 1, k * 1, v * 1  # two launches more
        out, lse = flex_attention(
            q, k, v, mod, blocks, scale=0.2, enable_gqa=True, return_lse=True)
        return out + 0, torch.where(torch.isinf(lse), 0.0, lse)

    compiled = dynamo.compile(program, mode=mode, fullgraph=True)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 4e-3
    for turn in range(4 if mode else 1):
        torch.manual_seed(turn)
        given = [torch.randn(batch, n, size, head, device="cuda", dtype=dtype, requires_grad=True)
                 for n, size in ((heads, queries), (kv_heads, keys), (kv_heads, keys))]
        wide = [x.detach().double().requires_grad_() for x in given]
        results, wanted = compiled(*given), expected(mod, mask, *wide, 0.2)
        weights = [torch.randn_like(x) for x in results]
        loss = sum((x * w).sum() for x, w in zip(results, weights, strict=True))
        other = sum((x * w.double()).sum() for x, w in zip(wanted, weights, strict=True))
        grads, truth = torch.autograd.grad(loss, given), torch.autograd.grad(other, wide)
        for one, exact in zip((*results, *grads), (*wanted, *truth), strict=True):
            size = exact.abs().max().clamp(min=1.0)
            assert ((one.double() - exact).abs().max() / size) < 4 * tolerance, name
    assert not dynamo.counters["not_compiled"]


def test_our_kernels_serve() -> None:
    """And what they give without gradients is what they give with them."""
    from inductor.fx_passes.attention.calls import replace_attention

    found: list[Any] = []

    def keep(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        assert any(isinstance(node.target, FlexCall) for node in gm.graph.nodes)
        replace_attention(gm)
        found.extend(node.target for node in gm.graph.nodes if isinstance(node.target, ChosenFlex))
        return gm.forward

    mod, mask = programs("cuda")["bias"]
    blocks = create_block_mask(mask, 2, 4, LENGTH, LENGTH, "cuda")
    q, k, v = torch.randn(3, 2, 4, LENGTH, 64, device="cuda", dtype=torch.float16)

    def program(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, mod, blocks)

    with torch.no_grad():
        out = dynamo.compile(program, backend=keep, fullgraph=True)(q, k, v)
        torch.testing.assert_close(out, dynamo.compile(program)(q, k, v))
        torch.testing.assert_close(out, program(q, k, v), rtol=5e-3, atol=5e-3)
    assert len(found) == 1 and not dynamo.counters["not_compiled"]
