"""GEMM templates for all numbers of rows, in Triton's interpreter, beside eager."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from interpreter_repairs import repair

from dynamo.aot.plain_graphs import CachedGraph
from dynamo.base import logs
from dynamo.store.content import Store
from inductor.autotune import gpu_gemms
from inductor.autotune.gpu_gemms import choose_templates
from inductor.autotune.tuning import Tuner
from inductor.codegen.bind import where_it_holds
from inductor.driver import cuda
from inductor.dynamic_shapes.symbolic import ForAllSizes, Variant
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Blocks

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import check

BLOCKS = Blocks(16, 32, 16, 4, 2, group=2)
texts: list[str] = []
schedules = []


def noise(*size, dtype=torch.float16):
    return torch.randn(*size).to(dtype)


def compile_variant(tuner, module, hints) -> Variant:
    lowered = lower_graph(module, hints)
    graph, symbols = lowered.graph, lowered.symbols
    schedule = choose_templates(graph, schedule_graph(graph, 8), tuner, True, symbols.sizes)
    made = cuda.generate(graph, schedule, symbols.sizes.symbols)
    texts.append(made.text)
    schedules.append(schedule)
    load = cuda.load(made.text, graph, False)
    tensors = tuple(n for n, buffer in enumerate(graph.inputs) if buffer is not None)
    return Variant(where_it_holds(symbols.sizes), lambda key: "", lambda key: load(*key), tuple(symbols.sources), tensors, symbols.sizes)


def compile_module(module, tuner=None):
    compile_for = functools.partial(compile_variant, tuner, module)
    count = len(module.graph.find_nodes(op="placeholder"))
    return ForAllSizes(CachedGraph(module), count, compile_for(None), compile_for).call


@pytest.fixture(autouse=True)
def repaired(monkeypatch) -> None:
    repair(monkeypatch)
    texts.clear()
    schedules.clear()


@pytest.fixture
def every(monkeypatch) -> None:
    """Each candidate is a template."""
    monkeypatch.setattr(
        gpu_gemms, "likely_blocks", lambda each, layouts: replace(each, blocks=BLOCKS))
    monkeypatch.setattr(gpu_gemms, "_is_worth_asking", lambda each, found: True)


def of(x, w):
    return F.linear(x, w.to(x.dtype))


def templates() -> list[int]:
    return [len(list(schedule.templates())) for schedule in schedules]


def linear(dtype=torch.float16):
    """A layer, whose sizes are known, and what follows it."""
    w, b = noise(40, 24, dtype=dtype), noise(40, dtype=dtype)
    return lambda x, r: F.gelu(F.linear(x, w.to(x.dtype), b.to(x.dtype))) + r


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_linear_layer(every, dtype) -> None:
    """Two axes make the rows; the last tile reaches over their end."""
    def make(n):
        return noise(3, n, 24, dtype=dtype), noise(3, n, 40, dtype=dtype)

    check(linear(dtype), make, (6, 7, 11, 16, 33), 12, compile_module=compile_module)
    assert templates() == [1] and len(schedules[0].steps) == 1
    assert texts[0].count("@triton.jit") == 1 and 'n0: "i32"' in texts[0]


def test_few_rows_and_many(every) -> None:
    """Where blocks were chosen for many rows, few ones get a variant of their own."""
    check(linear(), lambda n: [noise(n, 24), noise(n, 40)], (17, 16, 3, 64), 20, builds=2,
          compile_module=compile_module)
    assert templates() == [1, 1]


def test_gemms_beside_each_other(every) -> None:
    w, v, u = noise(40, 24), noise(40, 24), noise(56, 24)
    check(lambda x: F.silu(of(x, w)) * of(x, v), lambda n: [noise(n, 24)], (17, 33), 20, compile_module=compile_module)
    assert len(schedules[0].steps) == 1
    check(lambda x: (of(x, w), of(x, u)), lambda n: [noise(n, 24)], (17, 33), 20, compile_module=compile_module)
    (joined,) = schedules[1].templates()
    assert len(joined.parts) == 2


def test_batches(every) -> None:
    """Numbers of GEMMs, too."""
    y, z = noise(3, 24, 40), noise(3, 1, 40)
    check(lambda x: torch.baddbmm(z.to(x.dtype), x, y.to(x.dtype)).relu(), lambda n: [noise(3, n, 24)],
          (17, 33), 20, compile_module=compile_module)
    check(lambda x: torch.bmm(x, y[:1].to(x.dtype).expand(x.shape[0], 24, 40)).relu(),
          lambda n: [noise(n, 20, 24)], (2, 5), 3, compile_module=compile_module)
    assert templates() == [1, 1]


def test_convolutions_of_any_number_of_images_of_any_size(every) -> None:
    w = noise(20, 17, 3, 3).to(memory_format=torch.channels_last)
    for make, first, sizes in (
        (lambda n: [noise(n, 17, 6, 5).to(memory_format=torch.channels_last)], 3, (2, 5)),
        (lambda n: [noise(2, 17, n, n + 1).to(memory_format=torch.channels_last)], 9, (8, 12)),
    ):
        check(lambda x: F.conv2d(x, w.to(x.dtype), padding=1, stride=2).relu(), make, sizes, first,
              compile_module=compile_module)
    assert templates() == [1, 1]


def test_the_log_says_what_stays_with_the_library(every, monkeypatch, capsys) -> None:
    monkeypatch.setattr(logs.log("autotuning"), "enabled", True)
    check(lambda x, w: (x @ w).relu(), lambda n: [noise(23, 24), noise(24, n)], (17, 33), 20,
          compile_module=compile_module)
    assert templates() == [0]
    said = capsys.readouterr().err
    assert "no template computes buf0" in said and "known at a call only" in said


def test_few_rows_take_templates_without_measuring() -> None:
    """As with known sizes; more rows are the library's."""
    g, u = noise(72, 40) / 8, noise(72, 40) / 8
    check(lambda x: F.silu(of(x, g)) * of(x, u), lambda n: [noise(n, 40)], (2, 9, 16, 17, 100), 8, builds=2, compile_module=compile_module)
    assert templates() == [1, 0]


def test_measured_at_the_sizes_of_the_compile(tmp_path, monkeypatch) -> None:
    """Sizes of the compile are part of what is asked; another process finds the answer."""
    asked = []

    def timer(call, sets):
        call(*sets[0])
        asked.append(sets[0][0].shape)
        return 10.0 if len(asked) % 2 else 5.0

    monkeypatch.setattr(gpu_gemms, "candidate_blocks", lambda each: (BLOCKS,))
    monkeypatch.setattr(gpu_gemms, "neighbours", lambda best, each: ())
    counts = []
    function = linear()
    for first in (20, 20, 33):
        tuner = Tuner(Store(tmp_path), cuda.load_all, timer)
        check(function, lambda n: [noise(n, 24), noise(n, 40)], (17, 64), first,
              builds=None, compile_module=functools.partial(compile_module, tuner=tuner))
        counts.append(len(asked))
    assert templates() == [1, 1, 1] and counts == [2, 2, 4]
    assert {tuple(shape) for shape in asked} == {(20, 24), (33, 24)}
