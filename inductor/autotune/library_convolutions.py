"""Which library computes a convolution of inference, and its weight as that wants it.

In: the convolutions of a loop graph, the frozen ones with a `Preparer`. Out: the same, by our own
(`kernels/cpu/convolution.py`; `winograd.py`, where that is possible) or by oneDNN with a packed
weight, whichever was fastest with the convolution's own sizes; else by ATen, which takes a
channels-last weight as it is. What was measured is cached on disk. Where a kernel follows
that our own can call for each part of its result, oneDNN is measured with a pass over memory behind
it.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from dynamo.store.content import Store
from dynamo.store.processor import ONEDNN, OURS, processor
from inductor.autotune.answers import Answer, Answers
from inductor.autotune.library_settings import LibrarySettings
from inductor.autotune.preparation import Preparer, contiguous
from inductor.autotune.trials import compare, is_time_left, measuring, noise
from inductor.ir.convolutions import Geometry, geometry_of, last_strides
from inductor.ir.graph import ComputedBuffer, ExternKernel, Layout, LoopGraph, ViewRef
from inductor.kernels.cpu.convolution import CONVOLUTION_NAME
from inductor.kernels.cpu.convolution_library import Convolver, load_convolver
from inductor.runtime.own_libraries import loaded
from inductor.scheduler.convolution_chains import FEWEST_BYTES, may_follow

aten = torch.ops.aten
# Below, what is measured is the calls.
FEWEST_OPERATIONS = 1 << 18
BY_ONEDNN, WINOGRAD = "packed", "winograd"
Ratios = dict[str, float]
"""Logarithms of the time of each candidate of ours over oneDNN's."""
IN_A_CHAIN = 0.25
"""What ours may take more where its operand or its result then stays in a cache."""
MOST_SECONDS = 0.06  # for one class of convolutions; chosen, not measured
# Larger convolutions are measured with fewer images, or fewer rows of one (operations: a thread's).
MOST_BYTES, MOST_OPERATIONS, FEWEST_ROWS = 1 << 26, 1 << 27, 16
COLD_BYTES, MOST_WEIGHTS = 1 << 24, 4  # weights in turn, which no second cache holds
# So much faster oneDNN's depthwise convolution has to be: it stores its result in memory of its
# own, which in a graph is seldom in a cache.
DEPTHWISE_ADVANTAGE = math.log(1.1)


