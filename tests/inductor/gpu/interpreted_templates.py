"""GEMM templates with their epilogues in Triton's interpreter, beside eager and float64."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from interpreter_repairs import repair

import dynamo
from dynamo.aot.api import compile_inference
from dynamo.store.content import Store
from inductor.autotune import gpu_blocks, gpu_gemms
from inductor.autotune.tuning import Tuner
from inductor.codegen.triton import template
from inductor.codegen.triton.template_configs import can_describe, candidate_blocks
from inductor.driver import cuda
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.gpus import H200
from inductor.ir.graph import Layout
from inductor.lowering.run import lower_graph
from inductor.scheduler.gemms import choose_disjoint, find_candidates, with_templates
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Blocks
from inductor.scheduler.verify import verify_steps

BLOCKS = Blocks(16, 32, 16, 4, 2, group=2)


@pytest.fixture(autouse=True)
def repaired(monkeypatch) -> None:
    repair(monkeypatch)


def run(
    function, *inputs, choose=None, blocks=BLOCKS, prologues=False, before=lambda module: module
):
    """The result with every candidate as a template, and the schedules. before: a pass."""
    schedules = []

    def compile_aten(module, fakes):
        graph = lower_graph(before(module)).graph
        schedule = schedule_graph(graph, 8)
        if choose is not None:
            schedule = choose(graph, schedule)
        else:
            found = find_candidates(graph, schedule, prologues)
            chosen = choose_disjoint(found, lambda each: replace(each.template, blocks=blocks))
            schedule = with_templates(schedule, chosen)
            verify_steps(graph, schedule.steps)
        schedules.append(schedule)
        call = cuda.load(cuda.generate(graph, schedule).text, graph, False)()
        positions = [n for n, buffer in enumerate(graph.inputs) if buffer is not None]
        return lambda *args: call(*(args[n] for n in positions))

    def backend(gm, examples):
        return compile_inference(
            gm, examples, compile_aten, decompositions=decompositions(), epilogue_in_graph=True
        )

    with torch.no_grad():
        return dynamo.compile(function, backend=backend)(*inputs), schedules


def check(function, *inputs, templates: int, parts: int = 1, blocks=BLOCKS, prologues=0):
    """prologues: of all templates, none of which has one where this is 0."""
    got, (schedule,) = run(function, *inputs, blocks=blocks, prologues=prologues > 0)
    found = list(schedule.templates())
    assert sum(len(each.prologues()) for each in found) == prologues
    assert len(found) == templates
    assert max(len(each.parts) for each in found) == parts
    with torch.no_grad():
        want = function(*inputs)
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[inputs[0].dtype]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    return schedule


def noise(*size, dtype=torch.float16):
    return torch.randn(*size, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m, n, k", [(33, 70, 50), (1, 7, 19), (16, 32, 48), (40, 64, 16)])
def test_sizes_and_dtypes(dtype, m, n, k) -> None:
    torch.manual_seed(0)
    x, w, b = noise(m, k, dtype=dtype), noise(n, k, dtype=dtype), noise(n, dtype=dtype)
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, templates=1)


@pytest.mark.parametrize("turn", range(4))
def test_operands_are_views(turn: int) -> None:
    torch.manual_seed(0)
    x = noise(50, 80)[3:36, 5:55] if turn & 1 else noise(50, 40)[:, 4:37].t()
    w = noise(50, 50)[:, ::2] if turn & 2 else noise(25, 51).t()[1:]
    check(lambda x, w: torch.relu(x @ w) + 1, x, w, templates=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("m, n, k", [(33, 70, 50), (1, 7, 19), (16, 32, 48), (40, 64, 16)])
def test_kernels_before_gemms(dtype, m, n, k) -> None:
    """What makes the left operand is part of the function; what lies behind its end counts as 0."""
    x, w, s = noise(m, k, dtype=dtype), noise(k, n, dtype=dtype), noise(m, 1, dtype=dtype)
    check(lambda x, w: (1 / (x - x)).nan_to_num(2, 1, 0) @ w, x, w, templates=1, prologues=1)
    check(lambda x, w: torch.log(x.abs()) @ w, x, w, templates=1, prologues=1)

    def gated(x, w, s):  # rounded once, in eager, too
        return F.relu((x.float() * torch.sigmoid(s.float()) + 1).to(x.dtype) @ w)

    schedule = check(gated, x, w, s, templates=1, prologues=1)
    (template,) = schedule.templates()
    assert len(template.epilogues()) == 1 and not list(schedule.kernels())


def test_persistent_programs_with_a_kernel_before(monkeypatch) -> None:
    monkeypatch.setattr(template, "gpu_of", lambda template: H200.with_multiprocessors(2))
    x, w = noise(33, 56), noise(56, 72)
    blocks = replace(BLOCKS, persistent=True)
    check(lambda x, w: F.gelu(F.silu(x) @ w), x, w, templates=1, prologues=1, blocks=blocks)


def test_what_is_no_prologue() -> None:
    x, w, v = noise(33, 40), noise(40, 40), noise(40, 40)

    def read_twice(x, w, v):
        y = F.silu(x)
        return y @ w, y @ v

    def returned(x, w, v):
        y = F.silu(x)
        return y, y @ w

    for function in (read_twice, returned):
        (_, (schedule,)) = run(function, x, w, v, prologues=True)
        assert not any(each.prologues() for each in schedule.templates())

    def a_part(x, w, v):
        return F.silu(x)[1:] @ w

    def turned(x, w, v):
        return F.silu(x).t()[:, :30] @ w[:30]

    def by_itself(x, w, v):  # the other operand is read from memory
        y = F.silu(x[:, :33])
        return F.relu(y @ y.t())

    for function in (a_part, turned, by_itself):
        got, (schedule,) = run(function, x, w, v, prologues=True)
        torch.testing.assert_close(got, function(x, w, v), rtol=2e-3, atol=2e-3)


def test_inputs_of_a_prologue_that_are_written() -> None:
    """The kernel moves down to the GEMM only where its operands are still the same there."""

    def function(x, w):
        y = F.silu(x) @ w
        x.mul_(2)
        return F.relu(y) + x.sum()

    x, w = noise(32, 40), noise(40, 24)
    want = function(x.clone(), w)
    got, _ = run(function, x.clone(), w, prologues=True)
    torch.testing.assert_close(got, want, rtol=5e-3, atol=5e-3)


def test_batches() -> None:
    torch.manual_seed(0)
    x, y, z = noise(3, 20, 40), noise(3, 40, 36), noise(3, 20, 36)
    check(lambda x, y, z: torch.bmm(x, y) * 0.5 + z, x, y, z, templates=1)
    check(lambda x, y, z: torch.baddbmm(z, x, y).sigmoid(), x, y, z, templates=1)
    check(lambda x, y, z: torch.baddbmm(z[:, :1], x, y), x, y, z, templates=1)


def test_bias_of_other_sizes() -> None:
    x, w = noise(33, 20), noise(20, 18)
    for bias in (noise(18), noise(33, 18), noise(33, 1), noise(1), noise(36)[::2]):
        check(lambda x, w, b: torch.addmm(b, x, w).tanh(), x, w, bias, templates=1)


def test_a_residual_that_lies_transposed_and_a_cast() -> None:
    x, w, r = noise(32, 20), noise(20, 48), noise(48, 32).t()
    check(lambda x, w, r: ((x @ w).float() * 2 + r).half(), x, w, r, templates=1)


@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize("sizes", [(33, 72, 56), (64, 64, 32)])
def test_persistent_programs(monkeypatch, sizes, descriptors) -> None:
    monkeypatch.setattr(template, "gpu_of", lambda template: H200.with_multiprocessors(2))
    torch.manual_seed(0)
    m, n, k = sizes
    x, w, b = noise(m, k), noise(n, k), noise(n)
    blocks = replace(BLOCKS, persistent=True, descriptors=descriptors)
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, templates=1, blocks=blocks)
    check(lambda x, w: (x @ w).relu(), x, w.t().contiguous(), templates=1, blocks=blocks)
    check(lambda x, w: (x.t() @ w), noise(k, m + 7)[:, 7:], w.t(), templates=1, blocks=replace(blocks, descriptors=False))


@pytest.mark.parametrize("sizes", [(33, 72, 100), (1, 7, 19), (16, 32, 64), (5, 20, 33)])
def test_sums_that_programs_share(sizes) -> None:
    torch.manual_seed(0)
    m, n, k = sizes
    x, w, b, r = noise(m, k), noise(n, k), noise(n), noise(n, m).t()
    blocks = replace(BLOCKS, splits=3)
    check(lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r, templates=1, blocks=blocks)

    def kept(x, w):
        y = x @ w.t()
        return y, y.sigmoid()

    check(kept, x, w, templates=1, blocks=blocks)


def test_gate_and_up_are_one_part() -> None:
    x, g, u = noise(33, 40), noise(70, 40), noise(70, 40)
    schedule = check(
        lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), x, g, u, templates=1
    )
    (pair,) = schedule.templates()
    assert len(pair.gemms()) == 2 and len(schedule.steps) == 1


def test_gemms_side_by_side() -> None:
    x, q, k, v, b = noise(33, 40), noise(70, 40), noise(34, 40), noise(34, 40), noise(34)
    schedule = check(
        lambda x, q, k, v, b: (F.linear(x, q), F.linear(x, k), F.linear(x, v, b)),
        x, q, k, v, b, templates=1, parts=3,
    )
    assert len(schedule.steps) == 1


def test_what_is_read_later_is_stored_too() -> None:
    def f(x, w):
        y = x @ w
        return y, y.relu(), y.relu().sum(0)

    check(f, noise(33, 20), noise(20, 18), templates=1)


def test_rounding_is_that_of_the_operator() -> None:
    """Beyond float16 in between: eager's GEMM is inf, and so is ours."""
    x = torch.full((16, 64), 100.0, dtype=torch.float16)
    w = torch.full((64, 16), 100.0, dtype=torch.float16)
    got, _ = run(lambda x, w: (x @ w) * 0.01, x, w)
    assert torch.isinf(got).all()


