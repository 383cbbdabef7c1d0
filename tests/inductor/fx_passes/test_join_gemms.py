"""GEMMs of one left operand are one where their weights lie in order in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from inductor.fx_passes.join_gemms import addresses_of, join_gemms
from inductor.lowering.registry import LOWERINGS
from inductor.operators.joined_gemms import OPERATOR, lie_in_order

ROWS, INNER, HEADS = 20, 24, 3
Program = Callable[..., Any]


def attention(x: Tensor, *given: Tensor) -> Tensor:
    """Weights, then biases (or none)."""
    weights, biases = given[:3], given[3:] or (None,) * 3
    q, k, v = (F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))

    def heads(y: Tensor) -> Tensor:
        return y.view(4, 5, HEADS, -1).transpose(1, 2)

    scores = heads(q) @ heads(k).transpose(-1, -2)
    return (scores.softmax(-1) @ heads(v)).transpose(1, 2).reshape(ROWS, -1)


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def returned(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, one).relu(), F.linear(x, other)


def viewed_and_returned(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, one).relu(), F.linear(x, other).view(4, 5, -1)


def flat(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """A view that columns of something wider do not have."""
    return F.linear(x, one).view(-1).relu() + F.linear(x, other).view(-1)


def written(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    y = F.linear(x, one).relu() + F.linear(x, other).relu()
    other.mul_(2)
    return y


def in_order(*rows: int, inner: int = INNER) -> list[Tensor]:
    """Weights, or biases where inner is 0, one behind another in memory."""
    size = (sum(rows), inner) if inner else (sum(rows),)
    return list(torch.randn(size).split(list(rows)))


def traced(program: Program, inputs: Sequence[Tensor]) -> fx.GraphModule:
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) as mode:
        fakes = [mode.from_tensor(tensor) for tensor in inputs]
    module = make_fx(torch.func.functionalize(program))(*fakes)
    module.graph.eliminate_dead_code()
    return module


def join(
    program: Program, inputs: Sequence[Tensor], only_attention: bool = False,
    addresses: dict[int, int] | None = None,
) -> fx.GraphModule:
    """The graph behind the pass; checks that it computes the same in the same layouts."""
    module = traced(program, inputs)
    if addresses is None:
        addresses = {at: tensor.data_ptr() for at, tensor in enumerate(inputs)}
    module = join_gemms(module, addresses, LOWERINGS.__contains__, only_attention)
    want = program(*[tensor.clone() for tensor in inputs])
    got = module(*[tensor.clone() for tensor in inputs])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    _Checked(module).run(*[tensor.clone() for tensor in inputs])
    return module


class _Checked(fx.Interpreter):
    """Whether each node knows its result: the sizes, and the strides where ATen computes it."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, Tensor):
            assert n.meta["val"].shape == result.shape
            is_ours = n.target in LOWERINGS and not n.target.is_view  # type: ignore[union-attr]
            assert is_ours or n.meta["val"].stride() == result.stride()
        return result


def counts(module: fx.GraphModule) -> tuple[int, int]:
    """Joined GEMMs, and others."""
    targets = [node.target for node in module.graph.nodes]
    plain = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return targets.count(OPERATOR), sum(targets.count(each) for each in plain)


@pytest.mark.parametrize("biases", [False, True])
def test_query_key_and_value(biases: bool) -> None:
    x = torch.randn(ROWS, INNER)
    given = in_order(12, 12, 12) + (in_order(12, 12, 12, inner=0) if biases else [])
    assert counts(join(attention, [x, *given])) == (1, 0)


def test_weights_in_another_order() -> None:
    first, second, third = in_order(12, 12, 12)
    assert counts(join(attention, [torch.randn(ROWS, INNER), third, first, second])) == (1, 0)


def test_two_of_three() -> None:
    query, key = in_order(12, 12)
    value = torch.randn(12, INNER)
    inputs = [torch.randn(ROWS, INNER), query, key, value]
    addresses = {1: 0, 2: query.nbytes, 3: 1 << 20}
    assert counts(join(attention, inputs, addresses=addresses)) == (1, 1)


def test_gemms_of_unequal_widths() -> None:
    assert counts(join(gated, [torch.randn(ROWS, INNER), *in_order(16, 16)])) == (1, 0)
    assert counts(join(returned, [torch.randn(ROWS, INNER), *in_order(16, 4)])) == (0, 2)


