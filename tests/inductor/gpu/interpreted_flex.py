"""Kernels of flex attention in Triton's interpreter, forward and backward, against ATen in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from interpreted_programs import texts, trained
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dynamo
from dynamo.graph_operators.flex_calls import TABLES, FlexCall
from inductor.fx_passes.attention.calls import replace_flex
from inductor.kernels.attention_spec import NO_LEAVES, Blocks
from inductor.kernels.gpu.attention.flex_launches import prepare_backward, prepare_forward
from inductor.kernels.gpu.attention.flex_program import program_of
from inductor.kernels.gpu.attention.flex_spec import flex_spec_of
from inductor.operators import flex_ops

HALF = torch.float16
slopes, document = torch.rand(2), torch.arange(40) // 13
bias = torch.randn(2, 2, 40, 40)
odd = torch.randint(0, 40, (40,))


def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s - slopes[h] * (i - j).abs()


def capped(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.tanh(s / 2.0) * 2.0 + (h - b)


def biased(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s * 0.5 + bias[b, h, i, odd[j]] * torch.exp(s * 0.1)


def negative(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.where(i >= j, s, -float("inf"))


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (document[i] == document[j]) & (i >= j)


def few(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i > 20) & (i - j < 9) & (h != 1) & (j < 37)


CASES: dict[str, Any] = {
    "plain": (None, None), "alibi": (alibi, None), "cap": (capped, causal), "bias": (biased, causal),
    "negative": (negative, None), "causal": (None, causal), "documents": (None, documents),
    "few": (alibi, few),
}  # fmt: skip


def captured(mod: Any, mask: Any, sizes: Any, block: int) -> tuple[FlexCall, list[Any], list[Any]]:
    """The call of a program in its graph, fakes and values of its arguments."""
    batch, heads, kv_heads, queries, keys, head, value_head = sizes
    shapes = (batch, queries, heads, head), (batch, keys, kv_heads, head), (batch, keys, kv_heads, value_head)
    q, k, v = (torch.randn(shape, dtype=HALF).transpose(1, 2) for shape in shapes)
    blocks = None if mask is None else create_block_mask(
        mask, batch, heads, queries, keys, "cpu", BLOCK_SIZE=block)
    found: list[Any] = []

    def keep(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        (node,) = (node for node in gm.graph.nodes if isinstance(node.target, FlexCall))
        values = dict(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True))
        given = [item if item is None else values.get(item) for item in node.args]
        found.extend((node.target, [None if x is None else x.meta["example_value"] for x in node.args], given))
        return gm.forward

    def program(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, mod, blocks, scale=0.3, enable_gqa=True)

    with torch.no_grad():
        dynamo.compile(program, backend=keep, fullgraph=True)(q, k, v)
    return found[0], found[1], found[2]


@pytest.mark.parametrize(("name", "sizes"), [
    *((name, (1, 2, 2, 32, 32, 16, 16)) for name in CASES if name not in ("few", "documents")),
    *((name, (2, 2, 1, 40, 40, 16, 24)) for name in ("few", "documents", "bias")),
])  # fmt: skip
def test_forward_and_backward(name: str, sizes: Any) -> None:
    torch.manual_seed(0)
    mod, mask = CASES[name]
    call, fakes, (q, k, v, *inputs) = captured(mod, mask, sizes, 16)
    reads = inputs[TABLES:]
    program = program_of(call, (*q.shape[:3], k.shape[2]), q.device, fakes[3 + TABLES:])
    assert program is not None and program.masked is (mask is not None)
    known = flex_ops.Program(program, call)
    tables = flex_ops.tables_of(inputs[:TABLES], q.shape, k.shape, call.facts.sizes)
    assert bool(tables) is (mask is not None)
    for given, blocks in ((tables, Blocks(16, 16, 4, 2)), ([], Blocks(32, 16, 4, 2))):
        spec = flex_spec_of(q, k, v, given, call.facts.sizes or (1, 1), 0.3)
        out, lse = prepare_forward(program, spec, q.device, blocks)(q, k, v, given, reads)
        wide = [x.double() for x in (q, k, v)]
        expected, sums = flex_ops.reference_flex(known, *wide, given, reads)
        assert out.stride() == flex_ops.shape_of_flex(q, k, v)[0].stride()
        torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(lse, sums, rtol=1e-5, atol=1e-5)
        grad = torch.randn_like(out)
        lse_grad = torch.randn_like(lse).masked_fill(torch.isinf(lse), 0.0)
        want = flex_ops.reference_backward(
            known, NO_LEAVES, grad.double(), lse_grad, *wide, expected, sums, given, reads)
        for leaves in (NO_LEAVES, (True, True, False)):
            backward = prepare_backward(program, spec, grad, blocks, blocks, leaves)
            got = backward(grad, lse_grad, q, k, v, out, lse, given, reads)
            for one, other, x, leaf in zip(got, want, (q, k, v), leaves, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-2, atol=1e-2)
                assert one.stride() == flex_ops.empty_gradient(x, leaf).stride()


def test_operators_keep_their_kernels() -> None:
    call, fakes, (q, k, v, *inputs) = captured(alibi, causal, (1, 2, 1, 32, 32, 16, 16), 16)
    kernels = program_of(call, (*q.shape[:3], 32), q.device, fakes[3 + TABLES:])
    assert kernels is not None
    program = flex_ops.PROGRAMS[kernels.name] = flex_ops.Program(kernels, call)
    reads, sparse = inputs[TABLES:], call.facts.sizes or (1, 1)
    tables = flex_ops.tables_of(inputs[:TABLES], q.shape, k.shape, sparse)
    facts = tables, reads, kernels.name, list(sparse), 0.3
    expected = flex_ops.reference_flex(program, q, k, v, tables, reads)
    for _ in range(2):
        out, lse = flex_ops.by_kernels(q, k, v, *facts)
        torch.testing.assert_close((out, lse), expected, rtol=5e-3, atol=5e-3)
    grad = torch.randn_like(out)
    found = flex_ops.backward_by_kernels(grad, None, q, k, v, out, lse, *facts, NO_LEAVES)
    wanted = flex_ops.reference_backward(program, NO_LEAVES, grad, None, q, k, v, out, lse, tables, reads)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    assert len(flex_ops._kernels().known) == 2 and not dynamo.counters["not_compiled"]


def test_graphs_call_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward through lowering and the wrapper; the operator runs as ATen here."""
    monkeypatch.setattr(flex_ops, "has_kernel", lambda *tensors: True)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    blocks = create_block_mask(causal, 2, 2, 40, 40, "cpu", BLOCK_SIZE=16)

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        assert replace_flex(gm)
        return trained(gm, inputs)

    def program(q: Any, k: Any, v: Any) -> Any:
        out, lse = flex_attention(q * 1, k, v, alibi, blocks, return_lse=True)
        return out * 2, lse + 1

    given = [torch.randn(2, 2, 40, 16, dtype=HALF, requires_grad=True) for _ in range(3)]
    wide = [x.detach().double().requires_grad_() for x in given]
    i, j = torch.arange(40)[:, None], torch.arange(40)
    score = wide[0] @ wide[1].transpose(2, 3) * 0.25 - slopes[:, None, None] * (i - j).abs()
    score = score.masked_fill(i < j, -torch.inf)
    wanted = score.softmax(-1) @ wide[2] * 2, score.logsumexp(-1) + 1
    results = dynamo.compile(program, backend=backend, fullgraph=True)(*given)
    assert "flex_attention" in texts[-1]
    grads = [torch.autograd.grad([x.sum() for x in many], inputs)
             for many, inputs in ((results, given), (wanted, wide))]
    assert "flex_attention_backward" in texts[-1]
    assert [grad.stride() for grad in grads[0][1:]] == [x.stride() for x in given[1:]], "of leaves"
    for one, other in zip((*results, *grads[0]), (*wanted, *grads[1]), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-2, atol=1e-2)