def test_convolutions_with_a_window_of_one_element() -> None:
    last = torch.channels_last
    x, r = noise(2, 20, 5, 7).to(memory_format=last), noise(2, 33, 5, 7).to(memory_format=last)
    w, b = noise(33, 20, 1, 1), noise(33)
    check(lambda x, w, b, r: (F.conv2d(x, w, b) + r).relu(), x, w, b, r, templates=1)
    check(lambda x, w: F.conv2d(x[:, :, ::1], w).relu(), x, w.to(memory_format=last), templates=1)
    check(lambda x, w: F.conv2d(x, w, groups=2).relu(), x, w[:32, :10], templates=1)


CONVOLUTIONS = {  # channels, results, window, height and width, what else
    "3x3": (20, 33, (3, 3), (6, 7), {"padding": 1}),
    "3x3 inside": (16, 32, (3, 3), (7, 5), {}),
    "3x3 stride 2": (32, 16, (3, 3), (9, 8), {"padding": 1, "stride": 2}),
    "3x3 dilated": (24, 17, (3, 3), (9, 11), {"padding": 2, "dilation": 2}),
    "7x7 of few channels": (3, 20, (7, 7), (13, 12), {"padding": 3, "stride": 2}),
    "1x1 stride 2": (40, 33, (1, 1), (7, 6), {"stride": 2}),
    "1x1 padded": (18, 32, (1, 1), (5, 4), {"padding": 1}),
    "5x1": (17, 8, (5, 1), (9, 4), {"padding": (2, 0), "stride": (1, 3)}),
    "1x7": (48, 40, (1, 7), (3, 9), {"padding": (0, 3), "dilation": (1, 1)}),
    "one channel": (1, 16, (3, 3), (8, 6), {"padding": 1}),
    "far outside": (16, 16, (2, 3), (3, 3), {"padding": (4, 5), "dilation": (3, 2)}),
}


