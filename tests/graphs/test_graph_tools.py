"""Tools on graphs: costs, pictures, parts, rewriting, folding, int8."""

from __future__ import annotations

import doctest
import importlib
import pickle
import random
import re
import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

import dynamo
from dynamo import graphs
from dynamo.graphs.copies import copied
from dynamo.graphs.cost import Peaks, flops_of

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")
MODULES = ("lines", "cost", "draw", "fold", "split", "quantize", "rewrite", "streams", "kernels")


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str) -> None:
    module = importlib.import_module(f"dynamo.graphs.{name}")
    found = doctest.testmod(module, extraglobs={"torch": torch, "fx": fx})
    assert found.attempted and not found.failed


def graph_of(f: Callable[..., Any], *args: Any) -> fx.GraphModule:
    with torch.no_grad():
        return dynamo.export(f, *args)[0]


def network(norm: bool = True) -> torch.nn.Module:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8) if norm else torch.nn.Identity(),
        torch.nn.ReLU(inplace=True), torch.nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=2),
        torch.nn.BatchNorm2d(8) if norm else torch.nn.Identity(), torch.nn.Flatten(),
        torch.nn.Linear(72, 16), torch.nn.GELU(), torch.nn.Linear(16, 5),
    )
    for value in (*net.parameters(), *net.buffers()):
        if value.is_floating_point():
            torch.nn.init.uniform_(value, 0.1, 0.5)
    return net.eval()


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class TestCost:
    def test_products_and_convolutions(self) -> None:
        def f(x: Any, w: Any, image: Any, kernel: Any) -> Any:
            return x @ w, F.conv2d(image, kernel)

        args = torch.ones(4, 8), torch.ones(8, 16), torch.ones(1, 3, 6, 6), torch.ones(5, 3, 3, 3)
        product, convolution = graphs.analyze(graph_of(f, *args), *args).nodes
        assert product.flops == 2 * 4 * 8 * 16
        assert product.moved == 4 * (4 * 8 + 8 * 16 + 4 * 16)
        assert convolution.flops == 2 * 5 * 3 * 3 * 3 * 4 * 4

    def test_views_cost_nothing_and_tables_only_what_is_read(self) -> None:
        def f(table: Any, at: Any) -> Any:
            return F.embedding(at, table).transpose(0, 1)

        args = torch.ones(1000, 4), torch.tensor([1, 2])
        rows, turned = graphs.analyze(graph_of(f, *args), *args).nodes
        assert (rows.flops, rows.moved) == (0, 4 * 8 + 4 * 8 + 8 * 2)
        assert (turned.flops, turned.moved) == (0, 0)

    def test_attention(self) -> None:
        q, k = torch.ones(1, 2, 4, 8), torch.ones(1, 2, 6, 8)
        graph = graph_of(lambda *args: F.scaled_dot_product_attention(*args), q, k, k)
        cost, = graphs.analyze(graph, q, k, k).nodes
        assert cost.flops == 2 * 2 * 4 * 6 * (8 + 8)

    def test_lines_of_the_program(self) -> None:
        def f(x: Any) -> Any:
            y = x.sin() + x.cos()
            return y * 2

        x = torch.ones(10)
        first, second = graphs.analyze(graph_of(f, x), x).by_line()
        assert (first.count, first.flops, second.count) == (3, 30, 1)
        assert first.line.text == "y = x.sin() + x.cos()" and second.line.text == "return y * 2"
        assert first.line.number + 1 == second.line.number

    def test_the_table_says_what_limits(self) -> None:
        net = network()
        costs = graphs.analyze(graph_of(net, IMAGES), IMAGES, peaks=Peaks(1e9, 1e12), measure=1)
        text = str(costs)
        assert "total" in text and "compute" in text and "of best" in text
        assert all(node.seconds is not None and node.seconds > 0 for node in costs.nodes)
        memory = graphs.Costs(costs.nodes, Peaks(1e18, 1e9))
        assert "memory" in str(memory) and "compute" not in str(memory)

    def test_nothing_is_computed_without_measuring(self) -> None:
        class Large(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x @ x

        large = torch.empty(1 << 20, 1 << 20, device="meta")
        assert graphs.analyze(fx.symbolic_trace(Large()), large).flops == 2 << 60

    def test_an_operator_into_its_argument(self) -> None:
        x = torch.ones(6)
        assert flops_of(torch.ops.aten.add.Tensor, (x, 1), {}, torch.ones(6)) == 6

    def test_peaks(self) -> None:
        peaks = graphs.measure_peaks()
        assert peaks.flops > 1e8 and peaks.bandwidth > 1e7


class TestDraw:
    def test_every_operation_has_a_box(self, tmp_path: Path) -> None:
        graph = graph_of(network(), IMAGES)
        text = graphs.draw(graph, tmp_path / "net.svg").read_text()
        boxes = xml.dom.minidom.parseString(text).getElementsByTagName("rect")
        shown = [node for node in graph.graph.nodes if node.op != "get_attr"]
        assert len(boxes) == len(shown) + len({*graphs.modules_of(graph.graph).values()} - {""})
        assert "float32[2, 8, 6, 6]" in text

    def test_boxes_of_a_row_do_not_overlap(self) -> None:
        def f(x: Any) -> Any:
            return sum(x * n for n in range(2, 9))

        text = graphs.to_svg(graph_of(f, torch.ones(2)))
        boxes = xml.dom.minidom.parseString(text).getElementsByTagName("rect")
        places = sorted((float(b.getAttribute("y")), float(b.getAttribute("x"))) for b in boxes)
        for (row, x), (next_row, next_x) in zip(places, places[1:]):
            assert row != next_row or next_x - x >= 150

    def test_no_line_passes_a_box(self) -> None:
        def f(x: Any) -> Any:
            a = x.sin()
            b = a.cos().tanh() + a
            return [b.exp() + x, b.neg().abs() + a, a.sum()]

        text = graphs.to_svg(graph_of(f, torch.ones(2)))
        boxes = [[float(v) for v in row] for row in re.findall(
            r'<rect x="(\d+)" y="(\d+)" width="(150)" height="(34)"', text)]
        turns = 0
        for path in re.findall(r'<path d="([^"]*)"', text):
            points = [(float(x), float(y)) for x, y in re.findall(r"(-?\d+),(-?\d+)", path)]
            assert len(boxes) and all(
                not (x < px < x + w and y < py < y + h) for px, py in points for x, y, w, h in boxes)
            for px, py in re.findall(r"L(\d+),(\d+)", path):  # straight down, beside the boxes
                turns += 1
                assert all(not (x < float(px) < x + w) for x, y, w, h in boxes if y + h == float(py))
        assert turns > 3

    def test_what_has_no_module_has_no_colour(self) -> None:
        graph = graph_of(network(), IMAGES)
        found = graphs.modules_of(graph.graph)
        assert any(found.values()) and not all(found.values())
        for node, label in found.items():
            weights = any(given.op == "get_attr" for given in node.all_input_nodes)
            assert bool(label) is (weights or node.op == "call_module"), node

    def test_labels_and_pages(self, tmp_path: Path) -> None:
        graph = graph_of(lambda x: x.sin().cos(), torch.ones(2))
        page = graphs.draw(graph, tmp_path / "f.html", lambda node: "kernel_0 <&>").read_text()
        assert "kernel_0 &lt;&amp;&gt;" in page and "<svg" in page
        with pytest.raises(ValueError, match="neither in .svg nor in .html"):
            graphs.draw(graph, tmp_path / "f.png")


class TestSplit:
    def test_parts_of_random_graphs(self) -> None:
        for seed in range(30):
            chosen = random.Random(seed)
            plan = [(chosen.random() < 0.5, chosen.randrange(count), chosen.randrange(count))
                    for count in range(2, 14)]

            def f(x: Any, plan: Any = plan) -> Any:
                values = [x, x + 1]
                for unary, left, right in plan:
                    values.append(values[left].sin() if unary else values[left] * values[right])
                return values[-1] + values[-3], values[5]

            x = torch.randn(3)
            graph = graph_of(f, x)
            parts = graphs.split_by(graph, lambda node: node.target == "sin")
            torch.testing.assert_close(parts(x), graph(x), rtol=0, atol=0)
            for _, part in parts.named_children():
                kinds = {node.target == "sin" for node in part.graph.nodes
                         if node.op.startswith("call")}
                assert len(kinds) == 1

    def test_writes_keep_the_order(self) -> None:
        def f(x: Any) -> Any:
            y = x.clone()
            view = y[1:]
            a = view.sin()
            y.mul_(3)
            return a, view.sin(), y

        x = torch.randn(4)
        graph = graph_of(f, x)
        parts = graphs.split_by(graph, lambda node: node.target == "sin")
        torch.testing.assert_close(parts(x), f(x), rtol=0, atol=0)

    @pytest.mark.parametrize("count", [1, 2, 3, 9])
    def test_stages(self, count: int) -> None:
        net = network()
        graph = graph_of(net, IMAGES)
        stages = graphs.split_stages(graph, count, IMAGES)
        assert [name for name, _ in stages.named_children() if name.startswith("part_")] == [
            f"part_{at}" for at in range(count)]
        torch.testing.assert_close(stages(IMAGES), graph(IMAGES), rtol=0, atol=0)

    def test_stages_are_balanced(self) -> None:
        layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        x = torch.ones(4, 64)
        stages = graphs.split_stages(graph_of(layers, x), 4, x)
        sizes = [sum(node.op == "call_function" for node in stages.get_submodule(f"part_{at}").graph.nodes)
                 for at in range(4)]
        assert sizes == [2, 2, 2, 2]

    def test_too_many_stages(self) -> None:
        with pytest.raises(ValueError, match="1 operations can't make 2 stages"):
            graphs.split_stages(graph_of(lambda x: x.sin(), torch.ones(2)), 2, torch.ones(2))


class TestRewrite:
    def test_writes_stay(self) -> None:
        def f(x: Any) -> Any:
            y = torch.sigmoid(x) - 0.5
            F.relu(y, inplace=True)
            return y + 1

        x = torch.randn(5)
        graph = graph_of(f, x)
        pattern, by = (graph_of(g, x) for g in (lambda y: torch.sigmoid(y), lambda y: y.tanh()))
        made, count = graphs.rewrite(graph, pattern, by)
        assert count == 1
        torch.testing.assert_close(made(x), (x.tanh() - 0.5).relu() + 1)

    def test_every_occurrence(self) -> None:
        def f(x: Any) -> Any:
            return torch.relu(torch.relu(x) + 1)

        x = torch.randn(5)
        graph = graph_of(f, x)
        pattern, by = graph_of(lambda y: torch.relu(y), x), graph_of(lambda y: y.clamp(max=0), x)
        made, count = graphs.rewrite(graph, pattern, by)
        assert count == 2
        torch.testing.assert_close(made(x), (x.clamp(max=0) + 1).clamp(max=0))
        torch.testing.assert_close(graph(x), f(x))  # the given one is as it was

    def test_arguments_must_match(self) -> None:
        x = torch.ones(2)
        graph, two = graph_of(lambda x: x.sin(), x), graph_of(lambda x, y: x + y, x, torch.ones(2))
        with pytest.raises(ValueError, match="the pattern has 2 arguments, its replacement 1"):
            graphs.rewrite(graph, two, graph)


class TestFold:
    def test_against_float64(self) -> None:
        net = network()
        graph = graph_of(net, IMAGES)
        folded = graphs.fold_batch_norms(graph)
        assert not [node for node in folded.graph.nodes if node.target is F.batch_norm]
        exact = copied(net).double()(IMAGES.double())
        worst = (folded(IMAGES) - exact).abs().max()
        assert worst <= 3 * max((net(IMAGES) - exact).abs().max(), 1e-7 * exact.abs().max())
        assert [node for node in graph.graph.nodes if node.target is F.batch_norm]

    def test_linear_layers(self) -> None:
        net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3, affine=False)).eval()
        net[1].running_mean.uniform_()
        x = torch.randn(5, 4)
        folded = graphs.fold_batch_norms(graph_of(net, x))
        assert len([node for node in folded.graph.nodes if node.op == "call_function"]) == 1
        torch.testing.assert_close(folded(x), net(x))

    def test_what_stays(self) -> None:
        class Both(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.norm = torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)

            def forward(self, x: Any) -> Any:
                y = self.layer(x)
                return y, self.norm(y)

        class Rows(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.norm = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(3)

            def forward(self, x: Any) -> Any:
                return self.norm(self.layer(x))  # channels are the middle dimension

        for net, x in ((Both().eval(), IMAGES), (Rows().eval(), torch.randn(2, 3, 4))):
            folded = graphs.fold_batch_norms(graph_of(net, x))
            assert [node for node in folded.graph.nodes if node.target is F.batch_norm]
            torch.testing.assert_close(folded(x), net(x))


class TestInt8:
    def near(self, got: torch.Tensor, want: torch.Tensor) -> None:
        assert (got - want).abs().max() < 0.02 * want.abs().max()

    def test_forms_and_compiled(self) -> None:
        net = network(norm=False)
        graph, want = graph_of(net, IMAGES), net(IMAGES)
        static = graphs.convert(graph, graphs.calibrate(graph, [(IMAGES,), (IMAGES * 0.5,)]))
        dynamo.reset()
        dynamo.counters.clear()
        for form in (graphs.quantize_dynamic(graph), static):
            self.near(form(IMAGES), want)
            with torch.no_grad():
                compiled = dynamo.compile(form)
                torch.testing.assert_close(compiled(IMAGES), form(IMAGES))
                torch.testing.assert_close(compiled(2 * IMAGES), form(2 * IMAGES))
        assert not dynamo.counters["graph_break"] and not dynamo.counters["not_compiled"]
        kinds = [value.dtype for value in static.buffers() if value.dtype is torch.int8]
        assert len(kinds) == 4

    def test_weights_that_are_written_are_packed_again(self) -> None:
        layer, x = torch.nn.Linear(16, 8), torch.randn(3, 16)
        form = graphs.quantize_dynamic(graph_of(layer, x))
        before = form(x)
        form.linear_int8.neg_()
        torch.testing.assert_close(form(x) - layer.bias, layer.bias - before + 0 * x[:, :1], rtol=0, atol=1e-5)

    def test_weights_that_overflow_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        form = graphs.quantize_dynamic(graph_of(torch.nn.Linear(16, 8), torch.randn(3, 16)))
        assert form.linear_int8.abs().max() == 64
        form.linear_int8.fill_(-128)
        with pytest.raises(ValueError, match="no VNNI"):
            form(torch.randn(3, 16))

    def test_saved_and_copied(self) -> None:
        layer, x = torch.nn.Linear(16, 8), torch.randn(3, 16)
        form = graphs.quantize_dynamic(graph_of(layer, x))
        twin = copied(form)
        restored = pickle.loads(pickle.dumps(form.state_dict()))
        twin.load_state_dict(restored)
        assert torch.equal(twin(x), form(x))

    def test_values_that_are_not_finite(self) -> None:
        layer, x = torch.nn.Linear(16, 8), torch.randn(3, 16)
        graph = graph_of(layer, x)
        for bad in (float("nan"), float("inf")):
            worse = x.clone()
            worse[0, 0] = bad
            assert graphs.quantize_dynamic(graph)(worse)[0].isnan().all()
            with pytest.raises(ValueError, match="can't calibrate"):
                graphs.calibrate(graph, [(worse,)])

    def test_zeros_and_weights_of_zeros(self) -> None:
        layer = torch.nn.Linear(16, 8)
        torch.nn.init.zeros_(layer.weight)
        form = graphs.quantize_dynamic(graph_of(layer, torch.zeros(3, 16)))
        torch.testing.assert_close(form(torch.zeros(3, 16)), layer.bias.expand(3, 8))

    def test_no_samples(self) -> None:
        with pytest.raises(ValueError, match="needs a sample"):
            graphs.calibrate(graph_of(torch.nn.Linear(2, 2), torch.ones(1, 2)), [])

    @pytest.mark.parametrize("how", [{}, {"padding": 1}, {"stride": 2}, {"dilation": 2}, {"groups": 4}])
    def test_convolutions(self, how: dict[str, int]) -> None:
        torch.manual_seed(0)
        layer, x = torch.nn.Conv2d(8, 12, 3, **how), torch.randn(2, 8, 9, 9)
        graph = graph_of(layer, x)
        got = graphs.convert(graph, graphs.calibrate(graph, [(x,)]))(x)
        self.near(got, layer(x))
