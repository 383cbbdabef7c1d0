"""Each lowering against eager: the loop graph run by the interpreter, and the compiled kernels.

Rows are (name, function, inputs); a row whose operators must all be lowered (no call into ATen but
products and convolutions) is in the first table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.aot.capture import capture_forward
from inductor import metrics
from inductor.driver.compile_fx import compile_fx
from inductor.ir.interpret import interpret_graph
from inductor.lowering.run import lower_graph
from tests.parametrize import threes

Row = tuple[str, Callable[..., Any], Callable[[], list[torch.Tensor]]]


def normal(*sizes: tuple[int, ...]) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randn(size) for size in sizes]


def ints(*sizes: tuple[int, ...]) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randint(-9, 10, size) for size in sizes]


def with_index(size: tuple[int, ...], extent: int, *index: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randn(size), torch.randint(0, extent, index)]


def moments(c: int) -> list[torch.Tensor]:
    return [torch.randn(c), torch.rand(c) + 0.1, torch.randn(c), torch.randn(c)]


CUBE = normal((4, 6, 8))
TWO = normal((5, 7), (7,))

LOWERED: list[Row] = [
    ("arithmetic", lambda x, y: ((x + y) * 2 - y / 3, torch.add(x, y, alpha=2), 1 - x), TWO),
    ("gelu", lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")), CUBE),
    ("activations", lambda x: (F.silu(x), F.relu(x), F.hardswish(x), F.hardsigmoid(x), F.mish(x)), CUBE),
    ("slopes", lambda x: (F.leaky_relu(x), F.elu(x), F.selu(x), F.celu(x, 0.7), F.relu6(x * 4)), CUBE),
    ("thresholds", lambda x: (F.softplus(x), F.threshold(x, 0.1, 3.0), F.softshrink(x)), CUBE),
    ("clamps", lambda x: (x.clamp(-1, 1), x.clamp(min=0.1), x.clamp(max=0.2)), CUBE),
    ("clamp by tensors", lambda x, y: (torch.clamp(x, y, y + 1), torch.minimum(x, y)), TWO),
    ("exponentials", lambda x: (x.exp(), x.expm1(), x.abs().log1p(), x.tanh(), x.sigmoid()), CUBE),
    ("trigonometry", lambda x: (x.sin(), x.cos(), x.atan(), torch.atan2(x, x + 1)), CUBE),
    ("errors", lambda x: (x.erf(), x.erfc(), x.abs().sqrt(), (x.abs() + 1).rsqrt()), CUBE),
    ("powers", lambda x: (x.abs() ** 0.5, x**3, x.abs() ** 1.7, 2.0**x, x.square()), CUBE),
    ("rounding", lambda x: (x.floor(), x.ceil(), x.trunc(), (x * 2).round(), x.sign()), CUBE),
    ("divisions", lambda x: (torch.div(x, 0.3, rounding_mode="floor"), x % 0.7, x.fmod(0.7)), CUBE),
    ("comparisons", lambda x: (x > 0, (x < 1) & (x >= 0) | ~(x == 0.5), x.isnan()), CUBE),
    ("where", lambda x: torch.where(x > 0, x, 0.0).masked_fill(x < -1, float("-inf")), CUBE),
    ("lerp", lambda x, y: (torch.lerp(x, y, 0.3), torch.addcmul(x, y, y, value=0.5)), TWO),
    ("integers", lambda x: (x * 2 + 1, x / 2, x.float() ** 2, -x, x.abs(), x // 3, x & 3), ints((4, 5))),
    ("promotion", lambda x, y: (x + y, x * 2.5, x > y, x.half() + y), lambda: [
        torch.randint(0, 9, (3, 4)), torch.randn(4)]),
    ("bools", lambda x: (x.logical_not(), x + x, x * x, x.float() - 1, x.logical_and(~x)), lambda: [
        torch.rand(9) > 0.5]),
    ("sums", lambda x: (x.sum(1), x.sum((0, 2)), x.sum(), x.sum(-1, keepdim=True)), CUBE),
    ("means", lambda x: (x.mean(1), x.mean((0, 2), keepdim=True), x.mean()), CUBE),
    ("extremes", lambda x: (x.amax(0), x.amin((1, 2)), x.max(), x.min()), CUBE),
    ("positions", lambda x: (x.argmax(1), x.argmin(), x.max(1), x.min(-1, keepdim=True)), CUBE),
    ("any all", lambda x: ((x > 0).any(1), (x > -3).all(), (x > 0).all(2)), CUBE),
    ("remainders of integers", lambda x: (x % 3, x % -4, torch.fmod(x, -4), torch.fmod(x, 3), x.byte() % 5), ints((4, 5))),
    ("sums of integers", lambda x: (x.sum(1), x.prod(0), (x > 0).sum()), ints((4, 5))),
    ("variances", lambda x: (x.var(1), x.std(), torch.var_mean(x, (0, 1), correction=0)), CUBE),
    ("norms", lambda x: (x / x.norm(dim=-1, keepdim=True), x.norm(1, dim=0)), CUBE),
    ("softmax", lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)), CUBE),
    ("layer norm", lambda x, w, b: F.layer_norm(x + 1, (8,), w, b), normal((4, 6, 8), (8,), (8,))),
    ("layer norm of two", lambda x: F.layer_norm(x, (6, 8)), CUBE),
    ("group norm", lambda x, w, b: F.group_norm(x, 3, w, b), normal((2, 6, 3, 3), (6,), (6,))),
    ("batch norm", lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
     lambda: [torch.randn(2, 6, 3, 3), *moments(6)]),
    ("batch norm, channels last", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), lambda: [
        torch.randn(2, 6, 3, 4).to(memory_format=torch.channels_last), *moments(6)]),
    ("reshapes", lambda x: ((x + 1).permute(2, 0, 1).reshape(8, 24) * 2, x.view(4, 48) + 1), CUBE),
    ("slices", lambda x: (x[:, 1:3, ::2] * 2, x[1] + 1, x[..., -1] * 3, x[:, -2:] + 1), CUBE),
    ("expand", lambda x: x.unsqueeze(1).expand(4, 3, 6, 8) - x.exp()[:, None], CUBE),
    ("squeeze", lambda x: ((x[:, :1] + 1).squeeze(1) * 2, x.transpose(0, 2) + 1), CUBE),
    ("chunks", lambda x: (x.chunk(2, -1)[0] * x.split([4, 4], 2)[1], x.unbind(0)[2] + 1), CUBE),
    ("cat", lambda x: torch.cat([x * 2, x[:, :2] + 1], 1) + 1, CUBE),
    ("cat of many", lambda x: torch.cat([x, x, x + 1, x, x * 2, x], 2), CUBE),
    ("cat of dtypes", lambda x: torch.cat([x, x.double()], 0), CUBE),
    ("stack", lambda x: torch.stack([x * 2, x.cos(), x + 1], 1).transpose(0, 1) + 1, CUBE),
    ("stack at the end", lambda x: torch.stack([x[0], x[1].abs()], -1), CUBE),
    ("stack of dtypes", lambda x: torch.stack([x, x.double()]).sum(0), CUBE),
    ("rotate half", lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1) * 2, CUBE),
    ("pad", lambda x: (F.pad(x, (1, 2, 3, 0), value=2.0), F.pad(x, (-1, 2)) + 1), CUBE),
    ("flip and repeat", lambda x: x.flip(1, 2).repeat(2, 1, 3), CUBE),
    ("indices", lambda x, i: (x[:, i], x[i, i], x.index_select(2, i)), with_index((4, 6, 8), 4, 5)),
    ("negative indices", lambda x, i: x[:, i - 4] * 2, with_index((4, 6, 8), 4, 5)),
    ("gather", lambda x, i: x.gather(1, i) + 1, with_index((4, 6), 6, 4, 3)),
    ("embedding", lambda w, i: F.embedding(i, w) * 2, with_index((10, 4), 10, 3, 5)),
    ("ranges", lambda x: torch.arange(8) * x + torch.full((8,), 3) + torch.ones(8), CUBE),
    ("triangles", lambda x: (x.tril(1), x.triu(-1)), CUBE),
    ("linear", lambda x, w, b: F.relu(F.linear(x, w, b)), normal((3, 8), (5, 8), (5,))),
    ("products", lambda x, y: (x @ y, torch.bmm(x, y) + 1), normal((2, 3, 4), (2, 4, 5))),
    ("convolution", lambda x, w: F.conv2d(x, w).relu(), normal((2, 3, 8, 8), (4, 3, 3, 3))),
    ("attention", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
     normal((2, 3, 6, 8))),
    ("einsum", lambda x: torch.einsum("abc,adc->abd", x, x) + 1, CUBE),
    ("writes into a slice", lambda x: (y := x.clone(), y[:, 1].mul_(3.0), y * 2)[2], CUBE),
    ("max pool", lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, return_indices=True)),
     normal((2, 3, 9, 8))),
    ("max pool of minus infinity", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
     lambda: [torch.full((1, 1, 5, 5), -torch.inf)]),
    ("norm in a dtype", lambda x: (torch.linalg.vector_norm(x.half(), dim=1, keepdim=True, dtype=torch.float32),
        torch.linalg.vector_norm(x, 1, dtype=torch.float64), torch.linalg.vector_norm(x.half(), dim=(0, 2), dtype=torch.float32)), normal((3, 5, 70))),
    ("average pool", lambda x: (F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(
        x, 4), F.avg_pool2d(x, 3, 2, 1)), normal((2, 3, 8, 8))),
    ("average pool that ends at the border", lambda x: (
        F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False), F.avg_pool2d(x, 2, 2, 1, ceil_mode=True),
        F.avg_pool2d(x, (2, 4), ceil_mode=True, divisor_override=3)), normal((2, 3, 8, 8))),
    ("convolutions", lambda x, w, v: (F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, stride=2) + 1).flatten(1),
     normal((2, 3, 8, 8), (4, 3, 3, 3), (5, 4, 1, 1))),
    ("grouped convolution", lambda x, w: F.conv2d(x, w, groups=4, padding=1).mean((2, 3)),
     normal((2, 8, 6, 6), (8, 2, 3, 3))),
    ("half", lambda x: (x.softmax(-1), (x * 3 + 1).relu(), F.layer_norm(x, (8,))), lambda: [
        torch.randn(4, 6, 8).bfloat16()]),
    ("float16", lambda x: (F.gelu(x), x.sum(1)), lambda: [torch.randn(4, 6, 8).half()]),
    ("double", lambda x: (F.gelu(x), x.softmax(1), x.exp().sum()), lambda: [
        torch.randn(4, 6, 8).double()]),
    ("scalars", lambda x, y: x * y + y.exp(), lambda: [torch.randn(3), torch.randn(())]),
    ("one element", lambda x: (x.sum(), x * 2, x.softmax(0)), normal((1,))),
    ("transposed input", lambda x: (x.exp() + 1, x.sum(0), x.reshape(-1)), lambda: [
        torch.randn(6, 4).t()]),
]  # fmt: skip

LEFT_TO_ATEN: list[Row] = [
    ("cumsum", lambda x: x.cumsum(1).exp(), CUBE),
    ("sort", lambda x: x.sort(1)[0] + 1, CUBE),
    ("complex", lambda x: torch.view_as_real(torch.complex(x, x) * 2) + 1, CUBE),
    ("empty", lambda x: (x[:0] + 1, x[:0].sum(0)), CUBE),
    ("inverse", lambda x: torch.linalg.inv(x[0, :6, :6]) * 2, CUBE),
    ("topk", lambda x: x.topk(2)[0] * 2, CUBE),
]


def tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, (tuple, list)) else [value]
    return [item for v in items for item in (tensors(v) if isinstance(v, (tuple, list)) else [v])]


def module_of(function: Callable[..., Any], inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
    names = ", ".join(f"a{n}" for n in range(len(inputs)))
    scope = {"function": function, "flat": tensors}
    return torch.fx.symbolic_trace(eval(f"lambda {names}: tuple(flat(function({names})))", scope))


def compare(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.numel() > 1:
            real = [n for n, extent in enumerate(b.shape) if extent > 1]
            assert [a.stride(n) for n in real] == [b.stride(n) for n in real]
        if b.dtype.is_floating_point or b.dtype.is_complex:
            tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}.get(b.dtype, 1e-2)
            torch.testing.assert_close(a, b, rtol=tolerance * 5, atol=tolerance, equal_nan=True)
        else:
            assert torch.equal(a, b)


ALL = [pytest.param(*row[1:], id=row[0]) for row in LOWERED + LEFT_TO_ATEN]


@pytest.mark.parametrize(("function", "make"), ALL)
def test_interpreted_loop_graph_equals_eager(function: Any, make: Any) -> None:
    torch.manual_seed(1)
    inputs = make()
    captured = capture_forward(module_of(function, inputs), inputs)
    graph = lower_graph(captured.module).graph
    fresh = make()
    compare(interpret_graph(graph, fresh), tensors(function(*fresh)))


@pytest.mark.parametrize("rows", threes(LOWERED) + threes(LEFT_TO_ATEN),
                         ids=lambda rows: ", ".join(row[0] for row in rows))
def test_compiled_kernels_equal_eager(rows: list[Row]) -> None:
    torch.manual_seed(2)
    ends = list(itertools.accumulate(len(make()) for _, _, make in rows))

    def function(*inputs: Any) -> list[Any]:
        return [function(*inputs[start:end]) for (_, function, _), start, end in zip(rows, [0, *ends], ends)]

    def make() -> list[torch.Tensor]:
        return [x for _, _, make in rows for x in make()]

    inputs = make()
    compiled = compile_fx(module_of(function, inputs), inputs)
    torch.manual_seed(3)
    for values in (inputs, make()):
        compare(tensors(compiled(*values)), tensors(function(*values)))


@pytest.mark.parametrize(("function", "make"), [pytest.param(*r[1:], id=r[0]) for r in LOWERED])
def test_everything_in_the_first_table_is_lowered(function: Any, make: Any) -> None:
    inputs = make()
    captured = capture_forward(module_of(function, inputs), inputs)
    assert lower_graph(captured.module).fallbacks == ()


def test_fallbacks_are_counted_by_operator() -> None:
    metrics.reset()
    x = torch.randn(4, 5)
    compile_fx(module_of(lambda x: x.cumsum(1).exp(), [x]), [x])
    assert metrics.fallbacks() == {"aten.cumsum.default": 1}
    assert metrics.snapshot()["fallbacks"] == 1


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batch_norm_of_the_batch_in_half_precision(dtype: torch.dtype, affine: bool) -> None:
    norm = torch.nn.BatchNorm1d(3, affine=affine, track_running_stats=False).to(dtype)
    x, factor = torch.randn(4, 3, 5).to(dtype), torch.randn(4, 3, 5)
    found = []
    for program in (dynamo.compile(norm), norm):
        value = x.clone().requires_grad_()
        result = program(value)
        grads = torch.autograd.grad((result.float() * factor).sum(), [value, *norm.parameters()])
        found.append((result, *grads))
    for ours, eagers in zip(*found, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=2e-2, atol=4e-2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16])
@pytest.mark.parametrize("number", [300, -1, 1e39])
def test_a_number_out_of_range_is_eagers_error(number: float, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 9]).to(dtype)
    for program in (
        lambda x: torch.full_like(x, number), lambda x: torch.where(x > 1, x, number),
        lambda x: x.clone().fill_(number), lambda x: x % number, lambda x: x // number,
    ):  # fmt: skip
        found: list[Any] = []
        for call in (program, dynamo.compile(program)):
            try:
                found.append(call(x))
            except (RuntimeError, ZeroDivisionError) as error:
                found.append(type(error))
        if isinstance(found[0], torch.Tensor):
            torch.testing.assert_close(found[1], found[0], equal_nan=True)
        else:
            assert found[0] is found[1]