def images(channels: int, results: int, window, size, dtype=torch.float16, count: int = 2):
    """An image in channels last and a weight."""
    x, w = noise(count, channels, *size, dtype=dtype), noise(results, channels, *window, dtype=dtype)
    return x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    """Norm, residual, activation behind it; a bias, which is added to the rounded sums."""
    channels, results, window, size, more = CONVOLUTIONS[name]
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    turn = list(CONVOLUTIONS).index(name)
    for dtype in dtypes[turn % 3 :][:1] if turn else dtypes:
        x, w = images(channels, results, window, size, dtype)
        s, b = noise(2, results, 1, 1, dtype=dtype)
        y = F.conv2d(x, w, **more)
        r = torch.randn_like(y)

        def block(x, w, s, b, r):
            return F.relu(F.conv2d(x, w, **more) * s + b + r)  # noqa: B023

        got, (schedule,) = run(block, x, w, s, b, r)
        (template,) = schedule.templates()
        assert len(schedule.steps) == 1 and template.gemms()[0].window is not None
        tolerance = {torch.float16: 3e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
        want = block(*(each.double() for each in (x, w, s, b, r)))
        most = y.abs().max().item() * s.abs().max().item() + 1
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * most)
        assert got.stride() == y.stride()
    x, w = images(channels, results, window, size)
    b = noise(results)
    check(lambda x, w, b: F.silu(F.conv2d(x, w, b, **more)), x, w, b, templates=1)


