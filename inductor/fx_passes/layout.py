"""Channels-last convolutions: activations stay as the library convolves them fastest.

In: a functional ATen graph with fakes. Out: the same program where every convolution of images on
the CPU (on a GPU: that its matrix units compute, and of films of known sizes) reads a
channels-last input, on a GPU with such a weight, which the library would
copy in a slower kernel; what is computed from it keeps that layout until an
operator needs another: one that is not known to compute the same from any strides gets those that
it had, and so do the graph's outputs. In a joint graph, the gradients of such a convolution are
computed from a channels-last gradient. A graph that speaks of strides itself (`as_strided`) of
parts of memory, or has no convolution, is returned as it is. Where sizes are symbolic, what torch's
kernels assume of them here is added to the graph's `SymbolTable`. Which convolutions and operators
those are is in `layout_choice.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import expression_of, facts_of, is_fake
from dynamo.aot.graphs import LazyGraph
from dynamo.shapes.fake import Fake
from dynamo.shapes.iteration import channels_last_stride
from inductor.fx_passes.calls_with_fakes import Calls, is_row_major, order_in_memory
from inductor.fx_passes.fakes import fake_runner
from inductor.fx_passes.layout_choice import (
    LAST,
    STRIDES_MATTER,
    fills_memory,
    is_doubtful,
    is_known,
    is_last,
    is_normalized_last,
    is_padded,
    may_stay,
    operands_of,
    picks_pixels,
    sees_strides,
    wants_last,
)
from inductor.fx_passes.odd_channels import Cuts, pad_channels

OpOverload = torch._ops.OpOverload
aten = torch.ops.aten


def channels_last(
    module: fx.GraphModule, has_kernel: Callable[[OpOverload], bool]
) -> fx.GraphModule:
    """See the top of the file. has_kernel: tells the operators that get a kernel of ours."""
    nodes = list(module.graph.nodes)
    targets = {node.target for node in nodes if not may_stay(node)}
    if targets & STRIDES_MATTER or not any(wants_last(node) for node in nodes):
        return module
    first = next(v for node in nodes if is_fake(v := node.meta.get("val")))
    changed = _Rewriter(module, fake_runner(first), has_kernel).run()
    if isinstance(first, Fake):
        return changed
    assumed = (guard.expr for guard in first.fake_mode.shape_env.guards)
    changed.meta["symbols"] = replace(
        module.meta["symbols"], assumptions=tuple(dict.fromkeys(assumed)))
    return changed


class _Rewriter:
    """run_fake: runs an operation on the fakes of the graph."""

    def __init__(
        self, module: fx.GraphModule, run_fake: Callable[..., Any],
        has_kernel: Callable[[OpOverload], bool],
    ) -> None:
        self.module = module
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.copies: dict[tuple[fx.Node, torch.memory_format], fx.Node] = {}
        self.cuts: dict[fx.Node, Cuts] = {}  # of convolutions that have more channels than before
        self.run_fake = run_fake
        self.has_kernel = has_kernel

    def run(self) -> fx.GraphModule:
        for node in self.module.graph.nodes:
            if node.op == "output":
                self._output(node)
            else:
                self.env[node] = self._copy(node)
        self.graph.lint()
        return LazyGraph(self.module, self.graph)

    def _copy(self, node: fx.Node) -> fx.Node:
        new = self.graph.node_copy(node, lambda old: self.env[old])
        if node.op != "call_function":
            return new
        if wants_last(node):
            count = 3 if node.target is aten.convolution_backward.default else 2
            if operands_of(node)[1].meta["val"].device.type == "cpu":
                count -= 1  # libraries there have a layout of their own for weights
            for position in range(count):
                self._give(new, position, LAST[operands_of(node)[0].meta["val"].dim()])
            if is_padded(node):
                self._pad_channels(new)
        if node.target is aten.native_group_norm.default:
            self._read_the_original(node, new)
        if sees_strides(new, self.has_kernel):
            self._restore_inputs(node, new)
        if self._changed(node, new):
            new.meta = dict(new.meta)
            new.meta["val"] = self._value(new)
            if wants_last(node):
                new.meta["val"] = self._as_the_library_gives_it(new.meta["val"])
        if picks_pixels(new):
            last = LAST[new.meta["val"].dim()]
            return Calls(new, new.next)(aten.clone.default, new, memory_format=last)
        return self._cut(node, new)

    def _pad_channels(self, new: fx.Node) -> None:
        put = Calls(new)

        def call(target: Any, *args: Any) -> fx.Node:
            made = put(target, *args)
            value = made.meta["val"]
            if value.dim() in LAST and not is_last(value):
                made = put(aten.clone.default, made, memory_format=LAST[value.dim()])
            return made

        cuts = pad_channels(new, call)
        if cuts:
            self.cuts[new] = cuts

    def _cut(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """What was asked for, of a convolution with more channels."""
        if new in self.cuts and node.target is aten.convolution.default:
            extents = self.cuts[new][0]
        elif new.target is operator.getitem and (of := self.cuts.get(new.all_input_nodes[0])):
            extents = of[new.args[1]]  # type: ignore[index]
        else:
            return new
        for axis, extent in extents.items():
            value = new.meta["val"]
            if value is not None and facts_of(value).size[axis] != extent:
                new = Calls(new, new.next)(aten.slice.Tensor, new, axis, 0, extent)
        return new

    def _as_the_library_gives_it(self, result: Any) -> Any:
        """A film channels last, as what is convolved, and its gradients: torch's meta kernels know
        of images only. (Where the library gives other strides, the wrapper copies.)"""
        if isinstance(result, tuple):
            return tuple(map(self._as_the_library_gives_it, result))
        if result is None or result.dim() != 5 or is_last(result):
            return result
        return self.run_fake(aten.clone.default, result, memory_format=LAST[5])

    def _read_the_original(self, node: fx.Node, new: fx.Node) -> None:
        """Of a group norm on a GPU, which eager gives a row-major copy of channels-last images."""
        copy: Any = new.args[0]
        if copy.target is not aten.clone.default or len(node.args[0].users) != 1:  # type: ignore[union-attr]
            return
        source = copy.args[0].meta["val"]
        if source.device.type != "cpu" and is_normalized_last(source):
            new.update_arg(0, copy.args[0])
            self.graph.erase_node(copy)

    def _changed(self, node: fx.Node, new: fx.Node) -> bool:
        if wants_last(node):
            return True
        old_inputs, new_inputs = node.all_input_nodes, new.all_input_nodes
        return len(old_inputs) != len(new_inputs) or any(
            a.meta.get("val") is not b.meta.get("val")
            for a, b in zip(old_inputs, new_inputs, strict=True)
        )

    def _value(self, new: fx.Node) -> Any:
        """The fake of a node whose inputs have other strides than before."""
        try:
            return self._run(new)
        except (RuntimeError, ValueError):
            # A view that only the old strides allow: of a dense copy, then.
            for position, arg in enumerate(new.args):
                if isinstance(arg, fx.Node) and is_fake(arg.meta.get("val")):
                    self._give(new, position, torch.contiguous_format)
            return self._run(new)

    def _run(self, new: fx.Node) -> Any:
        args, kwargs = fx.map_arg((new.args, new.kwargs), lambda node: node.meta["val"])
        if not isinstance(new.target, OpOverload):
            return new.target(*args, **kwargs)  # type: ignore[operator]
        return self.run_fake(new.target, *args, **kwargs)

    def _give(self, new: fx.Node, position: int, memory_format: torch.memory_format) -> None:
        """Hand argument `position` over as a copy in another memory format, if it has another."""
        source: Any = new.args[position]
        fake = source.meta["val"]
        is_there = fake.is_contiguous(memory_format=memory_format)
        if is_there and (memory_format is torch.contiguous_format or not is_doubtful(fake)):
            return
        copy = self.copies.get((source, memory_format))
        if copy is None:
            call = Calls(new)
            if is_there:
                size = facts_of(fake).size
                copy = call(aten.as_strided.default, source, size, channels_last_stride(size))
            else:
                copy = call(aten.clone.default, source, memory_format=memory_format)
            self.copies[source, memory_format] = copy
        new.update_arg(position, copy)

    def _restored(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """The new node's value with the strides that the old node had."""
        new = self.env[node]
        old_value, value = node.meta.get("val"), new.meta.get("val")
        if old_value is value or not is_fake(value) or _form(value) == _form(old_value):
            return new
        call = Calls(new, before)
        if _same_memory(old_value, value):
            size, stride = facts_of(old_value).size, facts_of(old_value).stride
            copy = call(aten.as_strided.default, new, size, stride)
        elif is_row_major(old_value):
            copy = call.copy(new)
        elif fills_memory(old_value):
            copy = call.copy_in_order(new, order_in_memory(old_value))
        elif is_known(old_value):  # with gaps, as parts of tensors have them
            facts = facts_of(old_value)
            place = call(aten.new_empty_strided.default, new, facts.size, facts.stride)
            copy = call(aten.copy.default, place, new)
        else:  # no node has such strides, so that this one says less: a kernel goes by its fake
            copy = call(aten.clone.default, new)
        copy.meta["val"] = old_value
        return copy

    def _restore_inputs(self, node: fx.Node, new: fx.Node) -> None:
        for old in node.all_input_nodes:
            new.replace_input_with(self.env[old], self._restored(old, new))

    def _output(self, node: fx.Node) -> None:
        new = self.graph.node_copy(node, lambda old: self.env[old])
        for old in node.all_input_nodes:
            restored = self._restored(old, new)
            if restored is not self.env[old]:
                new.replace_input_with(self.env[old], restored)


def _form(fake: Any) -> tuple[Any, ...]:
    """Sizes, strides and offset; expressions where they are symbolic."""
    facts = facts_of(fake)
    numbers = (*facts.size, *facts.stride, facts.offset)
    return (facts.dtype, *map(expression_of, numbers))


def _same_memory(one: Any, other: Any) -> bool:
    """Whether strides differ in dimensions of one element only."""
    if not (fills_memory(one) and fills_memory(other)):
        return False
    a, b = facts_of(one), facts_of(other)
    return a.dtype is b.dtype and all(
        extent == 1 or step == others
        for extent, step, others in zip(a.size, a.stride, b.stride, strict=True)
    )
