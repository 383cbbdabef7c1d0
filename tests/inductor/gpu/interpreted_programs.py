"""Whole programs through lowering, scheduler, Triton printer and Python wrapper, in the interpreter."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from interpreter_repairs import repair

import dynamo
from dynamo.aot.api import compile_inference, compile_training
from dynamo.aot.boxed import picking_arguments
from inductor.codegen.triton import configs, online, plan, split, tiling
from inductor.codegen.triton.launch import NotPrintable
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.driver import cuda
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.parts import read_parts
from inductor.fx_passes.pipeline import decompositions
from inductor.fx_passes.stored_numbers import name_stored_numbers
from inductor.lowering import reductions
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.run import lower_graph
from inductor.scheduler.peak import with_less_held
from inductor.scheduler.run import schedule_graph


def compile_aten(module, fakes):
    module = write_in_place(read_parts(name_stored_numbers(module)), LOWERINGS.__contains__)
    graph = lower_graph(module).graph
    there = dataclasses.replace(graph, device=torch.device("cuda"))
    text = cuda.generate(graph, with_less_held(there, schedule_graph(there, 8))).text
    texts.append(text)
    call = cuda.load(text, graph, False)()
    return picking_arguments(call, [n for n, buffer in enumerate(graph.inputs) if buffer is not None])


def trained(gm, example_inputs):
    """A backend for programs whose results are differentiated."""
    return compile_training(
        gm, example_inputs, compile_aten, compile_aten, decompositions=decompositions()
    )


def interpreted(gm, example_inputs):
    """A backend: the GPU path on CPU tensors."""
    return compile_inference(
        gm, example_inputs, compile_aten, decompositions=decompositions(), epilogue_in_graph=True
    )


texts: list[str] = []


def chain(x, y):
    return torch.sigmoid(x * y + 1.5) - y.abs(), (x > y).sum(-1)


def softmax(x, y):
    return F.softmax(x, -1) * 2, F.log_softmax(y, 0)


def layer_norm(x, y):
    return F.layer_norm(x + y, (x.shape[-1],), eps=1e-5), F.gelu(x)


def products(x, y):
    return F.relu(x @ y.t()) + 1, torch.bmm(x[None], y.t()[None]).sum(1)


def views(x, y):
    z = torch.cat([x.t(), y.t() * 2], 1).reshape(-1)[1:-1]
    return z.flip(0), x[:, ::2] + y[:, 1::2], x.unsqueeze(0).expand(3, -1, -1).contiguous()


def statistics(x, y):
    return x.mean(0), y.std(1), x.var(), x.amax(0), y.argmin(1), (x * y).prod(), torch.logsumexp(x, 1)


def several_results(x, y):
    values, places = torch.topk(x, 3)
    ordered, _ = torch.sort(y, 1)
    return values * 2, places + 1, ordered + 1


def lookup(x, y):
    rows = torch.tensor([0, 3, 1, -1])
    return x[rows] + 1, x.index_select(1, rows.clamp(0)), F.embedding(rows.clamp(0), y).cos()


def scatter(x, y):
    rows = torch.tensor([1, 1, 0, 2, 4, 1])
    return torch.zeros(5, x.shape[1]).index_add(0, rows, x[:6]), x.index_put((rows,), y[:6], accumulate=True)


def halves(x, y):
    a, b = x.half(), y.bfloat16()
    return F.softmax(a, -1), (b * 2).sum(-1), a.float() + b.double()


def integers(x, y):
    a, b = (x * 10).int(), (y * 10).long()
    return a // 3, b % 4, a.bitwise_and(7) << 2, (b * a).sum(), (a > b).any(1), torch.where(a > 0, a, b)


def rare_operators(x, y):
    a, b = x.round(), (y.abs() * 9).to(torch.uint8)
    whole = torch.arange(3.0, 3.0 + x.shape[1], dtype=torch.float32) * torch.arange(x.shape[0], 0, -1.0)[:, None]
    return (torch.sgn(a), torch.xlogy(a.abs(), y.abs()), torch.xlogy(a.half(), y.half().abs()), whole * x,
            x.t() @ x + torch.eye(x.shape[1]), ((b << 5).view(torch.int8) >> 5) + 1, torch.logit(y.sigmoid(), 0.3))


def changes_input(x, y):
    x.add_(y).mul_(2)
    return x + 1


def changes_rows(x, y):
    rows = torch.tensor([4, 1])
    x[2] = y[0] * 2
    x[rows] = x[rows.flip(0)] + y[:2]
    x[:, 3:6].index_copy_(1, rows % 3, y[:, :2])
    y.scatter_(0, (rows[:, None] + torch.arange(12)) % 8, x[:2].sin())
    y[y > 1] = 0.5
    y.scatter_reduce_(0, rows[None], x[5:6], "amax")
    return x[1:3] + 1, y.half().index_put_((rows,), x[:2].half())


def chains_of_writes(x, y):
    rows = torch.tensor([4, 1, 4])
    out, state = torch.zeros(8, 12), y[0] * 0
    for k in range(8):
        state = state * 0.5 + x[k]
        out[k] = state
        out[k, 1:3] += out[k - 1, :2]
    out.index_add_(0, rows, y[:3])
    old = out.t().sin()
    return out.index_copy(0, rows[:2], x[:2]).index_add(0, rows, y[3:6]), old, out


def pools(x, y):
    image = torch.stack([x, y])[None]
    image = F.pad(image, (1, 2, 3, 0), value=2.0)
    return F.max_pool2d(image, 2), F.avg_pool2d(image, 3), F.interpolate(image, scale_factor=2.0)


def windows(x, y):
    """Elements that lie in several windows, and windows that reach over the border."""
    image = torch.stack([x, y])[None]
    apart = F.unfold(image, (3, 2), padding=1, stride=2)
    joined = F.fold(apart * 2, (8, 12), (3, 2), padding=1, stride=2)
    over = F.avg_pool2d(image, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    return F.avg_pool2d(image, 3, 1, 1, count_include_pad=False) - image, over, apart, joined


def convolution(x, y):
    image = torch.stack([x, y])[None]
    weight = torch.ones(4, 2, 3, 3) * 0.1
    return F.batch_norm(F.conv2d(image, weight), torch.zeros(4), torch.ones(4)).relu()


def signs_and_bytes(x, y):
    small = (x * 10).abs().to(torch.uint8)
    return x / -0.0, 1 / torch.where(x > 9, x, -0.0), small * -1, small.add(-3), small > -1, x.half() / -0.0


PROGRAMS = [chain, signs_and_bytes, softmax, layer_norm, products, views, statistics, several_results, lookup, scatter,
            halves, integers, rare_operators, changes_input, changes_rows, chains_of_writes, pools, windows, convolution]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_program(program, monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    for _ in range(2):
        inputs = [torch.randn(8, 12), torch.randn(8, 12)]
        copies = [tensor.clone() for tensor in inputs]
        expected, found = program(*copies), dynamo.compile(program, backend=interpreted)(*inputs)
        torch.testing.assert_close(inputs, copies)
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True)
        for one, other in pairs:
            close = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(other.dtype, 2e-5)
            torch.testing.assert_close(one, other, rtol=close, atol=2e-5, msg=texts[-1])
            assert one.stride() == other.stride()
    assert texts


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_refused_kernels_run_as_aten(program, monkeypatch) -> None:
    """Every second kernel that Triton's printer refuses is interpreted, the others are not."""
    count = itertools.count()

    def print_some(kernel, layouts):
        if next(count) % 2 == 0:
            raise NotPrintable("a test")
        return print_kernel(kernel, layouts)

    monkeypatch.setattr(cuda, "print_kernel", print_some)
    test_program(program, monkeypatch)
    assert any("slow0(" in text for text in texts)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_rows_are_read_once_for_maximum_and_sum(dtype, several, monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    if several:  # tiles at a time
        monkeypatch.setattr(online, "LONG_ROW", 64)
        monkeypatch.setattr(configs, "LOOP_BLOCKS", ((1, 16, 1),))
    monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 64)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 64)
    texts.clear()
    inf, nan = float("inf"), float("nan")
    x = (torch.randn(6, 300) * 20).to(dtype)
    for row, (place, value) in enumerate([(299, inf), (17, nan), (slice(0, None, 2), -inf), (slice(None), -inf)]):
        x[row, place] = value
    for program in (F.log_softmax, F.softmax):
        found = dynamo.compile(lambda x, program=program: program(x, -1), backend=interpreted)(x)
        torch.testing.assert_close(found, program(x, -1), equal_nan=True)
        assert ("k_sum_of_four_exp(" if several else "k_sum_of_exp(") in texts[-1]


