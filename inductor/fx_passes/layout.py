"""Channels-last convolutions: activations stay as the library convolves them fastest.

In: a functional ATen graph with fakes. Out: the same program where every convolution of images on
the CPU (on a GPU: that its matrix units compute, and of films of known sizes) reads a
channels-last input, on a GPU with such a weight, which the library would
copy in a slower kernel; what is computed from it keeps that layout until an
operator needs another: one that is not known to compute the same from any strides gets those that
it had, and so do the graph's outputs. In a joint graph, the gradients of such a convolution are
computed from a channels-last gradient. A graph that speaks of strides itself (`as_strided`) of
parts of memory, or has no convolution, is returned as it is. Where sizes are symbolic, what torch's
kernels assume of them here is added to the graph's `SymbolTable`.
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
from dynamo.shapes.iteration import channels_last_stride, is_channels_last
from inductor.config import config
from inductor.fx_passes.fakes import (
    Calls,
    fake_runner,
    is_row_major,
    on_gpu,
    order_in_memory,
)
from inductor.fx_passes.odd_channels import Cuts, pad_channels
from inductor.fx_passes.single_channels import reads_single_channels

OpOverload = torch._ops.OpOverload
aten = torch.ops.aten
STRIDES_MATTER = {
    aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default,
    aten._reshape_alias.default,
}  # fmt: skip
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
HALVES = (torch.bfloat16, torch.float16)
FEW_CHANNELS = 32  # measured with 16 only
# What ATen computes from any strides; the kernels of others (attention, LSTMs) take those for
# granted that the functions above them make.
INDIFFERENT = """addmm baddbmm bmm convolution convolution_backward mm native_batch_norm
pixel_shuffle pixel_unshuffle grid_sampler_2d cumsum index_copy sort topk clone""".split()
INDIFFERENT_KINDS = (
    "upsample_", "_upsample_", "max_pool", "avg_pool", "adaptive_", "_adaptive_", "reflection_pad",
    "replication_pad",
)


def channels_last(
    module: fx.GraphModule, has_kernel: Callable[[OpOverload], bool]
) -> fx.GraphModule:
    """See the top of the file. has_kernel: tells the operators that get a kernel of ours."""
    nodes = list(module.graph.nodes)
    targets = {node.target for node in nodes if not _may_stay(node)}
    if targets & STRIDES_MATTER or not any(_wants_last(node) for node in nodes):
        return module
    first = next(v for node in nodes if is_fake(v := node.meta.get("val")))
    changed = _Rewriter(module, fake_runner(first), has_kernel).run()
    if isinstance(first, Fake):
        return changed
    assumed = (guard.expr for guard in first.fake_mode.shape_env.guards)
    changed.meta["symbols"] = replace(
        module.meta["symbols"], assumptions=tuple(dict.fromkeys(assumed)))
    return changed


def _may_stay(node: fx.Node) -> bool:
    """Whether an operator that speaks of strides may be given a copy with the old ones: of tensors
    that fill their memory, in known sizes."""
    tensors = [given.meta["val"] for given in node.all_input_nodes]
    return all(is_fake(tensor) and _fills_memory(tensor) for tensor in tensors)


def _fills_memory(tensor: Any) -> bool:
    facts, elements = facts_of(tensor), 1
    if not all(type(number) is int for number in (*facts.size, *facts.stride)):
        return False
    for step, extent in sorted(zip(facts.stride, facts.size, strict=True)):
        if extent != 1 and step != elements:
            return False
        elements *= extent
    return facts.offset == 0


def _same_memory(one: Any, other: Any) -> bool:
    """Whether strides differ in dimensions of one element only."""
    if not (_fills_memory(one) and _fills_memory(other)):
        return False
    a, b = facts_of(one), facts_of(other)
    return a.dtype is b.dtype and all(
        extent == 1 or step == others
        for extent, step, others in zip(a.size, a.stride, b.stride, strict=True)
    )


def _wants_last(node: fx.Node) -> bool:
    """Of convolutions, forward and backward."""
    if node.target not in CONVOLUTIONS:
        return False
    source = _operands(node)[0].meta["val"]
    if source.dim() not in LAST or source.dtype not in fast_dtypes(source.device):
        return False
    if source.dim() == 5 and not _is_known_film(source):
        return False
    return source.device.type == "cpu" or suits_matrix_units(node)


def _is_padded(node: fx.Node) -> bool:
    """Of convolutions that read channels last: those in half precision on a GPU, unless templates
    of ours compete, which take channels as they are."""
    value = _operands(node)[0].meta["val"]
    return value.dtype in HALVES and on_gpu(value.device) and not config.max_autotune


def _is_known_film(source: Any) -> bool:
    """Films of known sizes on a GPU: with both gradients 0.51 to 0.94 of the time on an H200 in
    half precision, 0.6 to 1.03 in TensorFloat-32."""
    return on_gpu(source.device) and all(type(n) is int for n in facts_of(source).size)


def suits_matrix_units(node: fx.Node) -> bool:
    """Not for convolutions of single channels. In float32 not for patches side by side, which the
    library computes in full float32 as long as they are not channels last; and not for windows of
    one column (or row) over few channels, whose gradients it computes more slowly channels last:
    5 x 1 of 16 channels to 32, 26 and 54 us on an H200."""
    source, weight = (arg.meta["val"] for arg in _operands(node))
    stride = node.args[4 if node.target is aten.convolution_backward.default else 3]
    window = tuple(weight.shape[2:])
    patches = window == tuple(stride) != (1, 1)  # type: ignore[arg-type]
    few = type(weight.shape[1]) is int and weight.shape[1] <= FEW_CHANNELS
    flat = few and 1 in window and window != (1, 1)
    slow = (patches or flat) and source.dtype is torch.float32
    return not slow and not _is_of_single_channels(node)


def _is_of_single_channels(node: fx.Node) -> bool:
    source, weight = (arg.meta["val"] for arg in _operands(node))
    first = node.target is aten.convolution_backward.default  # it has one argument more
    transposed: Any = node.args[6 + first]
    return reads_single_channels(source.shape[1], weight.shape, node.args[8 + first], transposed)


def _operands(node: fx.Node) -> tuple[Any, Any]:
    """What is convolved, and the weight."""
    first = node.target is aten.convolution_backward.default
    return node.args[first], node.args[1 + first]


def fast_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Dtypes whose convolutions are fastest channels last: on a GPU those of its matrix units."""
    if device.type == "cpu":
        return (torch.float32, torch.bfloat16, torch.float16)
    if device.type != "cuda" or not torch.backends.cudnn.enabled:
        return ()
    allows_tf32 = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return (torch.float32, *HALVES) if allows_tf32 else HALVES


