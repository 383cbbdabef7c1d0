"""Which library computes a matrix product: measured once for each machine and shape class.

In: a loop graph whose products are ATen's. Out: the same graph where some are computed by something
else with the same result. ATen's products of float32 go through MKL, which is slow on some
processors; oneDNN, in the same torch, is not. It wants the weight as [n, k]: one stored as [k, n]
is turned by a kernel first. Our own product (`codegen/cpp/product.py`) takes both and writes where
the result shall lie. What was measured is kept in the cache folder.

Frozen weights (`freezing.py`) are turned, put in the order in which our product reads them, or made
channels last for convolutions, once: the graph gets what was prepared as further inputs.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynamo.base import logs
from inductor.codegen.cpp.product import PRODUCT_NAME
from inductor.ir.body import trace_body
from inductor.ir.extent import hint_of
from inductor.ir.graph import (
    ComputedBuffer,
    ExternKernel,
    InputBuffer,
    Layout,
    LoopGraph,
    Node,
    Prepared,
    ViewRef,
)
from inductor.runtime.build import BuildError
from inductor.runtime.products import Product, load_product
from inductor.runtime.store import Store, make_key
from inductor.runtime.toolchain import describe_isa, find_toolchain
from inductor.scheduler.dependencies import written_in_place

aten = torch.ops.aten
MOST_FLOPS = 1 << 29
CALM_ROUNDS = 4
# For products of MOST_FLOPS, and for small ones, which repay less.
MOST_SECONDS, FEWEST_SECONDS = 0.5, 0.05
# Another product must be clearly faster: measurements are noisy, most so where they were cut off.
ADVANTAGE, ADVANTAGE_WHEN_CUT_OFF = 0.9, 0.5
# Below, our own product is not worth building its library.
FEWEST_OPERATIONS = 1 << 22


@dataclass(frozen=True, slots=True)
class Linear:
    """x [m, k] times the transpose of weight [n, k], plus bias [n] or nothing.

    m, n, k: what they are at the compile, where they are known at a call only; columns: the weight
    lies in memory as [k, n].
    """

    m: int
    n: int
    k: int
    x: ViewRef
    weight: ViewRef
    bias: ViewRef | None
    columns: bool
    frozen: bool

    def shape_class(self) -> tuple[int, int, int, bool, bool, bool]:
        """Sizes, each rounded up to a power of two: products of one class behave alike."""
        m, n, k = (1 << (size - 1).bit_length() for size in (self.m, self.n, self.k))
        return m, n, k, self.bias is not None, self.columns, self.frozen


def choose_library_kernels(
    graph: LoopGraph, store: Store, threads: int, frozen: Collection[int] = ()
) -> LoopGraph:
    """The graph with each product computed by what was fastest for its class.

    frozen: positions of inputs that hardly ever change.
    """
    if graph.device.type != "cpu":
        return graph
    return _Rewriter(graph, _Chooser(store, threads), frozen).run()


class _Rewriter:
    def __init__(self, graph: LoopGraph, chooser: _Chooser, frozen: Collection[int]) -> None:
        self.graph = graph
        self.chooser = chooser
        self.layouts = graph.layouts()
        written = {name for node in graph.nodes for name in written_in_place(node)}
        self.frozen = {
            buffer.name: position
            for position, buffer in enumerate(graph.inputs)
            if position in frozen and buffer is not None and buffer.name not in written
        }
        self.inputs: dict[tuple[str, ViewRef], tuple[InputBuffer, Prepared]] = {}

    def run(self) -> LoopGraph:
        nodes: list[Node] = []
        for node in self.graph.nodes:
            linear = None
            if isinstance(node, ExternKernel):
                node = self.with_last_weight(node)
                linear = _as_linear(node, self.layouts, self.frozen)
            if linear is None:
                nodes.append(node)
            else:
                assert isinstance(node, ExternKernel)
                nodes += REWRITES[self.chooser.fastest(linear)](self, node, linear)
        self.chooser.save()
        inputs = (*self.graph.inputs, *(buffer for buffer, _ in self.inputs.values()))
        prepared = tuple(item for _, item in self.inputs.values())
        return replace(self.graph, nodes=tuple(nodes), inputs=inputs, prepared=prepared)

    def with_last_weight(self, node: ExternKernel) -> ExternKernel:
        """A channels-last convolution reads a weight in the same format, if that is frozen."""
        if node.target is not aten.convolution.default:
            return node
        x, weight, *rest = node.args
        if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef) or node.args[6]:
            return node
        if weight.buffer not in self.frozen or len(x.size) != 4 or x.stride != _last(x.size):
            return node
        stride = _last(weight.size)
        layout = Layout(self.graph.device, weight.dtype, weight.size, stride)
        name = self.prepare("channels_last", weight, layout, _in_last_format)
        return replace(node, args=(x, replace(weight, buffer=name, stride=stride, offset=0), *rest))

    def by_aten(self, node: ExternKernel, linear: Linear) -> list[Node]:
        return [node]

    def by_onednn(self, node: ExternKernel, linear: Linear) -> list[Node]:
        nodes: list[Node] = []
        weight = linear.weight
        if linear.columns:
            name = f"{node.name}_weight"
            stride = (weight.size[1], 1)
            if linear.frozen:
                layout = Layout(self.graph.device, weight.dtype, weight.size, stride)
                name = self.prepare("turned", weight, layout, torch.Tensor.contiguous)
            else:
                nodes.append(_turned(weight, name, self.graph.device))
            weight = replace(weight, buffer=name, stride=stride, offset=0)
        args = (linear.x, weight, linear.bias, "none", (), "")
        target = torch.ops.mkldnn._linear_pointwise.default
        return [*nodes, replace(node, target=target, args=args)]

    def by_ours(self, node: ExternKernel, linear: Linear) -> list[Node]:
        if not linear.frozen:
            return [replace(node, ours=True)]
        product = self.chooser.ours()
        assert product is not None
        weight = linear.weight
        n, k = weight.size
        whole = replace(weight, size=(k, n), stride=weight.stride[::-1])
        size = (product.panels_size(k, n),)
        layout = Layout(self.graph.device, weight.dtype, size, (1,))
        panels = self.prepare("panels", whole, layout, product.panels)
        return [replace(node, ours=True, panels=panels)]

    def prepare(self, kind: str, view: ViewRef, layout: Layout, make: Callable[..., Any]) -> str:
        """The name of the further input."""
        if (kind, view) not in self.inputs:
            position = len(self.graph.inputs) + len(self.inputs)
            buffer = InputBuffer(f"arg{position}_{kind}", layout, position)
            of_view = functools.partial(_make_of_view, make, view)
            prepared = Prepared((self.frozen[view.buffer],), of_view)
            self.inputs[kind, view] = buffer, prepared
        return self.inputs[kind, view][0].name


def _last(size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense channels-last tensor."""
    _, channels, height, width = size
    return (channels * height * width, 1, width * channels, channels)