@pytest.mark.parametrize(("size", "axis", "online_"), [((150, 96), 0, True), ((2, 21, 40), 1, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_of_columns_writes_no_exponentials(size, axis, online_, dtype, monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    asked = reductions.is_column_on_gpu
    gpu = torch.device("cuda")
    monkeypatch.setattr(reductions, "is_column_on_gpu",
                        lambda layout, axis: asked(dataclasses.replace(layout, device=gpu), axis))
    monkeypatch.setattr(plan, "ENOUGH_ROWS", 4)
    texts.clear()
    inf, nan = float("inf"), float("nan")
    x = (torch.randn(size) * 20).to(dtype)
    columns = x.movedim(axis, -1).flatten(0, -2) if axis else x.t()
    for column, (place, value) in enumerate([(19, inf), (17, nan), (slice(0, None, 2), -inf), (slice(None), -inf)]):
        columns[column, place] = value
    if axis:
        x = columns.unflatten(0, (size[0], -1)).movedim(-1, axis).contiguous()
    for program in (F.log_softmax, F.softmax):
        found = dynamo.compile(lambda x, program=program: program(x, axis), backend=interpreted)(x)
        torch.testing.assert_close(found, program(x, axis), equal_nan=True)
        assert ("k_sum_of_exp(" in texts[-1].partition("def ")[2]) == online_
        assert len(re.findall("launch[0-9]+ = ", texts[-1])) == 2, texts[-1]


def test_what_else_is_done_with_the_maximum_keeps_two_loops(monkeypatch) -> None:
    repair(monkeypatch)
    monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 64)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 64)
    texts.clear()

    def program(x, y):
        shifted = x - x.amax(-1, keepdim=True)
        return shifted.exp().sum(-1) + shifted.abs().sum(-1), (y - x.amax(-1, keepdim=True)).exp().sum(-1)

    x, y = torch.randn(6, 300), torch.randn(6, 300)
    found = dynamo.compile(program, backend=interpreted)(x, y)
    torch.testing.assert_close(found, program(x, y))
    assert "k_sum_of_exp(" not in texts[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_of_rows_that_are_results_take_one_loop(dtype, monkeypatch) -> None:
    """What later stages read of them stays in registers, and no row is kept in memory."""
    repair(monkeypatch)
    monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 64)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 64)
    monkeypatch.setattr(plan, "ENOUGH_ROWS", 4)
    texts.clear()

    def program(x):
        x = x.float()
        top = x.amax(-1, keepdim=True)
        return top, (x - top).exp().sum(-1, keepdim=True)

    x = (torch.randn(6, 300) * 20).to(dtype)
    found = dynamo.compile(program, backend=interpreted)(x)
    torch.testing.assert_close(found, program(x))
    assert "k_sum_of_exp(" in texts[-1] and texts[-1].count("(stream, ") == 1


def test_losses_over_classes_keep_no_row(monkeypatch) -> None:
    repair(monkeypatch)
    monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 64)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 64)
    texts.clear()
    x, w, y = torch.randn(200, 8), torch.randn(8, 300), torch.randint(300, (200,))

    def loss(x, w, y):
        return F.cross_entropy(x @ w, y)

    grads = []
    for function in (loss, dynamo.compile(loss, backend=trained)):
        given = x.clone().requires_grad_(), w.clone().requires_grad_()
        function(*given, y).backward()
        grads.append([one.grad for one in given])
    torch.testing.assert_close(grads[1], grads[0])
    assert len(texts) == 2 and not any("(60000,), (1,), torch.float32" in text for text in texts)
    assert "k_sum_of_exp(" in texts[0] and "Allocation((200, 300)" not in texts[0]
    assert "del " in texts[1] and "args.clear()" in texts[1]


