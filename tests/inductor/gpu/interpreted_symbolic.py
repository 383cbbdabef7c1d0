"""Programs compiled once for all sizes as Triton kernels, and run at several in the interpreter."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from interpreter_repairs import repair

from dynamo.aot.plain_graphs import CachedGraph
from dynamo.aot.records import Unsupported
from inductor.codegen.bind import where_it_holds
from inductor.codegen.triton import configs, numbers, plan, print_kernel
from inductor.codegen.triton.launch import NotPrintable
from inductor.driver import cuda
from inductor.dynamic_shapes.symbolic import ForAllSizes, Variant
from inductor.lowering import depthwise
from inductor.lowering.run import lower_graph
from inductor.runtime import triton_launch
from inductor.scheduler.run import schedule_graph

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import check
from test_for_all_sizes import CALLS, JOINED, POINTWISE, REDUCTIONS, VIEWS, randn

NAMES = {
    "POINTWISE": ["broadcast", "outer", "both layouts", "bfloat16", "integers", "size as number"],
    "REDUCTIONS": ["sum of rows", "columns of any width", "mean of all", "argmax", "variance",
                   "softmax", "softmax of columns", "layer norm of a size", "cross entropy"],
    "VIEWS": ["split heads", "merge two sizes", "split a size", "pairs", "shifted", "halves"],
    "JOINED": ["cat", "cat of many", "pad", "embedding of a size", "positions", "causal"],
    "CALLS": ["linear", "sort"],
}
GROUPS = {"POINTWISE": POINTWISE, "REDUCTIONS": REDUCTIONS, "VIEWS": VIEWS, "JOINED": JOINED, "CALLS": CALLS}
CASES = [(group, name) for group, names in NAMES.items() for name in names]
texts: list[str] = []


def compile_variant(module, hints) -> Variant:
    lowered = lower_graph(module, hints)
    graph, symbols = lowered.graph, lowered.symbols
    made = cuda.generate(graph, schedule_graph(graph, 8), symbols.sizes.symbols)
    texts.append(made.text)
    load = cuda.load(made.text, graph, False)
    tensors = tuple(n for n, buffer in enumerate(graph.inputs) if buffer is not None)
    return Variant(where_it_holds(symbols.sizes), lambda key: "", lambda key: load(*key), tuple(symbols.sources), tensors, symbols.sizes)


def compile_module(module):
    compile_for = functools.partial(compile_variant, module)
    count = len(module.graph.find_nodes(op="placeholder"))
    return ForAllSizes(CachedGraph(module), count, compile_for(None), compile_for).call


@pytest.fixture(autouse=True)
def repaired(monkeypatch) -> None:
    repair(monkeypatch)
    texts.clear()


@pytest.mark.parametrize(("group", "name"), CASES, ids=lambda part: part.replace(" ", "_"))
def test_program(group, name) -> None:
    check(*GROUPS[group][name], sizes=(2, 17), compile_module=compile_module)


def test_a_long_sum_in_two_launches() -> None:
    """The number of partial sums is known at a call only."""
    check(lambda x: (x * 2).sum(), lambda n: [randn(n, 64)], (2, 63, 3000), 2000, compile_module=compile_module)
    assert texts[0].count("@triton.jit") == 2 and "tl.program_id(1)" in texts[0]


def started(monkeypatch) -> list[tuple[int, int, int]]:
    """The choices with which Triton functions run from now on."""
    found = []
    run = triton_launch.Bound.through_triton

    def noted(self, tensors, number):
        found.append(self.launcher.choices[number])
        return run(self, tensors, number)

    monkeypatch.setattr(triton_launch.Bound, "through_triton", noted)
    return found


ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax of halves": lambda x: F.log_softmax(x.bfloat16() * 3, -1),
    "layer norm and what it was made of": lambda x: (F.layer_norm(x.relu(), x.shape[1:]), x.relu()),
    "variance": lambda x: x.double().var(-1),
    "argmax beside nan": lambda x: x.log().argmax(-1),
}


@pytest.mark.parametrize("program", ROWS.values(), ids=ROWS)
def test_rows_by_their_length(program, monkeypatch) -> None:
    """A short row is a tile of the next of a few lengths; longer ones are walked along."""
    starts = started(monkeypatch)
    monkeypatch.setattr(configs, "ROW_LENGTHS", (8, 32, 128))
    monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 128)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 128)
    sizes = (2, 8, 9, 32, 33, 127, 128, 129, 300)
    check(program, lambda n: [randn(5, n)], sizes, 12, compile_module=compile_module)
    blocks = [columns for _, columns, _ in dict.fromkeys(starts)]
    assert blocks[:3] == [32, 8, 128] and len(blocks) > 3
    assert texts[0].count("BySize((8, 32, 128)") == 1 and " <= 128" in texts[0]


def test_a_class_for_a_number_of_elements(monkeypatch) -> None:
    starts = started(monkeypatch)
    monkeypatch.setattr(configs, "LIKELY_ROWS", 128)
    monkeypatch.setattr(configs, "SMALL", 128)
    monkeypatch.setattr(configs, "MEDIUM", 512)
    check(lambda x: x.sin() * 2, lambda n: [randn(n)], (128, 129, 512, 513), 12, compile_module=compile_module)
    assert [choice[0] for choice in starts] == [128, 128, 512, 512, 1024]
    starts.clear()
    monkeypatch.setattr(configs, "MANY_IN_TILES", 10_000)
    check(lambda x, y: x.t() + y, lambda n: [randn(n, n + 1), randn(n + 1, n)], (99, 100, 101), 33,
          compile_module=compile_module)
    assert [choice[:2] for choice in starts] == [(32, 32), (32, 32), (64, 64), (64, 64)]


def test_sizes_are_no_part_of_the_text() -> None:
    """Programs that differ in which sizes they use have the same kernels."""
    for program in (lambda x, y: x.sin() * 2, lambda x, y: y.sin() * 2):
        check(program, lambda n: [randn(n, 3), randn(n + 5, 3)], (7,), compile_module=compile_module)
    first, second = ([line for line in text.splitlines() if line.startswith("def fused")] for text in texts)
    assert first == second and 'n0: "i32"' in first[0]


def test_what_int32_cannot_count_is_another_variant(monkeypatch) -> None:
    for module in (numbers, print_kernel):
        monkeypatch.setattr(module, "MOST_INT32", 1000)
    check(lambda x: x * 2 + x.shape[0], lambda n: [randn(n, 8)], (124, 125, 300), 12, builds=2,
          compile_module=compile_module)
    assert '"i32"' in texts[0] and ".to(tl.int64)" not in texts[0]
    assert '"i32"' not in texts[1] and ".to(tl.int64)" in texts[1]


def test_numbers_that_are_computed_keep_their_precision() -> None:
    def program(x):
        return x.double() * (x.shape[0] / 7) + x.double().var(0), x.shape[0] * (x > 0)

    check(program, lambda n: [randn(n, 3)], (3, 7), compile_module=compile_module)


def test_what_triton_cannot_do_is_refused(monkeypatch) -> None:
    """Sizes are taken one by one then."""
    def refuse(kernel, layouts):
        raise NotPrintable("no such thing")

    monkeypatch.setattr(cuda, "print_kernel", refuse)
    with pytest.raises(Unsupported, match="no such thing"):
        check(lambda x: x + 1, lambda n: [randn(n)], compile_module=compile_module)


def test_dropped_and_flipped() -> None:
    check(lambda x: F.pad(x.flip(1), (0, 3)).cumsum(1)[:, ::2] * 2, lambda n: [randn(n, n + 2)], (5, 33),
          compile_module=compile_module)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions(stride, turned, monkeypatch) -> None:
    """Of images whose number and width a call brings."""
    monkeypatch.setattr(depthwise, "_is_left_to_libraries", lambda call: False)
    monkeypatch.setattr(depthwise, "MANY_READS", 0 if turned else 1 << 60)

    def program(x, weight):
        y = x.to(memory_format=torch.channels_last)
        return F.relu(F.conv2d(y, weight, None, stride, 1, 1, 16))

    check(program, lambda n: [randn(n, 16, 5, n + 3), randn(16, 1, 3, 3)], (2, 5, 9), 4, compile_module=compile_module)
    assert "aten.convolution" not in texts[0] and "tl.program_id(1)" in texts[0]