def test_only_what_attention_reads() -> None:
    assert counts(join(gated, [torch.randn(ROWS, INNER), *in_order(16, 16)], True)) == (0, 2)


@pytest.mark.parametrize("program", [returned, viewed_and_returned, flat, written])
def test_what_stays(program: Program) -> None:
    assert counts(join(program, [torch.randn(ROWS, INNER), *in_order(8, 8)])) == (0, 2)


def test_few_rows_of_half_precision() -> None:
    for rows, joined in ((16, 0), (17, 1)):
        inputs = [torch.randn(rows, INNER), *in_order(8, 8)]
        module = traced(gated, [each.half() for each in inputs])
        sizes = {0: 0, 1: 0, 2: 8 * INNER * 2}
        module = join_gemms(module, sizes, LOWERINGS.__contains__)
        assert counts(module) == (joined, 2 * (1 - joined))


def test_gemms_that_fill_the_device() -> None:
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True):
        inputs = [torch.empty(1 << 14, 8), torch.empty(1 << 10, 8), torch.empty(1 << 10, 8)]
        module = make_fx(gated)(*inputs)
    sizes = {0: 0, 1: 0, 2: (1 << 10) * 8 * 4}
    assert counts(join_gemms(module, sizes, LOWERINGS.__contains__)) == (0, 2)


def test_weights_apart() -> None:
    inputs = [torch.randn(ROWS, INNER), torch.randn(8, INNER), torch.randn(8, INNER)]
    apart = {0: 0, 1: 1 << 10, 2: 1 << 20}
    assert counts(join(gated, inputs, addresses=apart)) == (0, 2)
    assert counts(join(gated, inputs, addresses={})) == (0, 2)


def test_neighbours_in_memory() -> None:
    assert lie_in_order([8, 16, 20], [8, 4, 100])
    assert not lie_in_order([8, 17], [8, 4])
    assert not lie_in_order([16, 8], [8, 8])
    assert addresses_of([torch.randn(3), 4, None]) == {}, "not on a GPU"


def parts(rows: Sequence[int], dtype: torch.dtype, inner: int, apart: bool) -> list[Tensor]:
    """Of one tensor, one behind another or with a gap between."""
    gap = int(apart)
    size = (sum(rows) + gap * len(rows), inner) if inner else (sum(rows) + gap * len(rows),)
    whole = torch.randn(size).to(dtype).split([each + gap for each in rows])
    return [part[:each] for part, each in zip(whole, rows, strict=True)]


@pytest.mark.parametrize("rows", [(5,), (4, 4, 4), (8, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("weights_apart", [False, True])
@pytest.mark.parametrize("biases_apart", [None, False, True])
@pytest.mark.every_combination
def test_the_operator(
    rows: tuple[int, ...], dtype: torch.dtype, weights_apart: bool, biases_apart: bool | None
) -> None:
    x, weights = torch.randn(7, 6).to(dtype), parts(rows, dtype, 6, weights_apart)
    biases = [] if biases_apart is None else parts(rows, dtype, 0, biases_apart)
    for _ in range(2):
        found = OPERATOR(x, weights, biases)
        each = [F.linear(x, w, biases[n] if biases else None) for n, w in enumerate(weights)]
        torch.testing.assert_close(found, torch.cat(each, 1))
        assert found.stride() == (sum(rows), 1)
        weights[0].mul_(-2)  # nothing of a call is kept


def test_weights_that_only_seem_to_lie_in_order() -> None:
    """Each begins where as many bytes as the one before has end."""
    x, memory = torch.randn(5, 4), torch.randn(100)
    turned = memory[:16].view(4, 4).t()
    strided = memory[16:48].view(4, 8)[:, :4], memory[32:48].view(4, 4)
    for weights in ([turned, memory[16:32].view(4, 4)], list(strided)):
        wanted = torch.cat([F.linear(x, weight) for weight in weights], 1)
        torch.testing.assert_close(OPERATOR(x, weights, []), wanted)


def test_counts_of_biases() -> None:
    x, weights = torch.randn(5, 4), list(torch.randn(6, 4).split(3))
    with pytest.raises(RuntimeError, match="a bias for each weight"):
        OPERATOR(x, weights, [torch.randn(3)])
    with pytest.raises(RuntimeError, match="a bias for each weight"):
        OPERATOR(x, [], [])
    with pytest.raises(RuntimeError):
        OPERATOR(x, [weight[:, :3] for weight in weights], [])