def test_batch_statistics(monkeypatch) -> None:
    """Few rows of many columns: several launches, what comes once for each row among them."""
    repair(monkeypatch)
    texts.clear()
    mine = torch.nn.BatchNorm1d(12, momentum=0.3)
    other = copy.deepcopy(mine)
    compiled = dynamo.compile(lambda x: mine(x).relu(), backend=interpreted)
    for _ in range(2):
        x = torch.randn(8, 12, 1100)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), other(x).relu())
        torch.testing.assert_close(mine.state_dict(), other.state_dict())
    assert texts[-1].count("(stream, ") == 5  # two reductions in two launches, the result with the count


@pytest.mark.parametrize("size", [(2, 24, 16, 12), (1, 12, 7, 11), (3, 12, 1, 2)], ids=str)
def test_groups_of_channels_that_come_last(size, monkeypatch) -> None:
    """Statistics from pieces of images, exact where the mean is far larger than the deviation."""
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    last = torch.channels_last
    monkeypatch.setattr(
        reductions, "_has_channels_last", lambda call, x: x.layout.stride[1] == 1)
    weight, bias = torch.randn(size[1]), torch.randn(size[1])

    def program(x):
        return F.silu(F.group_norm(x + 300, 6, weight, bias, 1e-6))

    x = torch.randn(size).to(memory_format=last)
    expected = F.silu(F.group_norm(
        (x + 300).double().contiguous(), 6, weight.double(), bias.double(), 1e-6))
    found = dynamo.compile(program, backend=interpreted)(x)
    torch.testing.assert_close(found, expected.float(), rtol=2e-4, atol=2e-4)
    assert found.is_contiguous(memory_format=last) and "group_norm'" not in texts[-1]


