"""The choice of library GEMMs: kept on disk, the same results, only where the form fits."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynamo.aot.capture import capture_forward
from dynamo.store.content import Store, opened
from inductor import compile_fx
from inductor.autotune import answers, gemm_choice, gemm_trials, trials
from inductor.autotune.answers import Answer
from inductor.autotune.library_kernels import choose_library_kernels
from inductor.autotune.linear import Linear, as_linear
from inductor.config import config
from inductor.ir.graph import ExternKernel, LoopGraph, ViewRef
from inductor.ir.interpret import interpret_graph
from inductor.lowering.run import lower_graph
from inductor.runtime.build import BuildError

pytestmark = pytest.mark.usefixtures("nothing_is_said")


def lowered(function: Any, *inputs: torch.Tensor) -> LoopGraph:
    module = torch.fx.symbolic_trace(function)
    return lower_graph(capture_forward(module, list(inputs)).module).graph


def targets(graph: LoopGraph) -> list[str]:
    return [str(node.target) for node in graph.nodes if isinstance(node, ExternKernel)]


def linear(x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.linear(x, w, b)


def without_bias(x: Any, w: Any) -> Any:
    return x @ w.t()


def answer(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """Says what every measurement finds; returns the GEMMs that were measured."""
    asked: list[Any] = []
    monkeypatch.setattr(
        gemm_choice,
        "measure",
        lambda gemm, *rest: asked.append(gemm) or {"aten": 0.0, name: -1.0 * (name != "aten")},
    )
    return asked


@pytest.mark.parametrize("fastest", ["aten", "onednn", "ours"])
def test_answer_is_used_and_kept(
    fastest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, fastest)
    store = Store(tmp_path)
    x, w, b = torch.randn(6, 8), torch.randn(5, 8), torch.randn(5)
    for _ in range(2):
        graph = choose_library_kernels(lowered(linear, x, w, b), store, 1)
        onednn = fastest == "onednn"
        expected = "mkldnn._linear_pointwise.default" if onednn else "aten.addmm.default"
        assert targets(graph) == [expected]
        assert any(getattr(node, "ours", False) for node in graph.nodes) == (fastest == "ours")
        torch.testing.assert_close(interpret_graph(graph, [x, w, b])[0], linear(x, w, b))
    assert len(asked) == 1
    [kept] = tmp_path.glob("gemms/*/*.json")
    [(ratios, measurements, _)] = json.loads(opened(kept.read_bytes())).values()
    assert min(ratios, key=ratios.get) == fastest and measurements == 1


@pytest.mark.parametrize(
    ("ratios", "chosen", "narrow"),
    [
        ({"aten": 0.0, "ours": -0.3}, "ours", False),
        ({"aten": 0.0, "ours": -0.04}, "aten", True),
        ({"aten": 0.0, "ours": 0.5}, "aten", False),
        ({"aten": 0.0, "ours": -0.29, "packed": -0.3}, "ours", True),
        ({"aten": 0.0, "ours": -0.2, "packed": -0.3}, "ours", False),
        ({"aten": 0.0, "ours": -0.2, "packed": -0.4}, "packed", False),
        ({"aten": 0.0, "ours": -0.6, "packed": -0.3}, "ours", False),
        # oneDNN's sums are less exact.
        ({"aten": 0.0, "ours": 0.5, "packed": -0.05}, "aten", True),
        ({"aten": 0.0, "onednn": -0.1}, "aten", False),
        ({"aten": 0.0, "onednn": -0.2}, "onednn", False),
        ({"aten": 0.0, "ours": -0.1, "onednn": -0.15}, "ours", True),
        # Without a copy of the weight, unless a copy pays.
        ({"aten": 0.0, "ours": -0.33, "packed": -0.2, "plain": -0.3}, "plain", True),
        ({"aten": 0.0, "ours": -0.5, "packed": -0.2, "plain": -0.3}, "ours", False),
    ],
)
def test_another_gemm_must_be_clearly_faster(ratios: Any, chosen: str, narrow: bool) -> None:
    assert (gemm_choice.choice_of(ratios), Answer(ratios, 1, 0).is_narrow(chosen)) == (chosen, narrow)


def test_a_noisy_answer_is_not_kept_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [{"aten": 0.0, "onednn": 0.02}, {"aten": 0.0, "onednn": -0.5}]
    monkeypatch.setattr(gemm_choice, "measure", lambda *_: found.pop(0))
    graph = lowered(linear, torch.randn(6, 8), torch.randn(5, 8), torch.randn(5))
    chosen = []
    for process in (1, 1, 2, 3):
        monkeypatch.setattr(answers.os, "getpid", lambda process=process: process)
        chosen += targets(choose_library_kernels(graph, Store(tmp_path), 1))
    assert ["mkldnn" in target for target in chosen] == [False, False, True, True]
    assert not found


def test_answers_of_other_candidates_are_not_mixed() -> None:
    one = Answer({"aten": 0.0}, 2, 1)
    other = Answer({"aten": 0.0, "packed": -0.2}, 1, 2)
    assert one.joined(other) is other
    both = other.joined(Answer({"aten": 0.0, "packed": -0.4}, 1, 3))
    assert both.ratios["packed"] == pytest.approx(-0.3) and both.measurements == 2


@pytest.mark.parametrize(
    "sizes", [(256, 768, 768), (254, 30522, 768), (20000, 64, 4096), (2, 4096, 25088), (1, 3, 10)]
)
def test_measured_sizes(sizes: Any) -> None:
    linear = SimpleNamespace(**dict(zip("mnk", sizes)), dtype=torch.float32)
    m, n, k = gemm_trials.measured_sizes(linear)  # type: ignore[arg-type]
    size, flops = 4 * n * k, 2 * m * n * k
    assert flops <= gemm_trials.MOST_FLOPS and size <= gemm_trials.MOST_TRIED
    whole = (m, n, k) == sizes
    assert whole or 2 * flops > gemm_trials.MOST_FLOPS or 2 * size > gemm_trials.MOST_TRIED


def test_gemms_of_other_forms_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "onednn")
    store = Store(tmp_path)
    x, w = torch.randn(6, 8), torch.randn(8, 5)
    strided = choose_library_kernels(lowered(lambda x, w: x @ w[:, ::2], x, w), store, 1)
    assert targets(strided) == ["aten.mm.default"]
    turned = choose_library_kernels(lowered(without_bias, x, w.t().contiguous()), store, 1)
    assert targets(turned) == ["mkldnn._linear_pointwise.default"]
    double = [x.double(), w.t().contiguous().double()]
    assert targets(choose_library_kernels(lowered(without_bias, *double), store, 1)) == [
        "aten.mm.default"
    ]


@pytest.mark.parametrize("offset", [0, 16])
def test_weight_stored_by_columns_is_turned(
    offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "onednn")

    def program(x: Any, w: Any, b: Any) -> Any:
        return torch.addmm(b, x, w.sin_()[offset // 8 :])  # written before it is turned

    x, w, b = torch.randn(6, 70), torch.randn(70 + offset // 8, 8), torch.randn(8)
    graph = choose_library_kernels(lowered(program, x, w.clone(), b), Store(tmp_path), 1)
    assert targets(graph) == ["mkldnn._linear_pointwise.default"]
    expected = program(x, w.clone(), b)
    torch.testing.assert_close(interpret_graph(graph, [x, w.clone(), b])[0], expected)
    with config.patch(library_kernels="measure"), torch.no_grad():
        mine = w.clone()
        compiled = compile_fx(torch.fx.symbolic_trace(program), [x, mine, b])
        torch.testing.assert_close(compiled(x, mine, b), expected)
        torch.testing.assert_close(mine, w.sin())


@pytest.mark.parametrize("columns", [False, True])
def test_real_measurement_gives_an_answer(columns: bool, tmp_path: Path) -> None:
    weight = torch.randn(64, 64).t() if columns else torch.randn(64, 64)
    graph = lowered(linear, torch.randn(64, 64), weight, torch.randn(64))
    [node] = [n for n in graph.nodes if isinstance(n, ExternKernel)]
    gemm = as_linear(node, graph.layouts(), ())
    assert gemm is not None
    sizes_and_kind = (64, 64, 64, True, columns, False, False, False, "torch.float32")
    assert gemm.shape_class() == sizes_and_kind
    asked: list[Any] = []

    def multiply(x: Any, w: Any, b: Any, out: Any, threads: int) -> None:
        asked.append(torch.addmm(b, x, w, out=out))

    ours = SimpleNamespace(multiply=multiply)
    found = gemm_trials.measure(gemm, ours, 1)  # type: ignore[arg-type]
    assert found.keys() == {"aten", "onednn", "ours"} and found["aten"] == 0.0
    assert asked


def test_a_left_side_by_columns_is_measured_as_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the gradient of a weight: ATen's GEMM or ours, of such a tensor."""
    graph = lowered(lambda g, x: g.t() @ x, torch.randn(40, 24), torch.randn(40, 32))
    [node] = [n for n in graph.nodes if isinstance(n, ExternKernel)]
    gemm = as_linear(node, graph.layouts(), ())
    assert gemm is not None and gemm.turned and gemm.columns
    strides: set[Any] = set()

    def multiply(x: Any, w: Any, b: Any, out: Any, threads: int) -> None:
        strides.add(x.stride())
        torch.mm(x, w, out=out)

    ours = SimpleNamespace(multiply=multiply)
    found = gemm_trials.measure(gemm, ours, 1)  # type: ignore[arg-type]
    assert found.keys() == {"aten", "ours"} and strides == {(1, 24)}
    chooser = gemm_choice.Chooser(Store(tmp_path), 1)
    monkeypatch.setattr(gemm_choice, "measure", lambda *_: pytest.fail("it is too small"))
    assert chooser.fastest(gemm) == "aten"


