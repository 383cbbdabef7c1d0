"""Kernels of attention in Triton's interpreter, forward and backward, against ATen in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
import inductor.operators.attention_ops
from dynamo.aot.capture import capture_forward
from dynamo.base.counters import counters
from inductor.driver import cuda
from inductor.fx_passes.attention.calls import replace_attention
from inductor.kernels.attention_reference import (
    empty_gradient,
    reference_attention,
    reference_backward,
)
from inductor.kernels.attention_spec import NO_LEAVES, Blocks, few_of, four_strides, spec_of
from inductor.kernels.gpu.attention.launches import (
    AttentionBackwardCall,
    AttentionCall,
    prepare_backward,
    prepare_few,
    prepare_forward,
)
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

HALF = torch.float16
LEAST = torch.finfo(torch.float32).min

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {"sizes": (2, 2, 1, 37, 45, 24, 20)},
    "causal": {"sizes": (1, 2, 1, 37, 45, 16, 16), "causal": True},
    "causal, few keys": {"sizes": (1, 1, 1, 70, 21, 16, 16), "causal": True},
    "bias": {"bias": (1, 2, 37, 40)},
    "bias of keys": {"bias": (2, 1, 1, 40)},
    "bias and causal": {"bias": (2, 2, 37, 40), "causal": True},
    "mask": {"mask": (2, 1, 37, 40)},
    "mask of keys": {"mask": (2, 1, 1, 40)},
    "mask of keys, causal": {"mask": (2, 1, 1, 40), "causal": True, "sizes": (2, 4, 2, 37, 40, 16, 16)},
    "mask of keys of a head": {"mask": (2, 4, 1, 40), "sizes": (2, 4, 2, 37, 40, 16, 16)},
    "mask of keys and bias": {"mask": (2, 1, 1, 40), "bias": (2, 2, 37, 40)},
    "mask of keys, nan rows": {"mask": (2, 1, 1, 40), "nan_rows": True},
    "mask and causal": {"mask": (2, 1, 37, 40), "causal": True},
    "mask and window": {"mask": (2, 1, 1, 40), "window": 7, "causal": True},
    "window": {"sizes": (1, 2, 2, 70, 70, 16, 16), "window": 9, "causal": True},
    "cap": {"cap": 2.0, "causal": True},
    "cap and bias": {"cap": 0.7, "bias": (2, 2, 37, 40), "sizes": (2, 2, 1, 37, 40, 16, 32)},
    "nan rows": {"mask": (2, 1, 37, 40), "nan_rows": True},
}  # fmt: skip


def tensors(
    sizes: tuple[int, ...] = (2, 2, 2, 37, 40, 16, 16), bias: Any = None, mask: Any = None,
    **facts: Any,
) -> tuple[list[Any], dict[str, Any]]:
    """q, k, v, bias, mask and the rest of a case."""
    torch.manual_seed(0)
    batch, heads, kv_heads, queries, keys, head, value_head = sizes
    shapes = (batch, queries, heads, head), (batch, keys, kv_heads, head), (batch, keys, kv_heads, value_head)
    q, k, v = (torch.randn(shape, dtype=HALF).transpose(1, 2) for shape in shapes)
    seen = None if mask is None else torch.rand(mask) > 0.5
    if seen is not None:
        seen[0, 0, -1] = False  # a query that sees nothing
    added = None if bias is None else torch.randn(bias, dtype=HALF)
    defaults = {"causal": False, "scale": 0.3, "window": 0, "cap": 0.0, "nan_rows": False}
    return [q, k, v, added, seen], defaults | facts


@pytest.mark.parametrize("blocks", [Blocks(16, 16, 4, 2), Blocks(32, 64, 4, 2)])
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name: str, blocks: Blocks) -> None:
    (q, k, v, bias, mask), facts = tensors(**CASES[name])
    spec = spec_of(q, k, v, bias, mask, lse=True, **facts)
    out, lse = prepare_forward(spec, q.device, blocks)(q, k, v, bias, mask)
    wide = [x if x is None or x.dtype is torch.bool else x.double() for x in (q, k, v, bias, mask)]
    expected, sums = reference_attention(*wide, *facts.values(), True)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3, equal_nan=True)
    assert torch.equal(torch.isfinite(lse), torch.isfinite(sums) & ~torch.isnan(expected[..., 0]))
    known = torch.isfinite(lse)
    torch.testing.assert_close(lse[known], sums[known], rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(out)
    sums = torch.where(torch.isnan(lse), torch.nan, sums)
    want = reference_backward(
        grad.double(), *wide, expected, sums, *facts.values(), bias is not None, NO_LEAVES
    )
    for leaves in (NO_LEAVES, (True, False, True)):
        if leaves[0]:  # gradients as contiguous tensors
            q, v = q.contiguous(), v.contiguous()
            spec = spec_of(q, k, v, bias, mask, lse=True, **facts)
        backward = prepare_backward(spec, four_strides(grad), bias is not None, q.device, blocks, blocks, leaves)
        got = backward(grad, q, k, v, bias, mask, out, lse)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-2, atol=1e-2, equal_nan=True)
        for one, x, leaf in zip(got, (q, k, v), leaves, strict=False):
            assert one.stride() == empty_gradient(x, leaf).stride()


SEEN = {
    "all": range(70), "a start": range(53), "an end": range(19, 70), "within": range(17, 49),
    "one": range(40, 41), "two parts": (*range(5), *range(30, 70)), "none": (),
    "blocks": range(16, 64), "all but one": (*range(33), *range(34, 70)),
}  # fmt: skip


@pytest.mark.parametrize("facts", [{}, {"causal": True}, {"causal": True, "window": 20}],
                         ids=["", "causal", "window"])
@pytest.mark.parametrize("blocks", [Blocks(16, 16, 4, 2), Blocks(32, 64, 4, 2)])
def test_masks_of_keys_that_hide_starts_and_ends(blocks: Blocks, facts: dict[str, Any]) -> None:
    """Each sequence of a batch has keys of its own, which the loops over keys skip as a whole."""
    (q, k, v, _, _), facts = tensors((len(SEEN), 1, 1, 70, 70, 16, 16), **facts)
    mask = torch.zeros(len(SEEN), 1, 1, 70, dtype=torch.bool)
    for number, seen in enumerate(SEEN.values()):
        mask[number, ..., list(seen)] = True
    spec = spec_of(q, k, v, None, mask, lse=True, **facts)
    out, lse = prepare_forward(spec, q.device, blocks)(q, k, v, None, mask)
    wide = (q.double(), k.double(), v.double(), None, mask)
    expected, sums = reference_attention(*wide, *facts.values(), True)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse.double(), sums.double(), rtol=1e-5, atol=1e-5)


FEW: dict[str, dict[str, Any]] = {
    "one": {"sizes": (2, 4, 4, 1, 300, 16, 16)},
    "grouped": {"sizes": (1, 6, 2, 1, 421, 24, 20)},
    "several": {"sizes": (2, 4, 2, 5, 390, 16, 32)},
    "causal": {"sizes": (1, 2, 1, 16, 300, 16, 16), "causal": True},
    "window": {"sizes": (1, 4, 2, 9, 300, 16, 16), "causal": True, "window": 3},
    "mask of keys": {"sizes": (2, 4, 2, 2, 500, 16, 16), "mask": (2, 1, 1, 500)},
    "mask": {"sizes": (2, 4, 1, 3, 300, 16, 16), "mask": (2, 4, 3, 300)},
    "nan rows": {"sizes": (2, 4, 1, 3, 300, 16, 16), "mask": (2, 4, 3, 300), "nan_rows": True},
    "bias": {"sizes": (2, 4, 2, 3, 300, 16, 16), "bias": (1, 4, 3, 300)},
    "bias of keys, cap": {"sizes": (2, 4, 2, 3, 300, 16, 16), "bias": (2, 1, 1, 300), "cap": 2.0},
    "mask and bias": {"sizes": (1, 4, 2, 1, 300, 16, 16), "bias": (1, 4, 1, 300), "mask": (1, 1, 1, 300)},
}  # fmt: skip


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("name", FEW)
def test_few_queries(name: str, counted: bool) -> None:
    """Programs share the keys, and one of them may see none. counted: the last one joins what the others have found."""
    (q, k, v, bias, mask), facts = tensors(**FEW[name])
    if mask is not None:
        mask[..., :140] = False  # the whole first chunk
    spec = spec_of(q, k, v, bias, mask, lse=False, **facts)
    few = few_of(spec)
    assert few is not None and few.splits > 1 and few.splits * few.chunk >= k.shape[2]
    arrived = torch.zeros(q.shape[0] * k.shape[1], dtype=torch.int32) if counted else None
    forward = prepare_few(spec, few, q.device, counted)
    assert (forward.join is None) == counted
    forward(q, k, v, bias, mask, arrived)
    out, _ = forward(q, k, v, bias, mask, arrived)
    assert not counted or not arrived.any(), "ready for another call"
    wide = [x if x is None or x.dtype is torch.bool else x.double() for x in (q, k, v, bias, mask)]
    expected, _ = reference_attention(*wide, *facts.values(), False)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3, equal_nan=True)


def test_more_chunks_than_are_weighed_side_by_side() -> None:
    (q, k, v, _, _), facts = tensors((1, 2, 1, 1, 11 * 128, 16, 16))
    out, _ = AttentionCall()(q, k, v, None, None, *facts.values(), False, torch.zeros(1, dtype=torch.int32))
    expected, _ = reference_attention(q.double(), k.double(), v.double(), None, None, *facts.values(), False)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)


def attention_refused() -> int:
    return sum(n for text, n in counters["not_compiled"].items() if text.startswith("kernel runs as ATen"))


@pytest.mark.parametrize("arrived", [None, torch.zeros(1, dtype=torch.int32)])
def test_few_queries_without_their_kernel_are_counted(monkeypatch: pytest.MonkeyPatch, arrived: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("out of resources")

    monkeypatch.setattr("inductor.kernels.gpu.attention.launches.prepare_few", refuse)
    (q, k, v, _, _), facts = tensors((1, 2, 1, 1, 300, 16, 16))
    before = attention_refused()
    call = AttentionCall()
    for _ in range(2):
        out, _ = call(q, k, v, None, None, *facts.values(), False, arrived)
    expected, _ = reference_attention(q, k, v, None, None, *facts.values(), False)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)
    assert attention_refused() == before + 1


def test_least_number_as_bias_is_no_infinity() -> None:
    """A row of which every key is masked by the least float32 is the mean of the values."""
    (q, k, v, _, _), facts = tensors((1, 1, 1, 16, 32, 16, 16))
    bias = torch.full((1, 1, 16, 32), LEAST)
    spec = spec_of(q, k, v, bias, None, lse=False, **facts)
    out, _ = prepare_forward(spec, q.device, Blocks(16, 16, 4, 2))(q, k, v, bias, None)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out), rtol=2e-3, atol=2e-3)


def test_calls_keep_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v, bias, _), facts = tensors(bias=(1, 2, 37, 40))
    forward, backward = AttentionCall(), AttentionBackwardCall()
    expected, sums = reference_attention(q, k, v, bias, None, *facts.values(), True)
    for _ in range(2):
        out, lse = forward(q, k, v, bias, None, *facts.values(), True)
        torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)
        got = backward(out, q, k, v, bias, None, out, lse, *facts.values(), True, NO_LEAVES)
        want = reference_backward(out, q, k, v, bias, None, out, sums, *facts.values(), True, NO_LEAVES)
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    assert len(forward.known) == len(backward.known) == 1
    forward(q.clone(), k, v, None, None, *facts.values(), False)
    assert len(forward.known) == 2


def test_a_kernel_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("out of resources")

    monkeypatch.setattr("inductor.kernels.gpu.attention.launches.prepare_forward", refuse)
    (q, k, v, _, _), facts = tensors()
    before = attention_refused()
    call = AttentionCall()
    for _ in range(2):
        out, _ = call(q, k, v, None, None, *facts.values(), False)
    expected, _ = reference_attention(q, k, v, None, None, *facts.values(), False)
    assert torch.equal(out, expected)
    assert attention_refused() == before + 1


def test_in_a_whole_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated module calls the operator, with views of what other kernels wrote."""

    def program(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        parts = (x * 2).view(2, 8, 3, 2, 4)
        q, k, v = (parts[:, :, n].transpose(1, 2) for n in range(3))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)
        return y.transpose(1, 2).reshape(2, 8, 8) + 1

    for name in ("has_kernel", "is_faster"):
        monkeypatch.setattr(inductor.operators.attention_ops, name, lambda *_: True)
    gm = torch.fx.symbolic_trace(program)
    replace_attention(gm)
    given = [torch.randn(2, 8, 24), torch.rand(1, 1, 8, 8) > 0.3]
    given[1][..., 0] = True
    with torch.no_grad():
        module = capture_forward(gm, given).module
        graph = lower_graph(module).graph
        text = cuda.generate(graph, schedule_graph(graph, 8)).text
        assert "dynamo_jit::attention" in text
        result = cuda.load(text, graph, False)()(*given)[0]
    torch.testing.assert_close(result, program(*given))