@pytest.mark.parametrize("cut", [False, True])
def test_sums_over_rows_share_a_pass(cut, monkeypatch) -> None:
    """Sums, what follows for each result, and a scale that is computed before them."""
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    if cut:
        monkeypatch.setattr(split, "FEWEST_COLUMNS", (40, 40))
        monkeypatch.setattr(split, "COLUMNS_OF_A_PROGRAM", (16, 16))
        monkeypatch.setattr(split, "CHUNK_STEP", (16, 16))

    def program(x, y, mean):
        total, dot = (x * 2).sum(0), (x * (y - mean)).sum(0)
        return total.half(), dot.exp(), dot * 3, (y.sum(0) + 1).bfloat16(), x.amax(0)

    inputs = [torch.randn(200, 24), torch.randn(200, 24), torch.randn(200, 1)]
    found = dynamo.compile(program, backend=interpreted)(*inputs)
    for one, other in zip(found, program(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if one.dtype is torch.bfloat16 else 2e-3, atol=1e-4)
    assert texts[-1].count("@triton.jit") == (2 if cut else 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_results_are_near_the_exact_ones(dtype, monkeypatch) -> None:
    """Cheaper functions are at most one number of the dtype away."""
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    gelu_backward = torch.ops.aten.gelu_backward.default
    program = lambda x, y: (  # noqa: E731
        F.gelu(x), gelu_backward(y, x * 0.5), F.silu(x), x.sigmoid(), (x / y).exp(), F.softmax(x, -1))
    x = torch.cat([torch.linspace(-6, 6, 4000), torch.tensor([0.0, -0.0, 12.0, -12.0, 300.0, -300.0])])
    x, y = x.to(dtype), torch.rand(4006).to(dtype) + 1
    found = dynamo.compile(program, backend=interpreted)(x, y)
    assert "k_normal_cdf(" in texts[-1] and "libdevice.e" not in texts[-1]
    for one, exact in zip(found, program(x.double(), y.double()), strict=True):
        near = exact.to(dtype)
        away = (one.view(torch.int16).int() - near.view(torch.int16).int()).abs()
        least = max(torch.finfo(dtype).smallest_normal, 1e-9)  # float32 has no tails either
        apart = (one.double() - exact).abs() > least * 2
        assert (away[apart] <= 1).all()
    assert F.gelu(torch.tensor([float("inf")], dtype=dtype)).isinf().all()


def test_what_is_compared_or_kept_is_computed_as_eager_does(monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    program = lambda x: ((x.float().exp() > 2).half(), x.float().sigmoid(), x.float().exp().argmax(-1))  # noqa: E731
    x = torch.randn(6, 50).half()
    for one, other in zip(dynamo.compile(program, backend=interpreted)(x), program(x), strict=True):
        torch.testing.assert_close(one, other)
    assert "exp2" not in texts[-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("rows, columns", [(16, 24), (49, 16), (8, 40), (20, 32)])
def test_rows_with_values_of_columns_in_common(rows, columns, dtype, monkeypatch) -> None:
    """Tiles of whole rows; what a stretch of rows has in common is read once for a tile, unless
    tiles would reach into the next stretch."""
    repair(monkeypatch)
    monkeypatch.setattr(tiling, "FEWEST_ELEMENTS", 1)

    def gated(x, scale, gate, row):
        return (torch.nn.functional.silu(x.float() * scale) * gate.sigmoid() + row).to(dtype)

    x = torch.randn(3, rows, columns).to(dtype)
    given = x, torch.randn(columns), torch.randn(3, 1, columns), torch.randn(3, rows, 1)
    texts.clear()
    with torch.no_grad():
        found = dynamo.compile(gated, backend=interpreted)(*given)
    tolerance = 2e-3 if dtype is torch.float16 else 1e-6
    torch.testing.assert_close(found, gated(*given), rtol=tolerance, atol=tolerance)
    (text,) = texts
    assert "[None, :]" in text
    alike = rows % configs.EVEN_ROWS == 0
    assert ("tl.program_id(0) * XBLOCK)) //" in text) == alike


def test_flat_tiles_where_arithmetic_is_cheap(monkeypatch) -> None:
    repair(monkeypatch)
    monkeypatch.setattr(tiling, "FEWEST_ELEMENTS", 1)
    x, scale = torch.randn(8, 32), torch.randn(32)
    texts.clear()
    with torch.no_grad():
        found = dynamo.compile(lambda x, scale: x * scale + 1, backend=interpreted)(x, scale)
    torch.testing.assert_close(found, x * scale + 1)
    assert "[None, :]" not in texts[0]


def test_gelu_of_great_numbers(monkeypatch) -> None:
    """With tanh, and its derivative: approximations for half precision, near zero and far from it."""
    repair(monkeypatch)
    x = torch.tensor([0.0, -0.0, 1e-6, -1e-4, 1e-2, 3.0, -3.0, 5.0, -5.0, 30.0, -30.0, 6e4, -6e4, 1e19, -1e19])
    x = torch.cat([x, torch.linspace(-6, 6, 499), torch.tensor([float("nan")])]).requires_grad_()

    def halved(x):
        return torch.nn.functional.gelu(x, approximate="tanh").half()

    def slope(x):
        return (1 - torch.tanh(x) * torch.tanh(x)).half(), (1 + torch.tanh(x)).bfloat16()

    texts.clear()
    for function in (halved, slope):
        with torch.no_grad():
            found, wanted = dynamo.compile(function, backend=interpreted)(x), function(x.double().float())
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-6, equal_nan=True)
    assert "k_one_plus_tanh(" in texts[0] and "k_tanh_slope(" in texts[1] and "k_one_plus_tanh(" in texts[1]


def test_softplus_of_great_numbers(monkeypatch) -> None:
    """And mish: approximations for half precision, near zero and far from it, at infinities, too."""
    repair(monkeypatch)
    far = [0.0, 1e-6, 19.9, 20.1, -20.0, 44.5, 88.0, -88.0, 6e4, -6e4, 1e19, -1e19, float("inf"), -float("inf"), float("nan")]
    x = torch.cat([torch.tensor(far), torch.linspace(-24, 24, 999)])
    functional = torch.nn.functional

    def halved(x):
        return functional.softplus(x).half(), functional.mish(x).bfloat16()

    def others(x):
        return functional.logsigmoid(x).half(), (x * torch.tanh(functional.softplus(x))).half()

    texts.clear()
    for function in (halved, others):
        with torch.no_grad():
            found, wanted = dynamo.compile(function, backend=interpreted)(x), function(x)
        torch.testing.assert_close(found[0], wanted[0], rtol=1e-3, atol=1e-7, equal_nan=True)
        torch.testing.assert_close(found[1], wanted[1], rtol=8e-3 if function is halved else 1e-3, atol=1e-7, equal_nan=True)
    assert "k_quick_softplus(" in texts[0] and "k_tanh_of_softplus(" in texts[0] and "k_tanh_of_softplus(" in texts[1]


def test_whole_numbers_within_bounds(monkeypatch) -> None:
    """Integers of what was rounded and lies within constant bounds: ties, infinities and NaN, too."""
    repair(monkeypatch)
    far = [0.0, -0.0, 126.5, 127.5, -128.5, -129.0, 1e9, -1e9, 3e38, float("inf"), -float("inf"), float("nan")]
    x = torch.cat([torch.tensor(far), torch.arange(-300, 300) * 0.5, torch.randn(500) * 100])
    z = torch.randint(-3, 3, x.shape, dtype=torch.int32)

    def narrow(x, z):
        q = (torch.round(x) + z).clamp(-8, 7)
        return x.round().clamp(-128, 127).to(torch.int8), torch.clamp(x.round() + 3, 0, 255).to(torch.uint8), q.to(torch.int32)

    def wide(x, z):
        cut = x.floor().clamp(min=-4194304.0).clamp(max=4194304.0)
        return cut.to(torch.int64), cut.to(torch.int16), x.clamp(-100, 100).to(torch.int32), x.round().clamp(-0.5, 9).to(torch.int32)

    texts.clear()
    for function in (narrow, wide):
        with torch.no_grad():
            found, wanted = dynamo.compile(function, backend=interpreted)(x, z), function(x, z)
        known = ~x.isnan()  # eager's conversions on a CPU give anything for NaN
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one[known], other[known], rtol=0, atol=0)
            assert not one[~known].any() or function is wide
    assert texts[0].count("k_rounded_within(") == 3 and texts[1].count("k_rounded_within(") == 1


def test_silu_of_great_numbers(monkeypatch) -> None:
    """The approximation for half precision, at infinities, too."""
    repair(monkeypatch)
    x = torch.tensor([0.0, -0.0, 1e-6, 3.0, -3.0, 60000.0, -60000.0, 88.0, -88.0, -1e38, 1e38])
    x = torch.cat([x, torch.tensor([float("inf"), -float("inf"), float("nan")])])

    def halved(x):
        return torch.nn.functional.silu(x).half()

    texts.clear()
    with torch.no_grad():
        found = dynamo.compile(halved, backend=interpreted)(x)
    torch.testing.assert_close(found, halved(x), rtol=1e-3, atol=1e-7, equal_nan=True)
    assert "k_quick_silu(" in texts[0]