@pytest.mark.parametrize("blocks", [
    replace(BLOCKS, splits=3), replace(BLOCKS, depth=32), Blocks(32, 16, 64, 4, 3, group=1),
], ids=str)
@pytest.mark.parametrize("name", ["3x3", "7x7 of few channels", "1x1 stride 2", "3x3 dilated"])
def test_blocks_of_convolutions(name: str, blocks: Blocks) -> None:
    channels, results, window, size, more = CONVOLUTIONS[name]
    x, w = images(channels, results, window, size)
    r = torch.randn_like(F.conv2d(x, w, **more))
    check(lambda x, w, r: F.conv2d(x, w, **more) + r, x, w, r, templates=1, blocks=blocks)


BOXES = {  # as above, and the images' number
    "3x3": (32, 48, (3, 3), (7, 9), {"padding": 1}, 3),
    "even": (16, 64, (3, 3), (8, 8), {"padding": 1}, 2),
    "inside, dilated": (16, 20, (3, 2), (9, 8), {"dilation": (2, 3)}, 5),
    "far outside": (16, 16, (2, 3), (3, 3), {"padding": (4, 5), "dilation": (3, 2)}, 1),
    "1x1 stride 2": (32, 33, (1, 1), (7, 6), {"stride": 2}, 2),
    "3x3 stride 2": (16, 33, (3, 3), (8, 6), {"padding": 1, "stride": 2}, 3),
    "steps": (16, 16, (4, 5), (9, 10), {"padding": (2, 4), "stride": (3, 2), "dilation": (2, 1)}, 2),
    "rows skipped": (16, 16, (3, 3), (8, 7), {"padding": 1, "stride": (2, 1)}, 2),
    "1x1 strides": (16, 33, (1, 1), (6, 9), {"stride": (1, 3)}, 2),
}


