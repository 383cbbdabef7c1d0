"""Depthwise convolutions on a GPU: as loops, interpreted here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_gpu_training import CLOSE, interpreted, lowered

from inductor.codegen.triton.plan import plan_kernel
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.codegen.triton.unroll import unrolled
from inductor.ir import interpret
from inductor.ir.body import Op
from inductor.ir.graph import ExternKernel
from inductor.ir.index import constant, variable
from inductor.lowering import depthwise
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

aten = torch.ops.aten
Tensor = torch.Tensor
# window, stride, padding, dilation, results of each channel
FORMS = [
    ((3, 3), (1, 1), (1, 1), (1, 1), 1), ((3, 3), (2, 2), (1, 1), (1, 1), 2), ((5, 5), (1, 1), (2, 2), (1, 1), 1),
    ((5, 3), (1, 3), (0, 2), (2, 1), 1), ((7, 2), (2, 1), (3, 0), (1, 2), 3), ((1, 11), (1, 2), (0, 5), (1, 1), 1),
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers lie in memory that is here."""
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def assert_near(found: Tensor, exact: Tensor, dtype: torch.dtype, terms: int) -> None:
    assert found.dtype is dtype
    close = CLOSE[dtype]
    torch.testing.assert_close(found.double(), exact, rtol=close, atol=close * math.sqrt(terms))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_forward_and_gradients(
    dtype: Any, form: Any, last: bool, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """turned: the weight is laid out anew first, as for large images."""
    monkeypatch.setattr(depthwise, "MANY_READS", 0 if turned else 1 << 60)
    size, stride, padding, dilation, multiple = form
    x = torch.randn(2, 6, 16, 21).to(dtype)
    weight, bias = torch.randn(6 * multiple, 1, *size).to(dtype), torch.randn(6 * multiple).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    rest = (stride, padding, dilation, False, (0, 0), 6)

    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return aten.convolution(x, weight, bias, *rest)

    (found,) = interpreted(forward, [x, weight, bias])
    eager = forward(x, weight, bias)
    assert found.stride() == eager.stride()
    exact = forward(x.double(), weight.double(), bias.double())
    assert_near(found, exact, dtype, math.prod(size))
    grad = torch.randn_like(eager)

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(grad, x, weight, [6 * multiple], *rest, [True] * 3)

    results = interpreted(backward, [grad, x, weight])
    expected = backward(grad.double(), x.double(), weight.double())
    for one, other in zip(results, expected, strict=True):
        assert_near(one, other, dtype, grad[:, 0].numel())


def test_lines() -> None:
    x, weight, grad = torch.randn(3, 6, 20), torch.randn(6, 1, 4), torch.randn(3, 6, 23)
    rest = ([1], [3], [1], False, [0], 6)
    (found,) = interpreted(lambda x, w: aten.convolution(x, w, None, *rest), [x, weight])
    torch.testing.assert_close(found, aten.convolution(x, weight, None, *rest))

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(grad, x, weight, None, *rest, [True, True, False])[:2]

    for one, other in zip(interpreted(backward, [grad, x, weight]), backward(grad, x, weight), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)


# channels, sizes, window, stride, padding, dilation, output padding, results of each channel
TRANSPOSED: list[Any] = [
    (4, (20,), (12,), (2,), (0,), (1,), (0,), 1), (4, (20,), (12,), (2,), (5,), (1,), (1,), 1),
    (4, (9,), (5,), (3,), (2,), (1,), (2,), 3), (4, (9,), (4,), (2,), (1,), (3,), (1,), 2),
    (4, (9,), (4,), (1,), (1,), (2,), (0,), 1), (3, (1,), (3,), (4,), (0,), (1,), (3,), 1),
    (4, (7, 5), (3, 4), (2, 3), (1, 0), (1, 1), (1, 2), 2), (4, (7, 5), (3, 3), (2, 1), (1, 1), (2, 1), (1, 0), 1),
]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("form", TRANSPOSED, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_transposed(dtype: Any, form: Any, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """last: channels last, with the weight laid out anew."""
    channels, pixels, size, stride, padding, dilation, more, multiple = form
    monkeypatch.setattr(depthwise, "MANY_READS", 0 if last else 1 << 60)
    x = torch.randn(2, channels, *pixels).to(dtype)
    if last:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    weight, bias = torch.randn(channels, multiple, *size).to(dtype), torch.randn(channels * multiple).to(dtype)
    rest = (stride, padding, dilation, True, more, channels)

    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return aten.convolution(x, weight, bias, *rest)

    eager = forward(x, weight, bias)
    graph = lowered(forward, [x, weight, bias]).graph
    assert not any(isinstance(node, ExternKernel) for node in graph.nodes)
    (found,) = interpreted(forward, [x, weight, bias])
    assert found.stride() == eager.stride()
    assert_near(found, forward(x.double(), weight.double(), bias.double()), dtype, math.prod(size))
    grad = torch.randn_like(eager)

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(grad, x, weight, [channels * multiple], *rest, [True] * 3)

    graph = lowered(backward, [grad, x, weight]).graph
    assert not any(isinstance(node, ExternKernel) for node in graph.nodes)
    expected = backward(grad.double(), x.double(), weight.double())
    for one, other in zip(interpreted(backward, [grad, x, weight]), expected, strict=True):
        assert_near(one, other, dtype, grad[:, 0].numel())


# sizes, window, stride, padding, dilation, results of each channel
SHARED: list[Any] = [
    ((6, 8), (3, 3), (1, 1), (1, 1), (1, 1), 1), ((5, 15), (5, 5), (2, 2), (2, 2), (1, 1), 1),
    ((4, 7), (3, 3), (1, 1), (1, 1), (2, 2), 2), ((3, 9), (1, 11), (1, 1), (0, 5), (1, 1), 1),
    ((12,), (3,), (1,), (1,), (1,), 2), ((35,), (31,), (1,), (15,), (1,), 1), ((25,), (12,), (2,), (0,), (1,), 1),
]  # fmt: skip


@pytest.mark.parametrize("form", SHARED, ids=str)
@pytest.mark.parametrize("dtype, transposed", [(torch.bfloat16, False), (torch.float32, False), (torch.float32, True)])
def test_terms_of_several_pixels(dtype: Any, transposed: bool, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of weights, channels last: a term is as many pixels of a line as divide it, also where
    these lie beside the image; windows of long lines in several turns."""
    pixels, size, stride, padding, dilation, multiple = form
    monkeypatch.setattr(depthwise, "ENOUGH_PROGRAMS", 0)
    counts = []
    real = depthwise._side_by_side
    monkeypatch.setattr(depthwise, "_side_by_side", lambda *args: counts.append(real(*args)) or counts[-1])
    rest = (stride, padding, dilation, transposed, [0] * len(size), 4)
    sizes = (4, multiple, *size) if transposed else (4 * multiple, 1, *size)
    x, weight = torch.randn(2, 4, *pixels).to(dtype), torch.randn(sizes).to(dtype)
    grad = torch.randn_like(aten.convolution(x, weight, None, *rest))
    x, grad = (each.transpose(1, -1).contiguous().transpose(1, -1) for each in (x, grad))

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(grad, x, weight, None, *rest, [False, True, False])[1]

    (found,) = interpreted(backward, [grad, x, weight])
    assert_near(found, backward(grad.double(), x.double(), weight.double()), dtype, grad[:, 0].numel())
    assert counts[-1] == next((n for n in (4, 7, 5, 6, 3, 2) if (x if transposed else grad).shape[-1] % n == 0), 1)


def test_a_term_reads_pixels_of_neighbouring_windows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pixels of a line see three lines of six; their index is computed once."""
    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(
            grad, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 32, [False, True, False])[1]

    x = torch.empty(64, 32, 56, 56, dtype=torch.bfloat16, device="meta").to(memory_format=torch.channels_last)
    nodes = lowered(program, [x, x, torch.empty(32, 1, 3, 3, dtype=torch.bfloat16, device="meta")]).graph.nodes
    loads = {(op.buffer, op.index) for node in nodes[:9] for op in node.body.loads()}
    assert len(loads) == 4 + 3 * 6


def test_a_transposed_one_visits_places_that_count() -> None:
    """A filter of 12 that moves by 2 has 6 pixels for each result, and no test whether it is one."""
    def program(x: Tensor, weight: Tensor) -> Tensor:
        wide = aten.convolution(x, aten.expand.default(weight, [8, -1, -1]), None, [2], [0], [1], True, [0], 8)
        return torch.relu(aten.slice.Tensor(wide, 2, 15, -15))

    (node,) = lowered(program, [torch.empty(2, 8, 40, device="meta"), torch.empty(1, 1, 12, device="meta")]).graph.nodes
    loads = [op.index for op in node.body.loads()]
    assert len(loads) == 12 and not any(op.name in ("eq", "lt", "ge") for op in node.body.ops)
    assert sum("i1" in repr(index) for index in loads) == 6  # the filter is the same for all channels


def test_what_follows_is_in_the_same_kernel() -> None:
    def program(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return torch.relu(aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 32) * scale)

    x = torch.empty(4, 32, 14, 14, dtype=torch.float16, device="meta").to(memory_format=torch.channels_last)
    weight = torch.empty(32, 1, 3, 3, dtype=torch.float16, device="meta")
    made = lowered(program, [x, weight, torch.empty(32, 1, 1, dtype=torch.float16, device="meta")])
    assert len(list(schedule_graph(made.graph, 8).kernels())) == 1


@pytest.mark.parametrize("pixels, size, stride, side_by_side, loads", [
    (14, 5, 1, 7, 55), (28, 5, 1, 4, 40), (28, 3, 2, 4, 9), (56, 7, 1, 4, 70), (14, 7, 1, 7, 91)])
def test_a_pixel_is_loaded_once(pixels: int, size: int, stride: int, side_by_side: int, loads: int) -> None:
    """Of a gradient of an input, for all pixels that a thread has side by side: lines of the window times
    pixels that their windows reach (with a stride, those of its multiples)."""
    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        rest = ([stride] * 2, [size // 2] * 2, [1, 1], False, [0, 0], 64)
        return aten.convolution_backward(grad, x, weight, None, *rest, [True, False, False])[0]

    x = torch.empty(128, 64, pixels, pixels, dtype=torch.float16, device="meta").to(memory_format=torch.channels_last)
    grad, weight = x[:, :, ::stride, ::stride], torch.empty(64, 1, size, size, dtype=torch.float16, device="meta")
    made = lowered(program, [grad.contiguous(memory_format=torch.channels_last), x, weight]).graph
    (source,) = print_kernel(list(schedule_graph(made, 8).kernels())[-1], made.layouts()).sources
    assert (source.text.count("tl.store("), source.text.count("tl.load(in0 ")) == (side_by_side, loads)


@pytest.mark.parametrize("channels, lines, columns, rows", [
    (144, 56, 64, 56 * 56 // 4 // 4), (72, 28, 64, 28 * 28 // 4 // 7), (96, 56, 32, 56 * 56 // 4), (144, 53, 16, 53 * 53)])
def test_channels_of_several_lines_fill_a_tile(channels: int, lines: int, columns: int, rows: int) -> None:
    """64 neighbours instead of 16, of 4 or 7 lines; a thread has 4 pixels of a line if these divide it."""
    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], channels)
        return aten.convolution_backward(grad, x, weight, None, *rest, [True, False, False])[0]

    x = torch.empty(64, channels, lines, lines, dtype=torch.float16, device="meta").to(memory_format=torch.channels_last)
    made = lowered(program, [x, x, torch.empty(channels, 1, 3, 3, dtype=torch.float16, device="meta")]).graph
    kernel = list(schedule_graph(made, 8).kernels())[-1]
    (source,) = print_kernel(kernel, made.layouts()).sources
    assert {config.columns for config in source.choices.all()} == {columns}
    (launch,) = plan_kernel(kernel).launches
    assert launch.rows == 64 * rows


def test_a_step_of_a_sum_is_one_instruction() -> None:
    """A weight's gradient: nothing is masked but what is read."""
    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 576)
        return aten.convolution_backward(grad, x, weight, None, *rest, [False, True, False])[1]

    for width, steps in ((12, 9 * 4), (13, 9)):
        x = torch.empty(64, 576, 14, width, dtype=torch.float16, device="meta").to(memory_format=torch.channels_last)
        made = lowered(program, [x, x, torch.empty(576, 1, 3, 3, dtype=torch.float16, device="meta")]).graph
        kernel = next(iter(schedule_graph(made, 8).kernels()))
        text = print_kernel(kernel, made.layouts()).sources[0].text
        assert text.count("tl.fma(") + text.count(" * v") == steps and "tl.where(" not in text


def test_answers_that_are_known_for_a_row() -> None:
    """Of rows 2q and 2q + 1, with q < 4, of 8: what is asked of i, and what is left to ask."""
    i, tests = variable("i0", 8), []
    for name, offset, other in (("lt", 0, 8), ("lt", 1, 8), ("ge", -1, 0), ("ge", -8, 0), ("eq", 0, 9)):
        tests.append((Op("index_expr", (), torch.int64, index=i + offset), Op("constant", (), torch.int64, imm=other), name))
    left = []
    for shown, bound, name in tests:
        ops = [shown, bound, Op(name, (0, 1), torch.bool), Op("load", (2,), torch.float32, "x", i),
               Op("store", (3,), torch.float32, "y", i, "set")]
        rows = [{"i0": variable("q", 4) * 2 + n} for n in range(2)]
        found = unrolled(ops, rows)
        assert [op.index for op in found if op.name == "store"] == [row["i0"] for row in rows]
        kinds = [op.name if op.args else f"{op.name} of all" for op in found if op.name == "load"]
        kinds += [f"{op.imm}" for op in found if op.name == "constant" and op.dtype is torch.float32]
        left.append(kinds)
    everything, nothing = ["load of all"] * 2, ["0.0"] * 2
    assert left == [everything, ["load of all", "load"], ["load", "load of all"], nothing, nothing]


def test_tests_that_are_joined() -> None:
    """A known answer leaves the other test, or none."""
    i, j = variable("i0", 8), variable("i1", 8)
    one = [Op("index_expr", (), torch.int64, index=i + 1), Op("constant", (), torch.int64, imm=8), Op("lt", (0, 1), torch.bool)]
    other = [Op("index_expr", (), torch.int64, index=j + 1), Op("lt", (3, 1), torch.bool)]
    for joined in ((2, 4), (4, 2)):
        ops = [*one, *other, Op("bitwise_and", joined, torch.bool), Op("load", (5,), torch.float32, "x", i),
               Op("store", (6,), torch.float32, "y", i, "set")]
        found = unrolled(ops, [{"i0": constant(0)}, {"i0": constant(7)}])
        masks = [found[op.args[0]] if op.args else None for op in found if op.name == "load"]
        assert [mask.name for mask in masks if mask] == ["lt"] and len(masks) == 1
        assert [found[op.args[0]].name for op in found if op.name == "store"] == ["load", "constant"]


@pytest.mark.parametrize("dtype, last, ours", [
    (torch.float32, True, 1), (torch.float32, False, 3), (torch.float16, True, 1), (torch.bfloat16, False, 2)])
def test_large_ones(dtype: Any, last: bool, ours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forward and two gradients, those that are the library's where it is faster."""
    monkeypatch.setattr(depthwise, "BUILT", 1)

    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 32)
        y = aten.convolution(x, weight, None, *rest)
        grads = aten.convolution_backward(grad, x, weight, None, *rest, [True, True, False])
        return y, grads[0], grads[1]

    x = torch.empty(16, 32, 56, 56, dtype=dtype, device="meta")
    if last:
        x = x.to(memory_format=torch.channels_last)
    nodes = lowered(program, [x, x, torch.empty(32, 1, 3, 3, dtype=dtype, device="meta")]).graph.nodes
    calls = [node.target for node in nodes if isinstance(node, ExternKernel)]
    assert (aten.convolution.default in calls) == (dtype is not torch.float32)
    if dtype is torch.float32 and last:  # both gradients by one call
        assert calls == [aten.convolution_backward.default]
    else:
        assert len(calls) == 3 - ours


@pytest.mark.parametrize("images, channels, readers, ours", [
    (16, 32, 1, 3), (16, 48, 1, 3), (256, 32, 2, 2), (256, 32, 1, 1), (256, 48, 2, 1),
])  # fmt: skip
def test_kernels_that_cudnn_would_build(images: int, channels: int, readers: int, ours: int) -> None:
    """In half precision channels last there are none, but with many reads for gradients of weights, for
    results that are read once, and for those whose channels do not fill tiles."""
    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], channels)
        y = aten.convolution(x, weight, None, *rest)
        grads = aten.convolution_backward(grad, x, weight, None, *rest, [True, True, False])
        more = (y.sum(),) if readers > 1 else ()
        return y, grads[0], grads[1], *more

    x = torch.empty(images, channels, 56, 56, dtype=torch.bfloat16, device="meta").to(memory_format=torch.channels_last)
    nodes = lowered(program, [x, x, torch.empty(channels, 1, 3, 3, dtype=torch.bfloat16, device="meta")]).graph.nodes
    assert sum(isinstance(node, ExternKernel) for node in nodes) == 3 - ours


def test_lines_are_ours_whatever_their_size() -> None:
    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        rest = ([1], [1], [1], False, [0], 64)
        y = aten.convolution(x, weight, None, *rest)
        grads = aten.convolution_backward(grad, x, weight, None, *rest, [True, True, False])
        return y, grads[0], grads[1]

    for dtype in (torch.float32, torch.bfloat16):
        x, weight = (torch.empty(*size, dtype=dtype, device="meta") for size in ((64, 64, 1 << 16), (64, 1, 3)))
        nodes = lowered(program, [x, x, weight]).graph.nodes
        assert not any(isinstance(node, ExternKernel) for node in nodes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("transposed, results", [(False, 1), (False, 3), (True, 1), (True, 2)])
def test_images_of_one_channel(transposed: bool, results: int, dtype: Any) -> None:
    """As filters lay channels out as images (StyleGAN): forward and both gradients."""
    size = (4, 3)
    x = torch.randn(6, 1, 9, 11).to(dtype)
    weight = torch.randn(*((1, results) if transposed else (results, 1)), *size).to(dtype)
    rest = ((2, 1), (1, 2), (1, 1), transposed, (1, 0) if transposed else (0, 0), 1)

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution(x, weight, None, *rest)

    eager = forward(x, weight)
    assert not any(isinstance(node, ExternKernel) for node in lowered(forward, [x, weight]).graph.nodes)
    (found,) = interpreted(forward, [x, weight])
    assert found.stride() == eager.stride()
    assert_near(found, forward(x.double(), weight.double()), dtype, math.prod(size))
    grad = torch.randn_like(eager)

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(grad, x, weight, [results], *rest, [True] * 3)

    assert not any(isinstance(node, ExternKernel) for node in lowered(backward, [grad, x, weight]).graph.nodes)
    expected = backward(grad.double(), x.double(), weight.double())
    for one, other in zip(interpreted(backward, [grad, x, weight]), expected, strict=True):
        assert_near(one, other, dtype, grad[:, 0].numel())


def test_many_results_of_one_channel_are_the_librarys() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    for images, results, ours in ((4096, 1, True), (4096, 4, True), (2, 5, False)):
        x, weight = torch.empty(images, 1, 64, 64, device="meta"), torch.empty(results, 1, 3, 3, device="meta")
        (node,) = lowered(program, [x.half(), weight.half()]).graph.nodes
        assert isinstance(node, ExternKernel) is not ours


def test_what_is_not_zero_outside() -> None:
    """Beside a line there are zeros, not what would be computed of them."""
    def program(x: Tensor, weight: Tensor) -> Any:
        rest = (weight, None, [1], [2], [1])
        return aten.convolution((x + 1), *rest, False, [0], 4), aten.convolution(x.cos(), *rest, True, [0], 4)

    given = torch.randn(2, 4, 9), torch.randn(4, 1, 5)
    for one, other in zip(interpreted(program, [*given]), program(*given), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("groups, size, convolves", [(2, 3, True), (1, 3, True), (8, 9, True), (8, 3, False)])
def test_others_are_the_librarys(groups: int, size: int, convolves: bool, monkeypatch: Any) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)

    monkeypatch.setattr("test_gpu_training.lower_graph", lambda module: lower_graph(module, convolves=convolves))
    x, weight = torch.empty(2, 8, 14, 14, device="meta"), torch.empty(8, 8 // groups, size, size, device="meta")
    (node,) = lowered(program, [x, weight]).graph.nodes
    assert isinstance(node, ExternKernel)
