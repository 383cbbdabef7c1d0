"""Which library computes a GEMM: measured once for each machine and shape class.

In: a loop graph whose GEMMs are ATen's. Out: the same graph where some are computed by something
else with the same result. ATen's GEMMs of float32 go through MKL, which is slow on some
processors; oneDNN, in the same torch, is not. It wants the weight as [n, k]: one stored as [k, n]
is turned by a kernel first. Our own GEMM (`kernels/cpu/gemm.py`) takes both and writes where
the result shall lie. What was measured is cached on disk.

Frozen weights (`freezing.py`) are turned, or put in the order in which our GEMM or oneDNN's
GEMMs and convolutions read them, once: the graph gets what was prepared as further inputs. That
takes as much memory again: where our GEMM reads weights as they are ("plain") and is not clearly
slower, nothing is prepared.
oneDNN could apply a ReLU, too, but makes zeros of NaNs: that stays a kernel of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch

from dynamo.store.content import Store
from inductor.autotune.gemm_choice import USUAL, Chooser
from inductor.autotune.gemm_trials import packed_linear
from inductor.autotune.library_convolutions import Convolutions
from inductor.autotune.library_settings import LibrarySettings
from inductor.autotune.linear import Linear, as_linear, as_own_linear, with_views
from inductor.autotune.preparation import Preparer, contiguous
from inductor.autotune.trials import give_back_memory
from inductor.codegen.cpp.own_calls import is_own_stack, is_own_sum
from inductor.ir.body import trace_body
from inductor.ir.graph import ComputedBuffer, ExternKernel, Layout, LoopGraph, Node, ViewRef


def choose_library_kernels(
    graph: LoopGraph, store: Store, threads: int, frozen: Collection[int] = (),
    settings: LibrarySettings = USUAL, taken: int = 0,
) -> LoopGraph:
    """The graph with each GEMM computed by what was fastest for its class.

    frozen: positions of inputs that hardly ever change. taken: bytes of what has been prepared
    already.
    """
    if graph.device.type != "cpu":
        return graph
    return _Rewriter(graph, Chooser(store, threads, settings), Preparer(graph, frozen, taken)).run()


class _Rewriter:
    def __init__(self, graph: LoopGraph, chooser: Chooser, preparer: Preparer) -> None:
        self.graph = graph
        self.chooser = chooser
        self.layouts = graph.layouts()
        self.preparer = preparer
        self.convolutions = Convolutions(
            graph, self.preparer, chooser.store, chooser.threads, chooser.settings)

    def run(self) -> LoopGraph:
        self.choose_dearest_first()
        nodes: list[Node] = []
        for node in self.graph.nodes:
            linear = None
            if isinstance(node, ExternKernel):
                node = self.convolutions.rewritten(node)
                linear = self.as_linear(node)
            if linear is None:
                nodes.append(self.as_own(node))
            else:
                assert isinstance(node, ExternKernel)
                candidate = self.chooser.fastest(linear)
                if self.chooser.settings.own_alone and candidate != "aten":
                    node = with_views(node, linear)
                nodes += REWRITES[candidate](self, node, linear)
        answers = self.chooser.answers, self.convolutions.answers
        if any(each.added for each in answers):
            give_back_memory()  # of trials: what is kept of weights comes beside it
        for each in answers:
            each.save()
        return replace(
            self.graph, nodes=tuple(nodes), inputs=self.preparer.inputs_for(nodes),
            prepared=self.preparer.prepared(),
        )  # fmt: skip

    def as_own(self, node: Node) -> Node:
        """A call that the wrapper computes by itself, where no library is wanted."""
        if not self.chooser.settings.own_alone or not isinstance(node, ExternKernel):
            return node
        fits = is_own_stack(node) and self.chooser.ours(torch.float32) is not None
        return replace(node, ours=True) if fits or is_own_sum(node) else node

    def as_linear(self, node: ExternKernel) -> Linear | None:
        find = as_own_linear if self.chooser.settings.own_alone else as_linear
        linear = find(node, self.layouts, self.preparer.frozen)
        if linear is not None and linear.frozen and not self.preparer.has_room(linear.weight):
            return replace(linear, frozen=False)
        return linear

    def choose_dearest_first(self) -> None:
        """The time for measuring may not be enough for all: it goes to the classes on which the
        graph spends most."""
        if not self.chooser.settings.measures:
            return
        operations: dict[Any, int] = {}
        choices: dict[Any, Callable[[], str]] = {}
        for node in self.graph.nodes:
            if not isinstance(node, ExternKernel):
                continue
            linear, geometry = self.as_linear(node), self.convolutions.geometry(node)
            if linear is not None:
                kind: Any = linear.shape_class()
                count = linear.m * linear.n * linear.k
                choices.setdefault(kind, functools.partial(self.chooser.fastest, linear))
            elif geometry is not None:
                kind, count = self.convolutions.kind(node, geometry), geometry.operations()
                choose = functools.partial(self.convolutions.fastest, node, geometry)
                choices.setdefault(kind, choose)
            else:
                continue
            operations[kind] = operations.get(kind, 0) + count
        for kind in sorted(choices, key=operations.__getitem__, reverse=True):
            choices[kind]()

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
                name = self.preparer.prepare("turned", weight, layout, torch.Tensor.contiguous)
            else:
                nodes.append(_turned(weight, name, self.graph.device))
            weight = replace(weight, buffer=name, stride=stride, offset=0)
        args = (linear.x, weight, linear.bias, "none", (), "")
        target = torch.ops.mkldnn._linear_pointwise.default
        return [*nodes, replace(node, target=target, args=args)]

    def by_packed(self, node: ExternKernel, linear: Linear) -> list[Node]:
        weight = linear.weight
        make = functools.partial(packed_linear, linear.m)
        layout = self.preparer.as_it_is(weight)
        name = self.preparer.prepare("packed", weight, layout, make, (linear.m,))
        weight = replace(weight, buffer=name, stride=contiguous(weight.size), offset=0)
        args = (linear.x, weight, linear.bias, "none", (), "")
        return [replace(node, target=torch.ops.mkldnn._linear_pointwise.default, args=args)]

    def use_own_gemm(self, node: ExternKernel, linear: Linear) -> list[Node]:
        if not linear.frozen:
            return [replace(node, ours=True)]
        gemm = self.chooser.ours(linear.dtype)
        assert gemm is not None
        weight = linear.weight
        n, k = weight.size
        whole = replace(weight, size=(k, n), stride=weight.stride[::-1])
        size = (gemm.panels_size(k, n),)
        layout = Layout(self.graph.device, weight.dtype, size, (1,))
        panels = self.preparer.prepare("panels", whole, layout, gemm.panels)
        return [replace(node, ours=True, panels=panels)]

    def by_plain(self, node: ExternKernel, linear: Linear) -> list[Node]:
        return [replace(node, ours=True)]


REWRITES: dict[str, Callable[[_Rewriter, ExternKernel, Linear], list[Node]]] = {
    "aten": _Rewriter.by_aten,
    "onednn": _Rewriter.by_onednn,
    "ours": _Rewriter.use_own_gemm,
    "packed": _Rewriter.by_packed,
    "plain": _Rewriter.by_plain,
}


def _turned(weight: ViewRef, name: str, device: torch.device) -> ComputedBuffer:
    """A contiguous copy of a matrix."""
    rows, columns = weight.stride

    def copy(ops: Any, i: Any, r: Any) -> None:
        value = ops.load(weight.buffer, i[0] * rows + i[1] * columns + weight.offset, weight.dtype)
        ops.store(name, i[0] * weight.size[1] + i[1], value)

    layout = Layout(device, weight.dtype, weight.size, (weight.size[1], 1))
    return ComputedBuffer(name, layout, trace_body(weight.size, (), copy), "pointwise")
