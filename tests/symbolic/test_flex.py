"""Flex attention in traced programs, against eager's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    or_masks,
)

import dynamo
from dynamo.testing import CompileCounter
from tests.parametrize import long_where

BACKENDS = ("eager", "aot_eager", "inductor")
Tensor = torch.Tensor
Qkv = tuple[Tensor, Tensor, Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called", "ignore:return_lse is")


def random_qkv(queries: int = 40, keys: int = 40, heads: int = 4, kv_heads: int = 4) -> Qkv:
    sizes = (2, heads, queries, 16), (2, kv_heads, keys, 16), (2, kv_heads, keys, 24)
    q, k, v = (torch.randn(size) for size in sizes)
    return q, k, v


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def near(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q - kv < 7


def block_mask(mask: Any, queries: int = 40, keys: int = 40, **options: Any) -> BlockMask:
    return create_block_mask(mask, None, None, queries, keys, "cpu", BLOCK_SIZE=16, **options)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v)


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q * 2, k, v, scale=0.3).sum(-1)


def relative(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j)) + 1


def capped(q: Tensor, k: Tensor, v: Tensor) -> Any:
    def cap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.tanh(score / 5.0) * 5.0

    return flex_attention(q, k, v, score_mod=cap)


def causal_by_scores(q: Tensor, k: Tensor, v: Tensor) -> Any:
    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i >= j, score, -float("inf"))

    return flex_attention(q, k, v, score_mod=mod)


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Any:
    slopes = torch.exp2(-torch.arange(1.0, q.shape[1] + 1))

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j).abs()

    return flex_attention(q, k, v, score_mod=mod)


def biased(q: Tensor, k: Tensor, v: Tensor) -> Any:
    bias = torch.sin(q[..., :1] * k[..., :1].transpose(2, 3))
    table = bias[0]

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias[b, h, i, j] * table[0, i][j] + table[1, 3, 2]

    return flex_attention(q, k, v, score_mod=mod)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, block_mask=block_mask(causal))


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, block_mask=block_mask(and_masks(causal, near)))


def either(q: Tensor, k: Tensor, v: Tensor) -> Any:
    mask = or_masks(causal, lambda b, h, q, kv: kv % 5 == 0)
    return flex_attention(q, k, v, block_mask=block_mask(mask, _compile=False))


def documents(q: Tensor, k: Tensor, v: Tensor) -> Any:
    document = torch.arange(q.shape[2]) // 11

    def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (document[i] == document[j]) & (i >= j)

    return flex_attention(q, k, v, block_mask=block_mask(same))


def nothing_seen(q: Tensor, k: Tensor, v: Tensor) -> Any:
    mask = block_mask(lambda b, h, q, kv: (q > 20) & (kv < q))
    return flex_attention(q, k, v, block_mask=mask, return_lse=True)


def with_aux(q: Tensor, k: Tensor, v: Tensor) -> Any:
    out, aux = flex_attention(q, k, v, block_mask=block_mask(causal),
                              return_aux=AuxRequest(lse=True))
    return out, aux.lse


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Any:
    mod = lambda s, b, h, i, j: s * (h + 1)  # noqa: E731
    return flex_attention(q, k[:, :2], v[:, :2], mod, enable_gqa=True)


def other_lengths(q: Tensor, k: Tensor, v: Tensor) -> Any:
    mask = block_mask(lambda b, h, i, j: i + 3 >= j, 23, 40)
    return flex_attention(q[:, :, :23], k, v, block_mask=mask)


def one_batch_of_keys(q: Tensor, k: Tensor, v: Tensor) -> Any:
    mask = create_block_mask(causal, 2, 4, 40, 40, "cpu")
    return flex_attention(q, k[:1], v[:1], block_mask=mask)


def other_strides(q: Tensor, k: Tensor, v: Tensor) -> Any:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    return flex_attention(q, k, v, relative_of(1.5))


def twice(q: Tensor, k: Tensor, v: Tensor) -> Any:
    out = flex_attention(q, k, v, relative_of(0.5), block_mask=block_mask(causal))
    return flex_attention(q, k, out, block_mask=block_mask(near))


def relative_of(slope: float) -> Any:
    return lambda s, b, h, i, j: s - slope * (i - j)


def choosing(q: Tensor, k: Tensor, v: Tensor) -> Any:
    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        odd = torch.logical_and(h % 2 == 1, j > 3)
        return torch.where(odd, score.clamp(-1, 1), torch.minimum(score, i.float().sqrt()))

    return flex_attention(q, k, v, score_mod=mod)


PROGRAMS: list[Callable[..., Any]] = [
    plain, scaled, relative, capped, causal_by_scores, alibi, biased, masked, windowed, either,
    documents, nothing_seen, with_aux, grouped, other_lengths, one_batch_of_keys, other_strides,
    twice, choosing,
]  # fmt: skip


def flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def eager(program: Any, given: Any) -> Any:
    """Without torch's compiler, which flex attention calls in eager, too."""
    with mock.patch.object(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        return program(*given)


def check(one: Any, other: Any) -> None:
    for a, b in zip(flat(one), flat(other), strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype
        torch.testing.assert_close(a, b, equal_nan=True, atol=2e-5, rtol=2e-5)


# Each program with one of the backends.
@pytest.mark.parametrize(("program", "backend"), [
    *(pytest.param(program, backend, marks=pytest.mark.long if (number + other) % 2 else ())
      for number, program in enumerate(PROGRAMS) for other, backend in enumerate(("eager", "inductor"))),
    (alibi, "aot_eager"), pytest.param(documents, "aot_eager", marks=pytest.mark.long),
], ids=lambda item: getattr(item, "__name__", item))  # fmt: skip
def test_one_graph_gives_what_eager_gives(program: Any, backend: str) -> None:
    given = random_qkv()
    dynamo.counters.clear()
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            check(compiled(*given), eager(program, given))
            given = random_qkv()
    assert not dynamo.counters["not_compiled"]


def test_functions_are_guarded() -> None:
    counter = CompileCounter("eager")
    scale = 2.0

    def outer(q: Tensor, k: Tensor, v: Tensor, mod: Any) -> Any:
        return flex_attention(q, k, v, score_mod=mod)

    def by_closure(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s * scale + i

    compiled = dynamo.compile(outer, backend=counter, fullgraph=True)
    given = random_qkv()
    with torch.no_grad():
        for scale, graphs in ((2.0, 1), (2.0, 1), (3.0, 2), (2.0, 2)):  # noqa: B007
            check(compiled(*given, by_closure), eager(outer, (*given, by_closure)))
            assert counter.frame_count == graphs
        mod = relative_of(1.0)
        check(compiled(*given, mod), eager(outer, (*given, mod)))
        assert counter.frame_count == 3


def test_tensors_of_functions_are_read_at_each_call() -> None:
    slopes = torch.rand(4)
    mask = block_mask(causal)

    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * slopes[h], mask)

    counter = CompileCounter("inductor")
    compiled = dynamo.compile(program, backend=counter, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            given = random_qkv()
            check(compiled(*given), eager(program, given))
            slopes.uniform_()
        mask = block_mask(and_masks(causal, near))
        check(compiled(*given), eager(program, given))
    assert counter.frame_count == 2


@pytest.mark.parametrize("backend", long_where(BACKENDS, ["aot_eager"]))
def test_gradients_of_what_functions_read(backend: str) -> None:
    """Those of queries, keys and values eager refuses on a CPU."""

    def program(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, table: Tensor) -> Any:
        def mod(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s * slopes[h] + table[b, (i - j) % 5]

        out, lse = flex_attention(q, k, v, mod, block_mask(near), return_lse=True)
        return out * 2 + lse[..., None]

    found = []
    q, k, v = random_qkv()
    reads = torch.rand(4, requires_grad=True), torch.rand(2, 5, requires_grad=True)
    weight = torch.randn(2, 4, 40, 24)
    for function in (dynamo.compile(program, backend=backend, fullgraph=True), program):
        out = function(q, k, v, *reads)
        found.append((out.detach(), *torch.autograd.grad((out * weight).sum(), reads)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", long_where([torch.float16, torch.bfloat16, torch.float64], [torch.bfloat16]))
def test_other_dtypes(dtype: torch.dtype) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, relative_of(0.1), block_mask(causal), return_lse=True)

    given = [x.to(dtype) for x in random_qkv()]
    with torch.no_grad():
        found = dynamo.compile(program, fullgraph=True)(*given)
        for one, other in zip(found, eager(program, given), strict=True):
            assert one.dtype is other.dtype and one.stride() == other.stride()
            torch.testing.assert_close(one, other)


def test_autocast() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, k, v, lambda s, b, h, i, j: torch.exp(s) - i)

    given = random_qkv()
    with torch.no_grad():
        found, wanted = dynamo.compile(program, fullgraph=True)(*given), eager(program, given)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", long_where(["eager", "inductor"], ["eager"]))
def test_sizes_that_change(backend: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, relative_of(0.1))

    compiled = dynamo.compile(program, backend=backend)
    with torch.no_grad():
        for length in (40, 24, 33, 8):
            given = random_qkv(length, length)
            check(compiled(*given), eager(program, given))


def breaks_by_halves(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, lambda s, b, h, i, j: (s + i).double())


def test_scores_of_another_dtype_break_the_graph() -> None:
    given = random_qkv()
    counter = CompileCounter("eager")
    with torch.no_grad():
        check(dynamo.compile(breaks_by_halves, backend=counter)(*given), eager(breaks_by_halves, given))
    assert not any("flex_attention" in str(node.target) and node.op == "call_function"
                   for graph in counter.graphs for node in graph.graph.nodes)


def test_gradients_on_a_cpu_are_refused_as_by_eager() -> None:
    q, k, v = random_qkv()
    q.requires_grad_()
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        dynamo.compile(plain)(q, k, v)


def test_errors_of_sizes_are_those_of_eager() -> None:
    q, k, v = random_qkv()
    kinds = []
    for function in (masked, dynamo.compile(masked)):
        with pytest.raises((ValueError, RuntimeError), match="block_mask was created") as error:
            function(q[:, :, :8], k, v)
        kinds.append((error.type, str(error.value)))
    assert kinds[0] == kinds[1]


def test_masks_made_at_each_step_are_one_graph() -> None:
    """Functions with the same code: their closures are read."""
    def same_document(ids: Tensor) -> Callable[..., Tensor]:
        return lambda b, h, q, kv: ids[b, q] == ids[b, kv]

    def f(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Tensor:
        return flex_attention(q, k, v, block_mask=mask)

    counter = CompileCounter()
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    for step in range(3):
        ids = (torch.arange(40) > 10 * step + 3).long().expand(2, 40)
        mask = create_block_mask(and_masks(causal, same_document(ids)), 2, None, 40, 40, device="cpu")
        qkv = random_qkv()
        torch.testing.assert_close(compiled(*qkv, mask), f(*qkv, mask))
    assert counter.frame_count == 1