@pytest.mark.parametrize("blocks", [
    Blocks(16, 64, 16, 4, 2, descriptors=True), Blocks(64, 16, 16, 4, 2, group=1, descriptors=True),
    Blocks(32, 32, 16, 4, 2, persistent=True, descriptors=True), Blocks(16, 32, 16, 4, 2, splits=3, descriptors=True),
], ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_convolutions_by_boxes(monkeypatch, first: int, blocks: Blocks) -> None:
    """Tiles are boxes of pixels, which may reach over each end of the result."""
    for name in [*BOXES][first::2] if blocks.rows == 16 else [*BOXES][first::4]:
        check_boxes(monkeypatch, name, blocks)
        dynamo.reset()


def check_boxes(monkeypatch, name: str, blocks: Blocks) -> None:
    monkeypatch.setattr(template, "gpu_of", lambda template: H200.with_multiprocessors(2))
    channels, results, window, size, more, count = BOXES[name]
    x, w = images(channels, results, window, size, count=count)
    b, r = noise(results), torch.randn_like(F.conv2d(x, w, **more))

    def block(x, w, b, r):
        return F.relu(F.conv2d(x, w, b, **more) + r)

    (found,) = check(block, x, w, b, r, templates=1, blocks=blocks).templates()
    assert can_describe(found)


def test_what_boxes_cannot_be() -> None:
    """Where images are no whole steps, channels are few or odd, or do not lie densely."""
    x, w = images(16, 16, (3, 3), (9, 8))
    few, thin = images(8, 16, (3, 3), (8, 8))
    for function, one, other in (
        (lambda x, w: F.conv2d(x, w, stride=2).relu(), x, w), (lambda x, w: F.conv2d(x, w).relu(), few, thin),
        (lambda x, w: F.conv2d(x, w[:, :16]).relu(), x, torch.cat([w, w], 1)),
        (lambda x, w: F.conv2d(x, w).relu(), x, w.contiguous()),
        (lambda x, w: F.conv2d(x, w).relu(), x.float(), w.float()),
    ):
        _, (schedule,) = run(function, one, other)
        (found,) = schedule.templates()
        assert not can_describe(found)


def test_convolutions_of_parts_of_images() -> None:
    """Rows, columns and channels are skipped; the weight lies as it was made."""
    x, w = images(24, 20, (3, 3), (9, 10))
    plain = w.contiguous()
    check(lambda x, w: F.conv2d(x[1:, 4:20, ::2, 1:], w[:, :16], padding=1).relu(), x, w, templates=1)
    check(lambda x, w: F.conv2d(x, w, padding=1).relu(), x, plain, templates=1)


def test_two_convolutions_in_one_tile() -> None:
    x, w = images(20, 24, (3, 3), (6, 5))
    v = torch.randn_like(w)

    def gated(x, w, v):
        return F.conv2d(x, w, padding=1) * torch.sigmoid(F.conv2d(x, v, padding=1))

    (template,) = check(gated, x, w, v, templates=1).templates()
    assert len(template.gemms()) == 2
    other = lambda x, w, v: F.conv2d(x, w, padding=1) * F.conv2d(x, v, padding=2, dilation=2)  # noqa: E731
    found = list(check(other, x, w, v, templates=2).templates())
    assert [len(each.gemms()) for each in found] == [1, 1]


def test_what_is_no_number_stays_inside_of_its_windows() -> None:
    """Pixels beside the image, channels behind the last one and rows behind the end count as 0."""
    x, w = images(20, 33, (3, 3), (6, 7))
    x[:, :, 2, 3] = torch.nan
    function = lambda x, w: F.conv2d(x, w, padding=1).relu()  # noqa: E731
    (got, _), want = run(function, x, w), function(x, w)
    assert torch.isnan(got).sum() == 2 * 33 * 9
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-2, equal_nan=True)
    x.fill_(1)
    w[:, :, 0, 1] = torch.inf  # in windows that the image fills, as in those it does not
    got, _ = run(lambda x, w: F.conv2d(x, w) + 1, x, w)
    assert torch.isinf(got).all()


