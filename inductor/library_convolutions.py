"""Which library computes a convolution of inference, and its weight as that wants it.

In: the convolutions of a loop graph, the frozen ones with a `Preparer`. Out: the same, by our own
(`codegen/cpp/convolution.py`) or by oneDNN with a packed weight, whichever was faster with the
convolution's own sizes; else by ATen, which takes a channels-last weight as it is. What was
measured is kept in the cache folder. Where a kernel follows that our own can call for each part of
its result, oneDNN is measured with a pass over memory behind it.
"""

from __future__ import annotations

import functools
import json
import time
from dataclasses import replace
from typing import Any

import torch

from dynamo.base import logs
from inductor.codegen.cpp.convolution import CONVOLUTION_NAME
from inductor.config import config
from inductor.ir.convolutions import Geometry, geometry_of, last_strides
from inductor.ir.graph import ComputedBuffer, ExternKernel, Layout, LoopGraph, ViewRef
from inductor.preparation import Preparer, contiguous
from inductor.runtime.build import BuildError
from inductor.runtime.convolutions import Convolver, load_convolver
from inductor.runtime.store import Store, make_key
from inductor.runtime.toolchain import describe_isa, find_toolchain
from inductor.runtime.trials import compare, is_time_left, measuring, noise

aten = torch.ops.aten
# Below, what is measured is the calls.
FEWEST_OPERATIONS = 1 << 18
MOST_SECONDS = 0.06
COLD_BYTES, MOST_WEIGHTS = 1 << 24, 4


class Convolutions:
    """Rewrites the convolutions of one graph; keeps what it measures with `save`."""

    def __init__(
        self, graph: LoopGraph, preparer: Preparer, store: Store, threads: int, with_ours: bool,
    ) -> None:
        self.with_ours = with_ours
        self.preparer = preparer
        self.store = store
        self.threads = threads
        self.readers: dict[str, list[Any]] = {}
        for node in graph.nodes:
            for name in node.reads():
                self.readers.setdefault(name, []).append(node)
        parts = {
            "isa": describe_isa(),
            "torch": torch.__version__,
            "threads": str(threads),
            "ours": CONVOLUTION_NAME,
        }
        self.key = make_key("convolutions", parts)
        known = store.read(self.key, ".json")
        self.ratios: dict[str, float] = json.loads(known) if known else {}
        self.measured = False

    def rewritten(self, node: ExternKernel) -> ExternKernel:
        """A channels-last convolution of a frozen weight reads that as the library wants it."""
        if node.target is not aten.convolution.default:
            return node
        x, weight, *rest = node.args
        if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef) or node.args[6]:
            return node
        frozen = self.preparer.frozen
        if weight.buffer not in frozen or len(x.size) != 4 or x.stride != last_strides(x.size):
            return node
        if not self.preparer.has_room(weight):
            return node
        geometry = geometry_of(node)
        if geometry is not None and self.is_ours_faster(node, geometry):
            return self._ours(node, weight)
        if _can_pack(node, x, weight):
            return _packed_convolution(self.preparer, node, x, weight)
        stride = last_strides(weight.size)
        layout = Layout(self.preparer.graph.device, weight.dtype, weight.size, stride)
        name = self.preparer.prepare("channels_last", weight, layout, _in_last_format)
        return replace(node, args=(x, replace(weight, buffer=name, stride=stride, offset=0), *rest))

    def is_ours_faster(self, node: ExternKernel, geometry: Geometry) -> bool:
        """Whether our own is to be used: measured once."""
        if not self.with_ours or geometry.operations() < FEWEST_OPERATIONS:
            return False
        if not has_onednn(*PACKED):
            return False
        followed = self._is_followed(node)
        name = repr((geometry.numbers(), node.args[2] is not None, followed))
        if name not in self.ratios:
            ours = self.library()
            if ours is None or config.library_kernels != "measure":
                return False
            if not is_time_left():  # as most of them are here
                return sum(self.ratios.values()) < 0
            self.ratios[name] = _measure(geometry, ours, followed, self.threads)
            self.measured = True
        return self.ratios[name] < 0 and self.library() is not None

    def _is_followed(self, node: ExternKernel) -> bool:
        """Whether one kernel reads the result, element by element."""
        (*others, reader) = self.readers.get(node.name, [None])
        if others or not isinstance(reader, ComputedBuffer) or reader.kind != "pointwise":
            return False
        return node.layout is not None and reader.layout.numel() == node.layout.numel()

    def library(self) -> Convolver | None:
        toolchain = find_toolchain(self.store)
        if isinstance(toolchain, str):
            return None
        try:
            return load_convolver(self.store, toolchain)
        except BuildError as error:
            why = str(error)
            logs.log("inductor").emit(lambda: f"there is no convolution of our own: {why}")
            return None

    def save(self) -> None:
        if self.measured:
            self.store.write(self.key, ".json", json.dumps(self.ratios).encode())

    def _ours(self, node: ExternKernel, weight: ViewRef) -> ExternKernel:
        library = self.library()
        assert library is not None
        size = (library.panels_size(weight.size),)  # type: ignore[arg-type]
        layout = Layout(self.preparer.graph.device, weight.dtype, size, (1,))
        name = self.preparer.prepare("panels", weight, layout, library.panels)
        read = replace(weight, buffer=name, stride=contiguous(weight.size), offset=0)
        return replace(node, args=(node.args[0], read, *node.args[2:]), ours=True)


