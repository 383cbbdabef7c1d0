"""Product templates with their epilogues in Triton's interpreter, beside eager and float64."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from interpreter_repairs import repair

import dynamo
from dynamo.aot.api import compile_inference
from inductor import cuda, gpu_blocks, gpu_products
from inductor.codegen.triton import template
from inductor.codegen.triton.template_configs import candidate_blocks
from inductor.fx_passes.run import decompositions
from inductor.lowering.run import lower_graph
from inductor.runtime.store import Store
from inductor.scheduler.products import choose_disjoint, find_candidates, with_templates
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Blocks
from inductor.scheduler.verify import verify_steps
from inductor.tuning import Tuner

BLOCKS = Blocks(16, 32, 16, 4, 2, group=2)


@pytest.fixture(autouse=True)
def repaired(monkeypatch) -> None:
    repair(monkeypatch)


def run(function, *inputs, choose=None, blocks=BLOCKS, prologues=False):
    """The result with every candidate as a template, and the schedules."""
    schedules = []

    def compile_aten(module, fakes):
        graph = lower_graph(module).graph
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
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[inputs[0].dtype]
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
def test_kernels_before_products(dtype, m, n, k) -> None:
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
    monkeypatch.setattr(template, "MULTIPROCESSORS", 2)
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

    for function in (a_part, turned):
        got, (schedule,) = run(function, x, w, v, prologues=True)
        torch.testing.assert_close(got, function(x, w, v), rtol=2e-3, atol=2e-3)


def test_inputs_of_a_prologue_that_are_written() -> None:
    """The kernel moves down to the product only where its operands are still the same there."""

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
    monkeypatch.setattr(template, "MULTIPROCESSORS", 2)
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
    assert len(pair.products()) == 2 and len(schedule.steps) == 1


def test_products_side_by_side() -> None:
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
    """Beyond float16 in between: eager's product is inf, and so is ours."""
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
    for more in ({"stride": 2}, {"padding": 1}, {"groups": 2}):
        weight = w[:32, :10] if "groups" in more else w
        found, (schedule,) = run(lambda x, w, more=more: F.conv2d(x, w, **more).relu(), x, weight)
        assert not list(schedule.templates())


def test_choosing_measures_once(tmp_path, monkeypatch) -> None:
    """With a timer that likes templates; a second tuner finds the answers on disk."""
    calls = []

    def timer(call, sets):
        (result,) = call(*sets[0])
        calls.append(result)
        return 10.0 if len(calls) % 2 else 5.0

    x, w, b = noise(33, 40), noise(70, 40), noise(70)
    function = lambda x, w, b: F.gelu(F.linear(x, w, b))  # noqa: E731
    monkeypatch.setattr(gpu_products, "candidate_blocks", lambda t: candidate_blocks(t)[:1])

    def choose(graph, schedule):
        return gpu_products.choose_templates(graph, schedule, Tuner(Store(tmp_path), cuda.load, timer))

    got, (schedule,) = run(function, x, w, b, choose=choose)
    assert [len(each.nodes) for each in schedule.templates()] == [2]
    count = len(calls)
    torch.testing.assert_close(calls[0], calls[1], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(got, function(x, w, b), rtol=2e-3, atol=2e-3)
    dynamo.reset()
    _, (again,) = run(function, x, w, b, choose=choose)
    assert count and len(calls) == count and str(again) == str(schedule)


def test_a_way_that_fails_is_left_out(tmp_path, monkeypatch) -> None:
    def timer(call, sets):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(gpu_products, "candidate_blocks", lambda t: candidate_blocks(t)[:1])

    def choose(graph, schedule):
        return gpu_products.choose_templates(graph, schedule, Tuner(Store(tmp_path), cuda.load, timer))

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

        def load(text, graph, measure):
            bound = cuda.load(text, graph, measure)

            def bind():
                call = bound()
                texts[call] = text
                return call

            return bind

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
        return gpu_products.choose_templates(graph, schedule, None)

    g, u, d = noise(72, 40) / 8, noise(72, 40) / 8, noise(40, 72) / 8

    def function(x, g, u, d):
        return F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d) + x

    for rows, count in ((8, 2), (64, 0)):
        x = noise(rows, 40)
        got, (schedule,) = run(function, x, g, u, d, choose=choose)
        assert len(list(schedule.templates())) == count
        torch.testing.assert_close(got, function(x, g, u, d), rtol=4e-3, atol=4e-3)
        dynamo.reset()