def test_convolutions_that_are_no_template() -> None:
    x, w = images(16, 16, (3, 3), (6, 7))
    for function in (
        lambda x, w: F.conv_transpose2d(x, w, padding=1).relu(),
        lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0]).relu(),
        lambda x, w: F.conv2d(x.contiguous(), w.contiguous()).relu(),
    ):
        got, (schedule,) = run(function, x, w)
        assert not list(schedule.templates())
        torch.testing.assert_close(got, function(x, w), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("allowed", [False, True])
def test_float32_is_multiplied_as_the_library_may(monkeypatch, allowed: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    x, w = images(16, 16, (3, 3), (6, 7), torch.float32)
    (schedule,) = run(lambda x, w: F.conv2d(x, w).relu(), x, w)[1]
    (found,) = schedule.templates()
    layouts = {
        name: Layout(x.device, x.dtype, (1,), (1,)) for name in (*found.reads(), *found.writes())
    }
    text = template.print_template(found, layouts).text
    assert ('input_precision="tf32"' in text) == allowed
    assert ('input_precision="ieee"' in text) != allowed


def test_convolutions_are_measured_once(tmp_path, monkeypatch) -> None:
    asked = []

    def timer(call, sets):
        call(*sets[0])
        asked.append(1)
        return 10.0 if len(asked) % 2 else 5.0

    monkeypatch.setattr(gpu_gemms, "candidate_blocks", lambda t: (BLOCKS,))
    monkeypatch.setattr(gpu_gemms, "neighbours", lambda best, t: ())

    def choose(graph, schedule):
        return gpu_gemms.choose_templates(graph, schedule, Tuner(Store(tmp_path), cuda.load_all, timer))

    x, w = images(20, 33, (3, 3), (6, 7))
    function = lambda x, w: F.conv2d(x, w, padding=1).relu()  # noqa: E731
    got, (schedule,) = run(function, x, w, choose=choose)
    assert [each.blocks for each in schedule.templates()] == [BLOCKS] and len(asked) == 2
    torch.testing.assert_close(got, function(x, w), rtol=2e-3, atol=2e-2)
    dynamo.reset()
    _, (again,) = run(function, x, w, choose=choose)
    assert len(asked) == 2 and str(again) == str(schedule)
    dynamo.reset()
    _, (unmeasured,) = run(
        function, x, w, choose=lambda graph, made: gpu_gemms.choose_templates(graph, made, None))
    assert not list(unmeasured.templates())  # the library's, where nothing was measured


def test_choosing_measures_once(tmp_path, monkeypatch) -> None:
    """With a timer that likes templates; a second tuner finds the answers on disk."""
    calls = []

    def timer(call, sets):
        (result,) = call(*sets[0])
        calls.append(result)
        return 10.0 if len(calls) % 2 else 5.0

    x, w, b = noise(33, 40), noise(70, 40), noise(70)
    function = lambda x, w, b: F.gelu(F.linear(x, w, b))  # noqa: E731
    monkeypatch.setattr(gpu_gemms, "candidate_blocks", lambda t: candidate_blocks(t)[:1])

    def choose(graph, schedule):
        return gpu_gemms.choose_templates(graph, schedule, Tuner(Store(tmp_path), cuda.load_all, timer))

    got, (schedule,) = run(function, x, w, b, choose=choose)
    assert [len(each.nodes) for each in schedule.templates()] == [2]
    count = len(calls)
    torch.testing.assert_close(calls[0], calls[1], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(got, function(x, w, b), rtol=2e-3, atol=2e-3)
    dynamo.reset()
    _, (again,) = run(function, x, w, b, choose=choose)
    assert count and len(calls) == count and str(again) == str(schedule)


def test_convolutions_alone_are_asked_where_nothing_follows(tmp_path, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(gpu_gemms, "candidate_blocks", lambda t: (BLOCKS,))
    before = gpu_gemms._question

    def question(graph, schedule, candidate, *rest):
        asked.append(len(candidate.template.epilogues()))
        return before(graph, schedule, candidate, *rest)

    def choose(graph, schedule):
        timer = lambda call, sets: call(*sets[0]) and 1.0  # noqa: E731
        return gpu_gemms.choose_templates(graph, schedule, Tuner(Store(tmp_path), cuda.load_all, timer))

    monkeypatch.setattr(gpu_gemms, "_question", question)
    x, w = images(20, 33, (3, 3), (6, 7))
    for function, expected in (
        (lambda x, w: F.conv2d(x, w), [0]), (lambda x, w: F.conv2d(x, w).relu(), [1]),
        (lambda x, w: F.conv2d(x, w).softmax(1), [0]),
    ):
        asked.clear()
        run(function, x, w, choose=choose)
        assert asked == expected
        dynamo.reset()


def test_a_way_that_fails_is_left_out(tmp_path, monkeypatch) -> None:
    def timer(call, sets):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(gpu_gemms, "candidate_blocks", lambda t: candidate_blocks(t)[:1])

    def choose(graph, schedule):
        return gpu_gemms.choose_templates(graph, schedule, Tuner(Store(tmp_path), cuda.load_all, timer))

    x, w = noise(33, 40), noise(40, 20)
    got, (schedule,) = run(lambda x, w: (x @ w).relu(), x, w, choose=choose)
    assert not list(schedule.templates())
    torch.testing.assert_close(got, (x @ w).relu(), rtol=2e-3, atol=2e-3)


def test_blocks_are_searched_and_kept(tmp_path, monkeypatch) -> None:
    """With a timer that likes few rows; the search goes on from the best."""
    taken = []
    monkeypatch.setattr(gpu_blocks, "FEWEST_BYTES", 0)

    def function(x, y):
        return (x * 2 + y).sigmoid(), (x.t() + 1).contiguous().sum(1)

    def choose(graph, schedule):
        texts.clear()

        def timer(call, sets):
            call(*sets[0])
            taken.append(1)
            return float(re.search(r"\(\((\d+), \d+, \d+\),\)", texts[call]).group(1))

        def load(modules):
            return [functools.partial(bind, text, graph) for text, graph in modules]

        def bind(text, graph):
            call = cuda.load(text, graph, False)()
            texts[call] = text
            return call

        generated.append(cuda.generate(graph, schedule, (), Tuner(Store(tmp_path), load, timer)).text)
        return schedule

    texts: dict[object, str] = {}
    generated: list[str] = []
    x, y = noise(40, 24), noise(40, 24)
    run(function, x, y, choose=choose)
    assert len(re.findall(r"\(\(\d+, \d+, \d+\),\)", generated[0])) >= 2
    count = len(taken)
    dynamo.reset()
    run(function, x, y, choose=choose)
    assert len(taken) == count and generated[0] == generated[1]


def test_few_rows_take_templates_without_measuring() -> None:
    def choose(graph, schedule):
        return gpu_gemms.choose_templates(graph, schedule, None)

    g, u, d = noise(72, 40) / 8, noise(72, 40) / 8, noise(40, 72) / 8

    def function(x, g, u, d):
        return F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d) + x

    for rows, count in ((8, 2), (64, 0)):
        x = noise(rows, 40)
        got, (schedule,) = run(function, x, g, u, d, choose=choose)
        assert len(list(schedule.templates())) == count
        torch.testing.assert_close(got, function(x, g, u, d), rtol=4e-3, atol=4e-3)
        dynamo.reset()


def int4(q, s):
    unpacked = torch.stack([q & 15, q >> 4], -1).reshape(q.shape[0], -1).half() - 8
    return (unpacked.view(q.shape[0], -1, 16) * s[..., None]).reshape(unpacked.shape)


@pytest.mark.parametrize("n, k", [(70, 64), (64, 48)])
def test_weights_are_converted_in_the_loop(n, k) -> None:
    torch.manual_seed(0)
    x, s, r = noise(9, k), noise(n), noise(9, n)
    w, v = torch.randint(-9, 9, (2, n, k), dtype=torch.int8)
    q, g = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8), noise(n, k // 16) / 4
    check(lambda x, w, s, r: F.linear(x, w.half()) * s + r, x, w, s, r, templates=1, prologues=1)
    check(lambda x, w, s: F.relu(x @ (w.half() * s)), x, w.t().contiguous(), s, templates=1, prologues=1)
    check(lambda x, q, g: F.linear(x, int4(q, g)).relu(), x, q, g, templates=1, prologues=1)
    check(lambda x, w, v: F.silu(F.linear(x, w.half())) * F.linear(x, v.half()), x, w, v, templates=1, prologues=2)


def test_weights_that_others_read_are_stored() -> None:
    x, w = noise(9, 48), torch.randint(-9, 9, (48, 48), dtype=torch.int8)

    def program(x, w):
        wide = w.half() + 1
        return F.linear(x, wide).relu(), wide

    got, (schedule,) = run(program, x, w, prologues=True)
    torch.testing.assert_close(got, program(x, w), rtol=4e-3, atol=4e-3)
    assert not any(each.prologues() for each in schedule.templates())