def test_without_time_the_nearest_answer_or_the_usual_one_is_taken(tmp_path: Path) -> None:
    chooser = gemm_choice.Chooser(Store(tmp_path), 1)
    shapes = ViewRef("x", (9, 40), (40, 1), 0, torch.float32)

    def chosen(m: int, n: int, k: int, columns: bool = False) -> str:
        linear = Linear(m, n, k, shapes, shapes, None, columns, False)
        with trials.spending(0.0):
            return chooser.fastest(linear)

    assert chosen(64, 64, 64) == "aten"
    near = Answer({"aten": 0.0, "onednn": -0.5}, 1, 1)
    far = Answer({"aten": 0.0, "onednn": 0.5}, 1, 1)
    kind = (False, False, False, False, False, "torch.float32")
    chooser.answers.known = {
        repr((128, 64, 64, *kind)): near,
        repr((1024, 64, 64, *kind)): far,
        repr((64, 64, 64, False, True, True, False, False, "torch.float32")): far,
    }
    assert [chosen(64, 64, 64), chosen(2000, 64, 64), chosen(64, 64, 64, True)] == [
        "onednn", "aten", "aten",
    ]  # fmt: skip
    assert not chooser.answers.added


@pytest.mark.parametrize("steady", [False, True])
def test_a_disturbed_measurement_with_all_threads_does_not_count(
    steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = ViewRef("x", (9, 40), (40, 1), 0, torch.float32)
    gemm = Linear(9, 24, 40, shapes, shapes, shapes, False, False)

    clocks: list[Any] = []

    def compare(ways: Any, usual: str, margin: float, clock: Any, *rest: Any) -> Any:
        assert usual == "aten"
        clocks.append(clock)
        if clock is time.thread_time:
            assert torch.get_num_threads() == 1
            return {"aten": 0.0, "onednn": math.log(0.5)}
        return {"aten": 0.0, "onednn": math.log(8.0)}

    monkeypatch.setattr(gemm_trials, "compare", compare)
    monkeypatch.setattr(gemm_trials, "STEADY", -1.0 if steady else 1e9)
    before = torch.get_num_threads()
    found = gemm_trials.measure(gemm, None, 2)
    assert torch.get_num_threads() == before
    assert found["onednn"] == pytest.approx(math.log(8.0 if steady else 0.5))
    # One thread is asked only where all threads tell nothing: it takes longest.
    assert clocks == ([time.perf_counter] if steady else [time.perf_counter, time.thread_time])
    clocks.clear()
    gemm_trials.measure(gemm, None, 1)
    assert clocks == [time.thread_time]


@pytest.mark.parametrize("columns", [False, True])
def test_candidates_compute_the_same(columns: bool) -> None:
    shapes = ViewRef("x", (9, 40), (40, 1), 0, torch.float32)
    gemm = Linear(9, 24, 40, shapes, shapes, shapes, columns, True)
    x, weight, bias = torch.randn(9, 40), torch.randn(24, 40), torch.randn(24)
    panels = SimpleNamespace(
        panels=lambda w: w, multiply=lambda x, w, b, *_: torch.addmm(b, x, w),
        is_plain=lambda m, k: True)  # fmt: skip
    found = gemm_trials.candidates_of(gemm, panels, x, [weight], bias)  # type: ignore[arg-type]
    assert found.keys() == {"aten", "packed", "ours"} | ({"plain"} if not columns else set())
    for name, make in found.items():
        (call,) = make(1)
        result = call.func(*call.args)
        if isinstance(result, torch.Tensor):
            torch.testing.assert_close(result, torch.addmm(bias, x, weight.t()), msg=name)


def test_where_most_time_is_spent_is_measured_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int, int]] = []

    def measure(linear: Linear, *_: Any) -> dict[str, float]:
        sizes.append((linear.m, linear.n, linear.k))
        return {"aten": 0.0, "onednn": -1.0}

    def program(x: Any, few: Any, many: Any, most: Any) -> Any:
        for _ in range(9):  # together more than the larger one
            x = x @ many
        return x @ few, x @ most

    monkeypatch.setattr(gemm_choice, "measure", measure)
    given = [torch.randn(size) for size in ((6, 16), (16, 4), (16, 16), (16, 90))]
    graph = choose_library_kernels(lowered(program, *given), Store(tmp_path), 1)
    assert sizes == [(6, 16, 16), (6, 90, 16), (6, 4, 16)]
    assert targets(graph) == ["mkldnn._linear_pointwise.default"] * 11


def test_without_a_gemm_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise BuildError("this compiler has no vectors")

    monkeypatch.setattr(gemm_choice, "load_gemm", refuse)
    monkeypatch.setattr(gemm_choice, "FEWEST_OPERATIONS", 1)
    asked: list[Any] = []
    monkeypatch.setattr(
        gemm_choice, "measure", lambda linear, ours, threads: asked.append(ours) or {"aten": 0.0, "ours": -1.0}
    )
    x, w, b = torch.randn(6, 8), torch.randn(5, 8), torch.randn(5)
    graph = choose_library_kernels(lowered(linear, x, w, b), Store(tmp_path), 1)
    assert targets(graph) == ["aten.addmm.default"]
    assert asked == [None]
    assert not any(getattr(node, "ours", False) for node in graph.nodes)