class Convolutions:
    """Rewrites the convolutions of one graph; what it measures is among `answers`."""

    def __init__(
        self, graph: LoopGraph, preparer: Preparer, store: Store, threads: int,
        settings: LibrarySettings,
    ) -> None:
        self.settings = settings
        self.preparer = preparer
        self.store = store
        self.threads = threads
        self.nodes: dict[str, Any] = {node.name: node for node in graph.nodes}
        self.readers: dict[str, list[Any]] = {}
        for node in graph.nodes:
            for name in node.reads():
                self.readers.setdefault(name, []).append(node)
        self.answers = Answers(store, "convolutions", threads, ours=CONVOLUTION_NAME)

    def rewritten(self, node: ExternKernel) -> ExternKernel:
        """A channels-last convolution of a frozen weight reads that as the library wants it."""
        if _suits_volumes(node):
            return self._by_volumes(node)
        found = self._prepared(node)
        if found is None:
            return node
        x, weight = found
        geometry = geometry_of(node)
        candidate = BY_ONEDNN if geometry is None else self.fastest(node, geometry)
        if candidate != BY_ONEDNN:
            assert geometry is not None
            return self._ours(node, weight, candidate == WINOGRAD, geometry.is_depthwise())
        if not self.settings.own_alone and _can_pack(node, x, weight):
            return _packed_convolution(self.preparer, node, x, weight)
        stride = last_strides(weight.size)
        layout = Layout(self.preparer.graph.device, weight.dtype, weight.size, stride)
        name = self.preparer.prepare("channels_last", weight, layout, _in_last_format)
        read = replace(weight, buffer=name, stride=stride, offset=0)
        return replace(node, args=(x, read, *node.args[2:]))

    def _by_volumes(self, node: ExternKernel) -> ExternKernel:
        """oneDNN's, over three axes: ATen takes a slower kernel of its own for one small image. The
        weight stays as it is: one that is packed has results channels last, which are copied."""
        if self.settings.own_alone or not has_onednn():
            return node
        x, weight, bias, stride, padding, dilation, _, _, groups = node.args
        args = (x, weight, bias, padding, stride, dilation, groups)
        return replace(node, target=aten.mkldnn_convolution.default, args=args)

    def _prepared(self, node: ExternKernel) -> tuple[ViewRef, ViewRef] | None:
        """What is convolved and the weight, if that is to be prepared."""
        if node.target is not aten.convolution.default:
            return None
        x, weight = node.args[:2]
        if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef) or node.args[6]:
            return None
        if weight.buffer not in self.preparer.frozen or len(x.size) != 4:
            return None
        if x.stride != last_strides(x.size) or not self.preparer.has_room(weight):
            return None
        return x, weight

    def geometry(self, node: ExternKernel) -> Geometry | None:
        """That of a convolution for which there is a choice."""
        return None if self._prepared(node) is None else geometry_of(node)

    def kind(self, node: ExternKernel, geometry: Geometry) -> str:
        """Convolutions of one kind are measured once."""
        followed = self._is_followed(node)
        return repr((geometry.numbers(), node.args[2] is not None, followed))

    def fastest(self, node: ExternKernel, geometry: Geometry) -> str:
        """Which candidate is to be used: measured once."""
        if self.settings.own_alone:
            return self._fastest_own(node, geometry)
        said = processor().fastest if self.settings.measures else ""
        if said == OURS and self.settings.ours:
            return self._fastest_own(node, geometry)
        if not self.settings.ours or geometry.operations() < FEWEST_OPERATIONS:
            return BY_ONEDNN
        if said == ONEDNN or not has_onednn(*ONEDNN_OPERATORS):
            return BY_ONEDNN
        name, margin = self.kind(node, geometry), IN_A_CHAIN if self._is_linked(node) else 0.0
        known = self.answers.known
        if name not in known:
            ours = self.library
            if ours is None or not self.settings.measures:
                return BY_ONEDNN
            if not is_time_left():
                return _least(usual_ratios(known.values(), geometry), margin)
            followed = self._is_followed(node)
            self.answers.add(name, _measure(geometry, ours, followed, self.threads))
        if self.library is None:
            return BY_ONEDNN
        return _least(known[name].ratios, margin)

    def _fastest_own(self, node: ExternKernel, geometry: Geometry) -> str:
        """The same without any library's."""
        if self.library is None:
            return BY_ONEDNN
        known = self.answers.known
        answer = known.get(self.kind(node, geometry))
        ratios = answer.ratios if answer else usual_ratios(known.values(), geometry)
        return min(ratios, key=ratios.__getitem__, default=OURS)

    def _is_followed(self, node: ExternKernel) -> bool:
        """Whether one kernel reads the result, element by element."""
        (*others, reader) = self.readers.get(node.name, [None])
        if others or not isinstance(reader, ComputedBuffer) or reader.kind != "pointwise":
            return False
        return node.layout is not None and reader.layout.numel() == node.layout.numel()

    def _is_linked(self, node: ExternKernel) -> bool:
        """Whether our own may be computed in strips with the one before or behind it."""
        made: Any = self.readers[node.name][0] if self._is_followed(node) else node
        behind = self.readers.get(made.name, [])
        if len(behind) == 1 and _are_linked(node, made, behind[0]):
            return True
        x = node.args[0]
        made = self.nodes.get(x.buffer) if isinstance(x, ViewRef) else None
        if made is None or len(self.readers[made.name]) != 1:
            return False
        if isinstance(made, ExternKernel):
            return _are_linked(made, made, node)
        before = [self.nodes.get(name) for name in made.reads()]
        calls = [one for one in before if isinstance(one, ExternKernel) and self._is_followed(one)]
        return any(_are_linked(one, made, node) for one in calls)

    @functools.cached_property
    def library(self) -> Convolver | None:
        return loaded(load_convolver, self.store, "convolution")

    def _ours(
        self, node: ExternKernel, weight: ViewRef, winograd: bool, is_depthwise: bool
    ) -> ExternKernel:
        library = self.library
        assert library is not None
        kind, make, size_of = "panels", library.panels, library.panels_size
        if winograd:
            kind, make = WINOGRAD, library.winograd_panels
        elif is_depthwise:
            kind, make, size_of = "channels", library.channel_panels, library.channel_panels_size
        size = (size_of(weight.size),)  # type: ignore[arg-type]
        layout = Layout(self.preparer.graph.device, weight.dtype, size, (1,))
        name = self.preparer.prepare(kind, weight, layout, make)
        read = replace(weight, buffer=name, stride=contiguous(weight.size), offset=0)
        args = (node.args[0], read, *node.args[2:])
        return replace(node, args=args, ours=True, winograd=winograd)


def _suits_volumes(node: ExternKernel) -> bool:
    """Whether it is a convolution of float32 over three axes."""
    if node.target is not aten.convolution.default or node.kwargs or node.layout is None:
        return False
    x, weight, bias, *sizes, transposed, _, _ = node.args
    if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef) or transposed:
        return False
    if len(x.size) != 5 or not isinstance(bias, ViewRef | None):
        return False
    lengths = [len(each) if isinstance(each, tuple) else 0 for each in sizes]
    if lengths != [3, 3, 3] or {x.dtype, weight.dtype, node.layout.dtype} != {torch.float32}:
        return False
    return not any(type(n) is int and n == 0 for n in (*x.size, *node.layout.size))


