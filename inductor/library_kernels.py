"""Which library computes a matrix product: measured once for each machine and shape class.

In: a loop graph whose products are ATen's. Out: the same graph where some are calls of another
library function with the same result. ATen's products of float32 go through MKL, which is slow on
some processors; oneDNN, in the same torch, is not. What was measured is kept in the cache folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor.ir.extent import hint_of
from inductor.ir.graph import ExternKernel, Layout, LoopGraph, ViewRef
from inductor.runtime.store import Store, make_key
from inductor.runtime.toolchain import describe_isa

aten = torch.ops.aten
MOST_FLOPS = 1 << 29
ROUNDS = 3
# The other library must be clearly faster: measurements are noisy, and ATen's product writes into
# memory that is there already.
ADVANTAGE = 0.9


@dataclass(frozen=True, slots=True)
class Linear:
    """x [m, k] times the transpose of weight [n, k], plus bias [n] or nothing.

    m, n, k: what they are at the compile, where they are known at a call only.
    """

    m: int
    n: int
    k: int
    x: ViewRef
    weight: ViewRef
    bias: ViewRef | None

    def shape_class(self) -> tuple[int, int, int, bool]:
        """Sizes, each rounded up to a power of two: products of one class behave alike."""
        m, n, k = (1 << (size - 1).bit_length() for size in (self.m, self.n, self.k))
        return m, n, k, self.bias is not None


def choose_library_kernels(graph: LoopGraph, store: Store, threads: int) -> LoopGraph:
    """The graph with each product computed by the library that was fastest for its class."""
    if graph.device.type != "cpu" or not _onednn_products():
        return graph
    layouts = graph.layouts()
    chooser = _Chooser(store, threads)
    nodes = []
    for node in graph.nodes:
        linear = _as_linear(node, layouts) if isinstance(node, ExternKernel) else None
        if linear is not None and chooser.prefers_onednn(linear):
            assert isinstance(node, ExternKernel)
            args = (linear.x, linear.weight, linear.bias, "none", (), "")
            node = replace(node, target=torch.ops.mkldnn._linear_pointwise.default, args=args)
        nodes.append(node)
    chooser.save()
    return replace(graph, nodes=tuple(nodes))


def _onednn_products() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _as_linear(node: ExternKernel, layouts: dict[str, Layout]) -> Linear | None:
    """The product as a linear layer, if it is one of float32 with a weight stored as [n, k]."""
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
    if x.stride != (k, 1) or weight.stride != (1, k) or node.layout.stride != (n, 1):
        return None
    if isinstance(bias, ViewRef) and (bias.size != (n,) or bias.stride != (1,)):
        return None
    turned = replace(weight, size=(n, k), stride=(k, 1))
    m, n, k = map(hint_of, (m, n, k))
    if min(m, n, k) < 2:
        return None
    return Linear(m, n, k, x, turned, bias if isinstance(bias, ViewRef) else None)


class _Chooser:
    """Answers by shape class; measures those that the cache does not know."""

    def __init__(self, store: Store, threads: int) -> None:
        self.store = store
        self.key = make_key(
            "products",
            {"isa": describe_isa(), "torch": torch.__version__, "threads": str(threads)},
        )
        known = store.read(self.key, ".json")
        self.answers: dict[str, bool] = json.loads(known) if known else {}
        self.measured = False

    def prefers_onednn(self, linear: Linear) -> bool:
        name = repr(linear.shape_class())
        if name not in self.answers:
            self.answers[name] = _onednn_is_faster(linear)
            self.measured = True
        return self.answers[name]

    def save(self) -> None:
        if self.measured:
            self.store.write(self.key, ".json", json.dumps(self.answers).encode())


def _onednn_is_faster(linear: Linear) -> bool:
    m, n, k = linear.m, linear.n, linear.k
    while 2 * m * n * k > MOST_FLOPS:
        m, n, k = (size if size < max(m, n, k) else size // 2 for size in (m, n, k))
    numbers = torch.Generator().manual_seed(0)  # the program's own is not touched
    x, weight = (torch.randn(rows, k, generator=numbers) for rows in (m, n))
    out = torch.empty(m, n)
    bias = torch.randn(n, generator=numbers) if linear.bias is not None else None
    turned = weight.t()

    def by_aten() -> None:
        if bias is None:
            torch.mm(x, turned, out=out)
        else:
            torch.addmm(bias, x, turned, out=out)

    def by_onednn() -> None:
        torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    with torch.no_grad():
        aten_time, onednn_time = _fastest([by_aten, by_onednn])
    return onednn_time < ADVANTAGE * aten_time


def _fastest(candidates: list[Callable[[], Any]]) -> list[float]:
    """Shortest time of each, measured in turns."""
    best = [float("inf")] * len(candidates)
    for round_ in range(ROUNDS + 1):
        for number, call in enumerate(candidates):
            start = time.perf_counter()
            call()
            if round_:  # the first warms up
                best[number] = min(best[number], time.perf_counter() - start)
    return best
