"""The choice of library products: kept on disk, the same results, only where the form fits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynamo.aot.capture import capture_forward
from inductor import compile_fx, library_kernels
from inductor.config import config
from inductor.ir.graph import ExternKernel, LoopGraph
from inductor.ir.interpret import interpret_graph
from inductor.library_kernels import choose_library_kernels
from inductor.lowering.run import lower_graph
from inductor.runtime.build import BuildError
from inductor.runtime.store import Store


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
    """Says what every measurement finds; returns the products that were measured."""
    asked: list[Any] = []
    monkeypatch.setattr(
        library_kernels, "_measure", lambda product, *rest: asked.append(product) or name
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
    [kept] = tmp_path.glob("products/*/*.json")
    assert list(json.loads(kept.read_text()).values()) == [fastest]


def test_measuring_ends_when_it_is_calm_or_the_seconds_are_over() -> None:
    ticks = iter(range(10**9))
    assert library_kernels._fastest([list, list], lambda: next(ticks), 60.0) == ([1, 1], True)
    assert library_kernels._fastest([list], lambda: next(ticks), 0.0) == ([float("inf")], False)
    shrinking = iter(step for n in range(10**9) for step in (0.0, 0.9**n))
    naps = [lambda: time.sleep(0.002)]
    assert not library_kernels._fastest(naps, lambda: next(shrinking), 0.01)[1]


@pytest.mark.parametrize(
    ("ours", "calm", "chosen"),
    [(0.8, True, "ours"), (0.95, True, "aten"), (0.8, False, "aten"), (0.4, False, "ours")],
)
def test_what_was_cut_off_must_be_faster_by_far(ours: float, calm: bool, chosen: str) -> None:
    assert library_kernels._choice({"aten": 1.0, "ours": ours}, calm) == chosen


def test_small_products_are_measured_for_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []

    def never_calm(candidates: Any, clock: Any, most: float) -> Any:
        seconds.append(most)
        return [1.0] * len(candidates), False

    monkeypatch.setattr(library_kernels, "_fastest", never_calm)
    for size in (8, 256, 645, 2000):
        product = SimpleNamespace(m=size, n=size, k=size, bias=None, columns=False, frozen=False)
        assert library_kernels._measure(product, None, 1) == "aten"  # type: ignore[arg-type]
    assert seconds[:2] == [0.05, 0.05] and all(0.2 < most <= 0.5 for most in seconds[2:])


def test_products_of_other_forms_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    product = library_kernels._as_linear(node, graph.layouts(), ())
    assert product is not None
    assert product.shape_class() == (64, 64, 64, True, columns, False)
    asked: list[Any] = []

    def multiply(x: Any, w: Any, b: Any, out: Any, threads: int) -> None:
        asked.append(torch.addmm(b, x, w, out=out))

    ours = SimpleNamespace(multiply=multiply)
    assert library_kernels._measure(product, ours, 1) in library_kernels.REWRITES
    assert asked


def test_without_a_product_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise BuildError("this compiler has no vectors")

    monkeypatch.setattr(library_kernels, "load_product", refuse)
    monkeypatch.setattr(library_kernels, "FEWEST_OPERATIONS", 1)
    asked: list[Any] = []
    monkeypatch.setattr(
        library_kernels, "_measure", lambda linear, ours, threads: asked.append(ours) or "ours"
    )
    x, w, b = torch.randn(6, 8), torch.randn(5, 8), torch.randn(5)
    graph = choose_library_kernels(lowered(linear, x, w, b), Store(tmp_path), 1)
    assert targets(graph) == ["aten.addmm.default"]
    assert asked == [None]
    assert not any(getattr(node, "ours", False) for node in graph.nodes)