def _are_linked(before: ExternKernel, made: Any, behind: Any) -> bool:
    """Whether the convolution behind may run in strips with the one before. made: what that, maybe
    with a kernel, stores."""
    first = geometry_of(before)
    second = geometry_of(behind) if isinstance(behind, ExternKernel) else None
    if first is None or second is None or first.suits_winograd():
        return False
    is_read = isinstance(x := behind.args[0], ViewRef) and x.buffer == made.name
    return is_read and may_follow(second) and made.layout.numel() * 4 >= FEWEST_BYTES


def usual_ratios(measured: Collection[Answer], geometry: Geometry) -> Ratios:
    """What most of the measured ones are like, for one that has not been measured."""
    candidates = (OURS, WINOGRAD) if geometry.suits_winograd() else (OURS,)
    known = {
        name: [one.ratios[name] for one in measured if name in one.ratios] for name in candidates}
    return {name: statistics.fmean(ratios) for name, ratios in known.items() if ratios}


def _least(ratios: Ratios, margin: float) -> str:
    candidate = min(ratios, key=ratios.__getitem__, default=BY_ONEDNN)
    return candidate if ratios.get(candidate, 0.0) < margin else BY_ONEDNN


ONEDNN_OPERATORS = ("_convolution_pointwise", "_reorder_convolution_weight")


def has_onednn(*operators: str) -> bool:
    """Whether torch has oneDNN, switched on, with these operators."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    return all(hasattr(torch.ops.mkldnn, name) for name in operators)


def is_native(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes GEMMs of this type of half precision on this processor."""
    return dtype in processor().half and has_onednn()


def _can_pack(node: ExternKernel, x: ViewRef, weight: ViewRef) -> bool:
    """Whether it is one of float32 that oneDNN computes from channels last to channels last."""
    _, _, bias, *sizes, groups = node.args
    if not has_onednn(*ONEDNN_OPERATORS):
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


def _measured(geometry: Geometry, threads: int) -> Geometry:
    """What is measured in place of a convolution: as many images, and rows of one, as tell how the
    candidates compare."""
    while _is_large(geometry, threads) and geometry.images > 1:
        geometry = replace(geometry, images=geometry.images // 2)
    while _is_large(geometry, threads) and geometry.out_size[0] >= 2 * FEWEST_ROWS:
        part = geometry.with_rows(geometry.out_size[0] // 2)
        if part.size[0] < 1:
            break  # the rest is padding
        geometry = part
    return geometry


def _is_large(geometry: Geometry, threads: int) -> bool:
    too_long = geometry.operations() > MOST_OPERATIONS * threads
    return too_long or _trial_bytes(geometry) > MOST_BYTES


def _trial_bytes(geometry: Geometry) -> int:
    """Of the input and the results, of which oneDNN makes its own and another pass a third."""
    read, written = math.prod(geometry.size), math.prod(geometry.out_size)
    return 4 * geometry.images * (
        read * geometry.channels + 3 * written * geometry.out_channels)


def _measure(geometry: Geometry, ours: Convolver, followed: bool, threads: int) -> Ratios:
    """Of each candidate of our own; of a part, where that is large."""
    geometry = _measured(geometry, threads)
    images, channels, out = geometry.images, geometry.channels, geometry.out_channels
    size: Any = (images, channels, *geometry.size)
    how = (geometry.padding, geometry.stride, geometry.dilation, geometry.groups)
    with torch.inference_mode(False), torch.no_grad(), measuring():
        x = noise(images, *geometry.size, channels).permute(0, 3, 1, 2)
        weight = noise(out, channels // geometry.groups, *geometry.window)
        bias = noise(out)
        result = torch.empty(images, out, *geometry.out_size, memory_format=torch.channels_last)
        count = max(1, min(MOST_WEIGHTS, COLD_BYTES // (weight.numel() * 4)))
        packed = [_packed(*how, size, weight) for _ in range(count)]
        size_of = ours.channel_panels_size if geometry.is_depthwise() else ours.panels_size
        sizes = {OURS: size_of(weight.shape)}
        if geometry.suits_winograd():
            sizes[WINOGRAD] = sizes[OURS]
        panels = {name: [noise(size) for _ in range(count)] for name, size in sizes.items()}

        def run_onednn(number: int) -> None:
            made = torch.ops.mkldnn._convolution_pointwise(
                x, packed[number], bias, *how, "none", [], ""
            )
            if followed:
                torch.relu(made)

        def run_own(name: str, at: int) -> None:
            ours.convolve(geometry, x, panels[name][at], bias, result, threads, name == WINOGRAD)

        clock = time.thread_time if threads == 1 else time.perf_counter
        candidates = {BY_ONEDNN: [functools.partial(run_onednn, number) for number in range(count)]}
        for name in panels:
            candidates[name] = [functools.partial(run_own, name, at) for at in range(count)]
        least = DEPTHWISE_ADVANTAGE if geometry.is_depthwise() else 0.0
        margins = dict.fromkeys(panels, least)
        found = compare(candidates, BY_ONEDNN, margins, clock, MOST_SECONDS, best_only=True)
        return {name: found[name] - least for name in panels}