def _in_last_format(value: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(value.shape, _last(tuple(value.shape)), dtype=value.dtype)
    return made.copy_(value)


def _make_of_view(make: Callable[..., Any], view: ViewRef, value: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = make(
        value.as_strided(view.size, view.stride, value.storage_offset() + view.offset)
    )
    return made


REWRITES: dict[str, Callable[[_Rewriter, ExternKernel, Linear], list[Node]]] = {
    "aten": _Rewriter.by_aten,
    "onednn": _Rewriter.by_onednn,
    "ours": _Rewriter.by_ours,
}


def _turned(weight: ViewRef, name: str, device: torch.device) -> ComputedBuffer:
    """A contiguous copy of a matrix."""
    rows, columns = weight.stride

    def copy(ops: Any, i: Any, r: Any) -> None:
        value = ops.load(weight.buffer, i[0] * rows + i[1] * columns + weight.offset, weight.dtype)
        ops.store(name, i[0] * weight.size[1] + i[1], value)

    layout = Layout(device, weight.dtype, weight.size, (weight.size[1], 1))
    return ComputedBuffer(name, layout, trace_body(weight.size, (), copy), "pointwise")


def _onednn_products() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _as_linear(
    node: ExternKernel, layouts: dict[str, Layout], frozen: Collection[str]
) -> Linear | None:
    """The product as a linear layer, if it is one of float32 with a dense weight."""
    if node.layout is None or node.layout.dtype is not torch.float32 or node.kwargs:
        return None
    if node.target is aten.mm.default:
        bias, (x, weight) = None, node.args
    elif node.target is aten.addmm.default:
        bias, x, weight = node.args
    else:
        return None
    if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef):
        return None
    (m, k), n = x.size, weight.size[1]
    if x.stride != (k, 1) or weight.stride not in ((1, k), (n, 1)):
        return None
    if node.layout.stride != (n, 1):
        return None
    if isinstance(bias, ViewRef) and (bias.size != (n,) or bias.stride != (1,)):
        return None
    columns = weight.stride == (n, 1)
    turned = replace(weight, size=(n, k), stride=weight.stride[::-1])
    m, n, k = map(hint_of, (m, n, k))
    if min(m, n, k) < 2:
        return None
    bias = bias if isinstance(bias, ViewRef) else None
    return Linear(m, n, k, x, turned, bias, columns, weight.buffer in frozen)


class _Chooser:
    """Answers by shape class; measures those that the cache does not know."""

    def __init__(self, store: Store, threads: int) -> None:
        self.store = store
        self.threads = threads
        self.key = make_key(
            "products",
            {
                "isa": describe_isa(),
                "torch": torch.__version__,
                "threads": str(threads),
                "ours": PRODUCT_NAME,
            },
        )
        known = store.read(self.key, ".json")
        self.answers: dict[str, str] = json.loads(known) if known else {}
        self.measured = False

    def fastest(self, linear: Linear) -> str:
        """A key of `REWRITES`; after "ours" the library is loaded."""
        name = repr(linear.shape_class())
        if name not in self.answers:
            ours = self.ours() if linear.m * linear.n * linear.k >= FEWEST_OPERATIONS else None
            self.answers[name] = _measure(linear, ours, self.threads)
            self.measured = True
        answer = self.answers[name]
        return "aten" if answer == "ours" and self.ours() is None else answer

    def ours(self) -> Product | None:
        toolchain = find_toolchain(self.store)
        if isinstance(toolchain, str):
            return None
        try:
            return load_product(self.store, toolchain)
        except BuildError as error:
            why = str(error)
            logs.log("inductor").emit(lambda: f"there is no product of our own: {why}")
            return None

    def save(self) -> None:
        if self.measured:
            self.store.write(self.key, ".json", json.dumps(self.answers).encode())


def _measure(linear: Linear, ours: Product | None, threads: int) -> str:
    m, n, k = linear.m, linear.n, linear.k
    while 2 * m * n * k > MOST_FLOPS:
        m, n, k = (size if size < max(m, n, k) else size // 2 for size in (m, n, k))
    numbers = torch.Generator().manual_seed(0)  # the program's own is not touched
    x, weight = (torch.randn(rows, k, generator=numbers) for rows in (m, n))
    out = torch.empty(m, n)
    bias = torch.randn(n, generator=numbers) if linear.bias is not None else None
    columns = weight.t().contiguous() if linear.columns else None
    turned = weight.t() if columns is None else columns
    prepared = ours.panels(turned) if ours is not None and linear.frozen else turned

    def by_aten() -> None:
        if bias is None:
            torch.mm(x, turned, out=out)
        else:
            torch.addmm(bias, x, turned, out=out)

    def by_onednn() -> None:
        if columns is not None and not linear.frozen:
            weight.copy_(columns.t())  # our kernel is faster than this
        torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    candidates: dict[str, Callable[[], Any]] = {"aten": by_aten}
    if _onednn_products():
        candidates["onednn"] = by_onednn
    if ours is not None:
        candidates["ours"] = functools.partial(ours.multiply, x, prepared, bias, out, threads)
    with torch.no_grad():
        clock = time.thread_time if threads == 1 else time.perf_counter
        seconds = max(FEWEST_SECONDS, MOST_SECONDS * 2 * m * n * k / MOST_FLOPS)
        times, calm = _fastest(list(candidates.values()), clock, seconds)
    return _choice(dict(zip(candidates, times, strict=True)), calm)


def _choice(times: dict[str, float], calm: bool) -> str:
    best = min(times, key=times.__getitem__)
    advantage = ADVANTAGE if calm else ADVANTAGE_WHEN_CUT_OFF
    return best if times[best] < advantage * times["aten"] else "aten"


def _fastest(
    candidates: list[Callable[[], Any]], clock: Callable[[], float], seconds: float
) -> tuple[list[float], bool]:
    """Shortest time of each, measured in turns until none becomes clearly shorter, or (False) the
    seconds are over."""
    best = [float("inf")] * len(candidates)
    begin, calm = time.perf_counter(), 0
    for call in candidates:
        call()  # warms up
    while calm < CALM_ROUNDS and time.perf_counter() - begin < seconds:
        calm += 1
        for number, call in enumerate(candidates):
            start = clock()
            call()
            spent = clock() - start
            if spent < 0.97 * best[number]:
                calm = 0
            best[number] = min(best[number], spent)
    return best, calm >= CALM_ROUNDS