def _is_last(value: Any) -> bool:
    """Whether images or films lie channels last."""
    return value.dim() in LAST and bool(value.is_contiguous(memory_format=LAST[value.dim()]))


def _is_doubtful(value: Any) -> bool:
    """Whether ATen does not take images or films for channels last although they lie so: it goes by
    strides along single elements, too. On a GPU it would copy them, twice."""
    facts = facts_of(value)
    if not on_gpu(facts.device):
        return False
    known = all(type(number) is int for number in (*facts.size, *facts.stride))
    return known and 0 not in facts.size and not is_channels_last(facts.size, facts.stride)


def _is_normalized_last(value: Any) -> bool:
    """Whether a group norm is computed from images, films or sequences as they lie, channels last:
    on a GPU by a kernel of ours, which is for known sizes; the library's there refuses them."""
    if value.device.type == "cpu":
        return _is_last(value)
    facts = facts_of(value)
    if not all(type(number) is int for number in facts.size):
        return False
    if value.dim() != 3:
        return _is_last(value)
    _, channels, length = facts.size
    last = (channels * length, 1, channels)
    return all(
        extent == 1 or step == wanted
        for extent, step, wanted in zip(facts.size, facts.stride, last, strict=True))


def _is_of_rows(node: fx.Node) -> bool:
    """Whether a convolution is of sequences on a GPU, which ATen copies to rows by itself, in a
    kernel more than ours that compute them. Those of single channels are ours."""
    value = _operands(node)[0].meta["val"]
    return value.dim() == 3 and on_gpu(value.device) and not _is_of_single_channels(node)


def sees_strides(node: fx.Node, has_kernel: Callable[[OpOverload], bool]) -> bool:
    """False for operators of which the result is the same whatever the strides are."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace == "mkldnn":
        return False
    if target in STRIDES_MATTER:
        return True
    if torch.Tag.nondeterministic_seeded in target.tags:  # draws in the order of memory
        return True
    if target is aten.native_group_norm.default:
        value = node.args[0].meta["val"]  # type: ignore[union-attr]
        return not _is_normalized_last(value)
    if target in CONVOLUTIONS and _is_of_rows(node):
        return True
    if torch.Tag.pointwise in target.tags or has_kernel(target):
        return target.namespace not in ("aten", "prims")
    name = target._schema.name.removeprefix("aten::")
    if name in INDIFFERENT or name.startswith(INDIFFERENT_KINDS):
        return False
    is_view = any(result.alias_info is not None for result in target._schema.returns)
    return not is_view or target is aten.view.dtype


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
        if _wants_last(node):
            count = 3 if node.target is aten.convolution_backward.default else 2
            if _operands(node)[1].meta["val"].device.type == "cpu":
                count -= 1  # libraries there have a layout of their own for weights
            for position in range(count):
                self._give(new, position, LAST[_operands(node)[0].meta["val"].dim()])
            if _is_padded(node):
                self._pad_channels(new)
        if node.target is aten.native_group_norm.default:
            self._read_the_original(node, new)
        if sees_strides(new, self.has_kernel):
            self._restore_inputs(node, new)
        if self._changed(node, new):
            new.meta = dict(new.meta)
            new.meta["val"] = self._value(new)
            if _wants_last(node):
                new.meta["val"] = self._as_the_library_gives_it(new.meta["val"])
        return self._cut(node, new)

    def _pad_channels(self, new: fx.Node) -> None:
        put = Calls(new)

        def call(target: Any, *args: Any) -> fx.Node:
            made = put(target, *args)
            value = made.meta["val"]
            if value.dim() in LAST and not _is_last(value):
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
        if result is None or result.dim() != 5 or _is_last(result):
            return result
        return self.run_fake(aten.clone.default, result, memory_format=LAST[5])

    def _read_the_original(self, node: fx.Node, new: fx.Node) -> None:
        """Of a group norm on a GPU, which eager gives a row-major copy of channels-last images."""
        copy: Any = new.args[0]
        if copy.target is not aten.clone.default or len(node.args[0].users) != 1:  # type: ignore[union-attr]
            return
        source = copy.args[0].meta["val"]
        if source.device.type != "cpu" and _is_normalized_last(source):
            new.update_arg(0, copy.args[0])
            self.graph.erase_node(copy)

    def _changed(self, node: fx.Node, new: fx.Node) -> bool:
        if _wants_last(node):
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
        if is_there and (memory_format is torch.contiguous_format or not _is_doubtful(fake)):
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
        elif _fills_memory(old_value):
            copy = call.copy_in_order(new, order_in_memory(old_value))
        else:  # with gaps, as parts of tensors have them
            facts = facts_of(old_value)
            place = call(aten.new_empty_strided.default, new, facts.size, facts.stride)
            copy = call(aten.copy.default, place, new)
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