def test_a_mask_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a causal mask with padding, the operator gets the padding alone."""

    def program(x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        q, k, v = ((x * 2).view(2, 8, 3, 2, 4)[:, :, n].transpose(1, 2) for n in range(3))
        i = torch.arange(8)
        m = (i[None, :] <= i[:, None])[None, None] & padding[:, None, None, :]
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)
        return y.transpose(1, 2).reshape(2, 8, 8) + 1

    for name in ("has_kernel", "is_faster_in_parts"):
        monkeypatch.setattr(inductor.operators.attention_ops, name, lambda *_: True)
    padding = torch.rand(2, 8) > 0.3
    padding[:, 0] = True
    found: list[Any] = []

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        found.extend((gm, examples))
        return gm.forward

    expected = dynamo.compile(program, backend=backend, fullgraph=True)(torch.randn(2, 8, 24), padding)
    gm, given = found
    replace_attention(gm)
    with torch.no_grad():
        module = capture_forward(gm, given).module
        call = next(n for n in module.graph.nodes if "dynamo_jit" in str(n.target))
        assert call.args[4].meta["val"].shape == (2, 1, 1, 8)
        assert call.args[5:8] == (True, 0.5, 0)
        graph = lower_graph(module).graph
        result = cuda.load(cuda.generate(graph, schedule_graph(graph, 8)).text, graph, False)()(*given)[0]
    torch.testing.assert_close(result, expected)
