"""What training in half precision does on a GPU: captured for one, lowered, and interpreted here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.rows import merge_equal
from dynamo.aot.worlds import capture_in_world
from inductor.codegen.triton.plan import plan_kernel
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.pipeline import decompositions
from inductor.ir import interpret
from inductor.ir.graph import ComputedBuffer, ExternKernel
from inductor.lowering import builder
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.run import Lowered, lower_graph
from inductor.scheduler.run import schedule_graph

aten = torch.ops.aten
HALVES = [torch.float16, torch.bfloat16]
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}
Tensor = torch.Tensor


def lowered(program: Callable[..., Any], values: list[Tensor], in_place: bool = False) -> Lowered:
    """The program as it is lowered for tensors like these on a GPU. in_place: with writes that are."""
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    fakes = [FakeTensor(mode, value.to("meta"), gpu) for value in values]
    module = fx.symbolic_trace(program)
    graph, world = capture_in_world(
        lambda world: capture_forward(module, fakes, world=world), module, fakes, False
    )
    made = simplify(graph.module, decompositions(), world)
    merge_equal(made)
    return lower_graph(write_in_place(made, LOWERINGS.__contains__) if in_place else made)


def interpreted(program: Callable[..., Any], values: list[Tensor]) -> list[Tensor]:
    made = lowered(program, values)
    assert not made.fallbacks
    return list(interpret.interpret_graph(made.graph, values))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers lie in memory that is here."""
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x * 2, mean, var, weight, bias, True, 0.1, 1e-3))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kept", [*HALVES, torch.float32])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_batch_norm_updates_its_statistics(dtype: Any, kept: Any, last: bool) -> None:
    if dtype is torch.float32 is not kept or kept not in (dtype, torch.float32):
        pytest.skip("eager raises for these dtypes")
    x = torch.randn(6, 5, 4, 7).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    vectors = [torch.rand(5).to(kept) + 0.5 for _ in range(4)]
    wide = [value.double() for value in (x, *vectors)]
    result, mean, var = interpreted(batch_norm, [x, *vectors])
    want = batch_norm(*wide)
    assert result.dtype is dtype and result.stride() == x.stride()
    assert mean.dtype is var.dtype is kept
    rounding = CLOSE[dtype]
    torch.testing.assert_close(result.double(), want, rtol=rounding, atol=rounding)
    for found, given in ((mean, wide[3]), (var, wide[4])):  # one rounding
        torch.testing.assert_close(found.double(), given, rtol=CLOSE[kept] / 4, atol=1e-5)


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor
) -> Any:
    return aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, scale, True, 1e-3, [True, True, True]
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_backward_adds_up_in_float32(dtype: Any) -> None:
    x, grad = torch.randn(6, 5, 40, 7).to(dtype), torch.randn(6, 5, 40, 7).to(dtype)
    weight = torch.rand(5).to(dtype)
    mean = x.float().mean((0, 2, 3))
    scale = (x.float().var((0, 2, 3), correction=0) + 1e-3).rsqrt()
    values = [grad, x, weight, mean, scale]
    found = interpreted(batch_norm_backward, values)
    want = batch_norm_backward(*(value.double() for value in values))
    for mine, exact in zip(found, want, strict=True):
        assert mine.dtype is dtype
        size = exact.abs().max().item() * CLOSE[dtype] / 4
        torch.testing.assert_close(mine.double(), exact, rtol=CLOSE[dtype], atol=size)


def stored(made: Lowered) -> list[Any]:
    """The layouts of what kernels write, large ones only."""
    steps = schedule_graph(made.graph, 8).steps
    written = {name for step in steps for name in step.writes()}  # type: ignore[union-attr]
    return [made.graph.layouts()[name] for name in written
            if made.graph.layouts()[name].numel() > 100]  # fmt: skip