PACKED = ("_convolution_pointwise", "_reorder_convolution_weight")


def has_onednn(*operators: str) -> bool:
    """Whether torch has oneDNN, switched on, with these operators."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    return all(hasattr(torch.ops.mkldnn, name) for name in operators)


def _can_pack(node: ExternKernel, x: ViewRef, weight: ViewRef) -> bool:
    """Whether it is one of float32 that oneDNN computes from channels last to channels last."""
    _, _, bias, *sizes, groups = node.args
    if not has_onednn(*PACKED):
        return False
    if any(view.dtype is not torch.float32 for view in (x, weight)) or node.kwargs:
        return False
    if not isinstance(bias, ViewRef | None) or node.layout is None or 0 in node.layout.size:
        return False
    lengths = [len(each) if isinstance(each, tuple) else 0 for each in sizes[:3]]
    is_last = node.layout.stride == last_strides(node.layout.size)
    return lengths == [2, 2, 2] and is_last and 0 not in x.size


def _packed_convolution(
    preparer: Preparer, node: ExternKernel, x: ViewRef, weight: ViewRef
) -> ExternKernel:
    _, _, bias, stride, padding, dilation, _, _, groups = node.args
    how: tuple[Any, ...] = (padding, stride, dilation, groups, x.size)
    name = preparer.prepare(
        "packed", weight, preparer.as_it_is(weight), functools.partial(_packed, *how), how
    )
    read = replace(weight, buffer=name, stride=contiguous(weight.size), offset=0)
    args = (x, read, bias, padding, stride, dilation, groups, "none", (), "")
    return replace(node, target=torch.ops.mkldnn._convolution_pointwise.default, args=args)


def _packed(
    padding: Any, stride: Any, dilation: Any, groups: int, size: Any, weight: torch.Tensor
) -> torch.Tensor:
    reorder = torch.ops.mkldnn._reorder_convolution_weight
    made: torch.Tensor = reorder(weight.contiguous(), padding, stride, dilation, groups, size)
    return made


def _in_last_format(value: torch.Tensor) -> torch.Tensor:
    stride = last_strides(tuple(value.shape))
    return torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)


def _measure(geometry: Geometry, ours: Convolver, followed: bool, threads: int) -> float:
    """The logarithm of our own time over oneDNN's."""
    images, channels, out = geometry.images, geometry.channels, geometry.out_channels
    size: Any = (images, channels, *geometry.size)
    how = (geometry.padding, geometry.stride, geometry.dilation, 1)
    with torch.inference_mode(False), torch.no_grad(), measuring():
        x = noise(images, *geometry.size, channels).permute(0, 3, 1, 2)
        weight, bias = noise(out, channels, *geometry.window), noise(out)
        result = torch.empty(images, out, *geometry.out_size, memory_format=torch.channels_last)
        count = max(1, min(MOST_WEIGHTS, COLD_BYTES // (weight.numel() * 4)))
        packed = [_packed(*how, size, weight) for _ in range(count)]
        panels = [ours.panels(weight) for _ in range(count)]

        def by_onednn(number: int) -> None:
            made = torch.ops.mkldnn._convolution_pointwise(
                x, packed[number], bias, *how, "none", [], ""
            )
            if followed:
                torch.relu(made)

        def by_ours(number: int) -> None:
            ours.convolve(geometry, x, panels[number], bias, result, threads)

        clock = time.thread_time if threads == 1 else time.perf_counter
        ways = {
            name: [functools.partial(way, number) for number in range(count)]
            for name, way in (("packed", by_onednn), ("ours", by_ours))
        }
        return compare(ways, "packed", 0.0, clock, MOST_SECONDS)["ours"]