def test_batch_norm_stores_nothing_wide() -> None:
    """Sums, and kernels after them, read half precision and compute the rest again."""
    x, grad = torch.randn(6, 5, 40, 7).bfloat16(), torch.randn(6, 5, 40, 7).bfloat16()
    vectors = [torch.rand(5).bfloat16() + 0.5 for _ in range(4)]
    (only,) = stored(lowered(batch_norm, [x, *vectors]))
    assert only.dtype is torch.bfloat16

    def through_relu(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> Any:
        return batch_norm_backward(
            aten.threshold_backward(grad, x, 0), x, weight, mean, scale)

    values = [grad, x, vectors[0], torch.rand(5), torch.rand(5)]
    (only,) = stored(lowered(through_relu, values))
    assert only.dtype is torch.bfloat16
    for mine, exact in zip(
        interpreted(through_relu, values), through_relu(*(v.double() for v in values)), strict=True
    ):
        size = exact.abs().max().item() * CLOSE[torch.bfloat16] / 4
        torch.testing.assert_close(mine.double(), exact, rtol=3e-2, atol=size)


def test_what_a_product_needs_is_stored_for_all() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        z = torch.tanh(x + y)
        return (z @ z) + z.float().sum(0) + torch.sin(z)

    values = [torch.randn(12, 12).bfloat16(), torch.randn(12, 12).bfloat16()]
    made = lowered(program, values)
    first = next(node for node in made.graph.nodes if isinstance(node, ComputedBuffer))
    later = [node for node in made.graph.nodes if first.name in node.reads()]
    assert len(later) >= 3 and not any({"arg0", "arg1"} & set(n.reads()) for n in later)


@pytest.mark.parametrize("users", [2, 3, 4])
def test_a_widened_value_that_must_be_stored_stays_half(users: int) -> None:
    def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        wide = (a * b * c * d).float()
        return tuple(wide.sum(axis) for axis in ([0], [1], [0, 1], [1, 0]))[:users]

    values = [torch.randn(16, 24).half() for _ in range(4)]
    layouts = [layout.dtype for layout in stored(lowered(program, values))]
    assert torch.float32 not in layouts
    for mine, exact in zip(
        interpreted(program, values), program(*(v.double() for v in values)), strict=True
    ):
        torch.testing.assert_close(mine.double(), exact.double(), rtol=4e-3, atol=4e-2)


def test_sums_over_rows_fill_the_device() -> None:
    """Also where what they need is computed in the same kernel."""
    def program(grad: Tensor, x: Tensor, sums: Tensor, squares: Tensor, weight: Tensor) -> Any:
        mean = sums / 1000
        scale = torch.rsqrt(squares / 1000 - mean * mean + 1e-3)
        return batch_norm_backward(grad, x, weight, mean, scale)

    wide = torch.empty(32, 256, 56, 56, dtype=torch.bfloat16, device="meta")
    wide = wide.to(memory_format=torch.channels_last)
    vector = torch.empty(256, device="meta")
    made = lowered(program, [wide, wide, vector, vector, vector.bfloat16()])
    kernels = schedule_graph(made.graph, 8).kernels()
    launches = [launch for kernel in kernels for launch in plan_kernel(kernel).launches]
    long = [each for each in launches if any(s.columns > 5000 for s in each.stages)]
    assert len(long) == 1 and long[0].rows * long[0].splits > 10000


def test_statistics_of_few_channels_are_cut_where_the_kernel_goes_on() -> None:
    """Half precision of films, whose channels lie last, and what is computed from their statistics."""
    x = torch.empty(2, 64, 64, 64, 32, dtype=torch.float16, device="meta").movedim(-1, 1)
    vector = torch.empty(32, dtype=torch.float16, device="meta")

    def program(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        flat = aten.view(aten.clone(x, memory_format=torch.contiguous_format), [1, 64, 64, 64, 64])
        norm = aten.native_batch_norm(flat, aten.repeat(weight, [2]), aten.repeat(bias, [2]), None, None, True, 0.0, 1e-5)
        return norm[0] * 2

    kernels = schedule_graph(lowered(program, [x, vector, vector]).graph, 8).kernels()
    launches = [launch for kernel in kernels for launch in plan_kernel(kernel).launches]
    long = [each for each in launches if any(s.columns > 5000 and s.reduction for s in each.stages)]
    assert long and all(each.rows * each.splits > 5000 for each in long)


POOLS = [(3, 2, 1, False), (2, 2, 0, False), (3, 1, 1, False), (3, 2, 0, True), (5, 2, 2, False)]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_max_pool_backward_gathers(dtype: Any, pool: Any, last: bool) -> None:
    kernel, stride, padding, ceil = pool
    x = torch.randn(2, 3, 11, 14).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    form = ([kernel, kernel], [stride, stride], [padding, padding], [1, 1], ceil)
    y, at = aten.max_pool2d_with_indices(x, *form)
    grad = torch.randn_like(y)

    def program(grad: Tensor, x: Tensor, at: Tensor) -> Tensor:
        return aten.max_pool2d_with_indices_backward(grad, x, *form, at)

    (found,) = interpreted(program, [grad, x, at])
    assert found.stride() == program(grad, x, at).stride() and found.dtype is dtype
    exact = program(grad.double(), x.double(), at)
    torch.testing.assert_close(found.double(), exact, rtol=CLOSE[dtype], atol=CLOSE[dtype])


FILM_POOLS = [(3, 2, 1, 1, False), (2, 2, 0, 1, False), ((1, 3, 2), (1, 2, 2), 0, 1, True), (2, 2, 0, 2, False), (3, 3, (0, 1, 1), 1, True)]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("pool", FILM_POOLS, ids=str)
@pytest.mark.every_combination
def test_max_pools_of_films(pool: Any, last: bool) -> None:
    """On a GPU the greatest of equal elements is that of a row-major film."""
    kernel, stride, padding, gap, ceil = pool
    rows = torch.randn(2, 3, 7, 9, 8).round()
    rows[0, 1], rows[1, 0, :3], rows[0, 0, 2, 3, 4] = -torch.inf, torch.nan, torch.nan
    x = rows.contiguous(memory_format=torch.channels_last_3d) if last else rows

    def program(x: Tensor) -> Any:
        return aten.max_pool3d_with_indices(x, kernel, stride, padding, gap, ceil)

    found, wanted = interpreted(program, [x]), program(rows)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    if gap != 1:
        return
    grad = torch.randn_like(wanted[0])

    def backward(grad: Tensor, x: Tensor, at: Tensor) -> Tensor:
        return aten.max_pool3d_with_indices_backward(grad, x, kernel, stride, padding, gap, ceil, at)

    (ours,) = interpreted(backward, [grad, x, wanted[1]])
    torch.testing.assert_close(ours, backward(grad, rows, wanted[1]), rtol=1e-5, atol=1e-5)


AVERAGES = [
    (2, 2, 0, False, True, None), (3, 1, 1, False, True, None), (3, 2, 1, False, True, 7), ((2, 3), (1, 2), 0, False, False, None),
    (2, 3, 0, False, True, None), (5, 2, 2, False, True, None), ((1, 2), 1, 0, True, False, None),
    (3, 1, 1, False, False, None), ((3, 5), 2, (1, 2), False, False, None), (3, 2, 1, True, False, None),
    (4, 3, 2, True, True, None), (2, 2, 0, True, True, None), (3, 2, 1, True, False, 4),
    ((1, 9), 1, 0, False, True, None), ((9, 3), 1, (4, 1), False, True, None), (5, 1, 2, False, False, 25),
]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("pool", AVERAGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_average_pool_and_its_gradient(dtype: Any, pool: Any, last: bool) -> None:
    kernel, stride, padding, ceil, include, divisor = pool
    form = (*(each if isinstance(each, tuple) else (each, each) for each in (kernel, stride, padding)), ceil, include, divisor)
    x = torch.randn(2, 3, 11, 14).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    (pooled,) = interpreted(lambda x: aten.avg_pool2d(x, *form), [x])
    torch.testing.assert_close(pooled, aten.avg_pool2d(x, *form), rtol=CLOSE[dtype], atol=CLOSE[dtype])
    grad = torch.randn_like(pooled)

    def program(grad: Tensor, x: Tensor) -> Tensor:
        return aten.avg_pool2d_backward(grad, x, *form)

    for one, given in ((lambda x: aten.avg_pool2d(x, *form), [x]), (program, [grad, x])):
        assert not any(isinstance(node, ExternKernel) for node in lowered(one, given).graph.nodes)
    (found,) = interpreted(program, [grad, x])
    assert found.stride() == program(grad, x).stride() and found.dtype is dtype
    exact = program(grad.double(), x.double())
    torch.testing.assert_close(found.double(), exact, rtol=CLOSE[dtype], atol=CLOSE[dtype])


FOLDS = [  # kernel, padding, stride
    ((2, 2), (0, 0), (2, 2)), ((3, 3), (1, 1), (1, 1)), ((3, 3), (1, 1), (2, 2)), ((2, 5), (1, 2), (3, 2)), ((3, 2), (0, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("form", FOLDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_windows_apart_and_put_together(dtype: Any, form: Any, batched: bool) -> None:
    kernel, padding, stride = form
    x = torch.randn(2, 3, 9, 12).to(dtype)
    for gap in ((1, 1), (2, 1)):
        def apart(x: Tensor) -> Tensor:
            return aten.im2col(x, kernel, gap, padding, stride)  # noqa: B023

        given = x if batched else x[0]
        assert not any(isinstance(node, ExternKernel) for node in lowered(apart, [given]).graph.nodes)
        (found,) = interpreted(apart, [given])
        assert torch.equal(found, apart(given)) and found.stride() == apart(given).stride()
    columns = torch.randn_like(aten.im2col(given, kernel, (1, 1), padding, stride))

    def program(columns: Tensor) -> Tensor:
        return aten.col2im(columns, (9, 12), kernel, (1, 1), padding, stride)

    assert not any(isinstance(node, ExternKernel) for node in lowered(program, [columns]).graph.nodes)
    (found,) = interpreted(program, [columns])
    assert found.dtype is dtype and found.stride() == program(columns).stride()
    torch.testing.assert_close(found.double(), program(columns.double()), rtol=CLOSE[dtype], atol=CLOSE[dtype])


FILMS = [((1, 2, 2), (1, 2, 2), 0, False, True, None), (3, 2, 1, True, False, None), (2, 1, 1, False, True, 5), (3, 2, 1, False, True, None), ((2, 1, 3), 2, 0, False, False, None)]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("pool", FILMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_average_pool_of_films(dtype: Any, pool: Any, last: bool) -> None:
    """Forward and backward, as the encoders of video models have it."""
    kernel, stride, padding, ceil, include, divisor = pool
    form = (*(each if isinstance(each, tuple) else (each,) * 3 for each in (kernel, stride, padding)), ceil, include, divisor)
    x = torch.randn(2, 3, 5, 8, 7).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last_3d)
    exact = aten.avg_pool3d(x.double(), *form)
    grad = torch.randn_like(exact).to(dtype)

    def forward(x: Tensor) -> Tensor:
        return aten.avg_pool3d(x, *form)

    def backward(grad: Tensor, x: Tensor) -> Tensor:
        return aten.avg_pool3d_backward(grad, x, *form)

    close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
    (found,) = interpreted(forward, [x])
    torch.testing.assert_close(found.double(), exact, **close)
    (found,) = interpreted(backward, [grad, x])
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), backward(grad.double(), x.double()), **close)


def layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor
) -> Any:
    return aten.native_layer_norm_backward(
        grad * 2, x, [16], mean, scale, weight, bias, [True, True, True]
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_layer_norm_backward_stores_nothing_wide(dtype: Any) -> None:
    x, grad = torch.randn(9, 40, 16).to(dtype), torch.randn(9, 40, 16).to(dtype)
    mean = x.float().mean(-1, keepdim=True)
    scale = (x.float().var(-1, correction=0, keepdim=True) + 1e-3).rsqrt()
    values = [grad, x, mean, scale, torch.rand(16).to(dtype), torch.rand(16).to(dtype)]
    found = interpreted(layer_norm_backward, values)
    want = layer_norm_backward(*(value.double() for value in values))
    for mine, exact in zip(found, want, strict=True):
        assert mine.dtype is dtype
        size = exact.abs().max().item() * CLOSE[dtype] / 4
        torch.testing.assert_close(mine.double(), exact, rtol=CLOSE[dtype], atol=size)
    made = lowered(layer_norm_backward, values).graph
    steps = schedule_graph(made, 8).steps
    written = {name for step in steps for name in step.writes()}  # type: ignore[union-attr]
    layouts = [made.layouts()[name] for name in written]
    wide = [each for each in layouts if each.numel() > 16 and each.dtype is torch.float32]
    assert len(steps) == 2 and not wide


@pytest.mark.parametrize("padding", [-1, 1])
@pytest.mark.parametrize("rows", [2, 4, 9])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_embedding_backward(dtype: Any, rows: int, padding: int) -> None:
    grad, index = torch.randn(3, 50, 8).to(dtype), torch.randint(0, rows, (3, 50))

    def program(grad: Tensor, index: Tensor) -> Tensor:
        return aten.embedding_dense_backward(grad * 2, index, rows, padding, False)

    (found,) = interpreted(program, [grad, index])
    exact = program(grad.double(), index)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), exact, rtol=CLOSE[dtype] / 4, atol=1e-5)


def cross_entropy_backward(logits: Tensor, goals: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    known = aten._log_softmax(logits, 1, False)
    loss, total = aten.nll_loss_forward(known, goals, None, 1, -100)
    back = aten.nll_loss_backward(grad, known, goals, None, 1, -100, total)
    return loss, aten._log_softmax_backward_data(back, known, 1, logits.dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_cross_entropy_are_summed_without_a_loop(dtype: Any) -> None:
    logits, goals = torch.randn(40, 11).to(dtype), torch.randint(0, 11, (40,))
    goals[3] = -100
    values = [logits, goals, torch.ones(()).to(dtype)]
    found = interpreted(cross_entropy_backward, values)
    exact = cross_entropy_backward(logits.double(), goals, torch.ones((), dtype=torch.float64))
    for mine, want in zip(found, exact, strict=True):
        assert mine.dtype is dtype
        torch.testing.assert_close(mine.double(), want, rtol=CLOSE[dtype], atol=CLOSE[dtype] / 20)
    nodes = lowered(cross_entropy_backward, values).graph.nodes
    summed = [n for n in nodes if isinstance(n, ComputedBuffer) and n.kind == "reduction"]
    assert len(summed) == 4  # maximum, sum of exp, loss, weights


def test_embedding_backward_in_a_fixed_order_is_the_operator() -> None:
    def program(grad: Tensor, index: Tensor) -> Tensor:
        return aten.embedding_dense_backward(grad, index, 9, -1, False)

    torch.use_deterministic_algorithms(True)
    try:
        made = lowered(program, [torch.randn(5, 8), torch.randint(0, 9, (5,))])
    finally:
        torch.use_deterministic_algorithms(False)
    assert [name for name, _ in made.fallbacks] == ["aten.embedding_dense_backward.default"]


ADDITIONS: list[Callable[..., Tensor]] = [
    lambda x, at, v: aten.index_put(x, [at], v, True),
    lambda x, at, v: aten._unsafe_index_put(x.sin(), [at], v, True),
    lambda x, at, v: x.index_add(0, at, v),
    lambda x, at, v: x.flatten().scatter_add(0, at, v.select(1, 0)),
    lambda x, at, v: x.sin().index_put_((at,), v, accumulate=True).cos(),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("program", ADDITIONS, ids=range(len(ADDITIONS)))
def test_additions_in_half_precision_are_rounded_once(program: Any, dtype: Any) -> None:
    x, at, values = torch.randn(9, 8), torch.randint(0, 9, (300,)), torch.randn(300, 8)
    x, values = x.to(dtype), values.to(dtype)
    (found,) = interpreted(program, [x, at, values])
    exact = program(x.double(), at, values.double())
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), exact, rtol=CLOSE[dtype] / 4, atol=CLOSE[dtype])


def test_a_large_table_is_not_converted() -> None:
    values = [torch.randn(9000, 8).half(), torch.tensor([3]), torch.randn(1, 8).half()]
    made = lowered(ADDITIONS[0], values)
    assert [name for name, _ in made.fallbacks] == ["aten.index_put.default"]


def test_what_is_costly_and_goes_into_a_small_part_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads would compute it for the rest, too."""
    monkeypatch.setattr(builder, "LONG", 1 << 10)

    def program(x: Tensor, y: Tensor) -> Tensor:
        whole = x.select_scatter(torch.exp(y / (1 + y.abs())), 1, 2)
        return whole.slice_scatter(torch.tanh(y / (2 + y.abs())).unsqueeze(1), 1, 4, 5) * 2

    x, y = torch.randn(6, 40, 50), torch.randn(6, 50)
    for whole, count in ((x, 3), (x[:, :6].contiguous(), 1)):
        assert len(lowered(program, [whole, y]).graph.nodes) == count
        torch.testing.assert_close(interpreted(program, [whole, y])[0], program(whole, y))


ADDED: list[Any] = [
    lambda x, at, y: x.new_zeros(x.shape).scatter_add(1, at, y) * 3 + x,
    lambda x, at, y: x.new_zeros(x.shape).index_add(0, at.select(0, 0).narrow(0, 0, 4), y.narrow(0, 0, 4)) * 3 + x,
    lambda x, at, y: (x * 2).index_put([at.select(0, 0).narrow(0, 0, 4)], y.narrow(0, 0, 4), accumulate=True) * 3 + x,
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("program", ADDED, ids=range(len(ADDED)))
def test_half_precision_that_is_added_up_in_float32_is_not_there_before(program: Any, dtype: Any) -> None:
    """A tensor of float32, sums in it, and what reads them: no copies from and to half precision."""
    many = torch.zeros(6, 1 << 20, dtype=dtype)
    shapes = [many, torch.zeros(6, 1 << 20, dtype=torch.int64), many]
    nodes = lowered(program, shapes, in_place=True).graph.nodes
    assert [node.layout.dtype for node in nodes if isinstance(node, ComputedBuffer)] == [torch.float32, torch.float32, dtype]
    x, y, at = torch.randn(6, 8).to(dtype), torch.randn(6, 8).to(dtype), torch.randint(0, 6, (6, 8))
    (found,) = interpret.interpret_graph(lowered(program, [x, at, y], in_place=True).graph, [x, at, y])
    torch.testing.assert_close(found.double(), program(x.double(), at, y.double()), rtol=CLOSE[dtype], atol=CLOSE[dtype])


def test_few_additions_to_much_half_precision_are_in_place() -> None:
    def program(x: Tensor, at: Tensor, y: Tensor) -> Tensor:
        return (x * 2).index_add(0, at, y) * 3

    values = [torch.zeros(200, 1 << 17).bfloat16(), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1 << 17).bfloat16()]
    assert [str(target) for target, _ in lowered(program, values, in_place=True).fallbacks] == ["aten.index_add_.default"]
