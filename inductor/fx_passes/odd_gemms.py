"""GEMMs on a GPU whose matrices are not made of whole words of 16 bytes.

In: a functional ATen graph with fakes, forward alone or joint. Out: the same graph (changed in
place). The library has its fast kernels for matrices whose rows begin, and end, at multiples of 16
bytes, and takes five to eight times as long for others in half precision: a vocabulary of 50257
words is odd, and 2048 x 1024 rows times it took 2229 us on an H200 where 50264 take 306. In
TensorFloat-32 it takes two and a half times as long: 32768 x 1024 results of 258 terms 209 us, of
260 terms 82. So operands get some columns of zeros, and parts of the results are used:

    odd columns of the result   the right operand is padded, the result cut
    odd rows, stored by columns the left operand is padded, the result cut
    odd terms                   both padded where both are stored along the terms; where only one
                                is, it is padded, and the last terms are a GEMM of their own: a
                                copy of the other one (weights) costs more than that

What is computed by kernels is padded where it is computed; a copy of others is counted. The cut of
a result is a view: what reads it in a way that depends on strides, and the graph's outputs, get a
copy with those that it had.

Sizes that are known at a call may be rows, or terms along which nothing is stored (a gradient of
weights sums over rows): whether the others are whole says the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import elements_of, expression_of, facts_of, hint_of, is_fake
from dynamo.aot.joint import viewed
from inductor.fx_passes.calls_with_fakes import Calls, is_row_major
from inductor.fx_passes.layout_choice import sees_strides
from inductor.ir.extent import up_to_multiple
from inductor.ir.gpus import GpuProperties
from inductor.runtime.gpu_properties import properties_of

aten = torch.ops.aten
GEMMS = (aten.mm.default, aten.addmm.default)
# What a copy is made of before it is padded; other results are padded where they are computed.
STORED = (*GEMMS, aten.bmm.default, aten.baddbmm.default, aten.convolution.default)
WORD = 16  # bytes
# Parts of the maker's speed that the library reaches with whole words and without, on an H200; the
# latter on older devices, whose fast kernels gain less, was not measured.
WHOLE, ODD, ODD_BEFORE_HOPPER = 0.7, 0.1, 0.25
HOPPER = 90  # compute capability
# The same in TensorFloat-32, whose speed is half of that of half precision.
WHOLE_OF_FLOAT32, ODD_OF_FLOAT32 = 0.22, 0.09
# Chosen, not measured: seconds, of the launches there are more; before over after.
OVERHEAD, LEAST_GAIN = 20e-6, 1.3


def pad_odd_gemms(
    module: fx.GraphModule, has_kernel: Callable[[torch._ops.OpOverload], bool],
    known: GpuProperties | None = None,
) -> fx.GraphModule:
    """See the top of the file. has_kernel: tells the operators that get a kernel of ours. known:
    the GPU, where the graph's tensors don't say it."""
    changed = False
    padder: _Padder | None = None
    for node in list(module.graph.nodes):
        if node.target in GEMMS and not node.kwargs and _is_of_matrix_units(node, known):
            gpu = known or properties_of(facts_of(node.meta["val"]).device)
            if not gpu.capability:  # another maker's library was not measured
                continue
            padder = padder or _Padder(has_kernel)
            changed |= padder.rewrite(node, gpu)
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _is_of_matrix_units(node: fx.Node, known: GpuProperties | None) -> bool:
    """Whether it is a plain GEMM of matrices on a GPU, that are not empty, in half precision or in
    TensorFloat-32."""
    matrices = [_value(one) for one in (*_operands(node), node)]
    if any(not is_fake(one) or len(facts_of(one).size) != 2 for one in matrices):
        return False
    facts = [facts_of(one) for one in matrices]
    if known is None and facts[0].device.type != "cuda":
        return False
    numbers = [n for each in facts for n in (*each.size, *each.stride)]
    dtypes = {each.dtype for each in facts}
    is_fast = dtypes <= {torch.float16, torch.bfloat16} or (
        dtypes == {torch.float32} and torch.get_float32_matmul_precision() != "highest")
    return is_fast and all(type(n) is not int or n > 0 for n in numbers)


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The matrices that are multiplied."""
    left, right = node.args[-2:]
    assert isinstance(left, fx.Node) and isinstance(right, fx.Node)
    return left, right


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _axis_in_memory(value: Any) -> int | None:
    """The axis along which neighbours lie next to each other; None where neither is, or rows do not
    begin at whole words although they have as many elements, or that is known at a call only."""
    (rows, columns), (down, along) = facts_of(value).size, facts_of(value).stride
    for axis, step, across, count in ((1, along, down, columns), (0, down, along, rows)):
        known = type(step) is type(across) is type(count) is int
        if known and step == 1 and (across == count or _is_whole(across, value)):
            return axis
    return None


def _is_whole(count: int, value: Any) -> bool:
    return count * facts_of(value).dtype.itemsize % WORD == 0


class _Padder:
    """Rewrites GEMMs of one graph. call: puts operations before the one at hand."""

    call: Calls

    def __init__(self, has_kernel: Callable[[torch._ops.OpOverload], bool]) -> None:
        self.has_kernel = has_kernel
        self.made: dict[tuple[fx.Node, tuple[int, int]], fx.Node] = {}

    def rewrite(self, node: fx.Node, gpu: GpuProperties) -> bool:
        """Changes one GEMM where that gains enough."""
        left, right = _operands(node)
        a, b = _value(left), _value(right)
        (rows, terms), columns = facts_of(a).size, facts_of(b).size[1]
        unit = WORD // facts_of(a).dtype.itemsize
        axes = _axis_in_memory(a), _axis_in_memory(b)
        if None in axes or type(columns) is not int:
            return False

        def missing(count: int) -> int:
            return up_to_multiple(count, unit) * unit - count

        # A matrix is stored along an axis whose size is known.
        along = [axes[0] == 1, axes[1] == 0]  # stored along the terms
        more_rows = missing(rows) if axes[0] == 0 else 0
        more_terms = missing(terms) if any(along) else 0
        more_columns = missing(columns)
        both = all(along) or any(along) and terms < unit
        if not (more_rows or more_terms or more_columns):
            return False
        pads_left = more_rows or more_terms and (along[0] or both)
        pads_right = more_columns or more_terms and (along[1] or both)
        copied = [one for one, pads in ((left, pads_left), (right, pads_right)) if pads]
        if more_columns and _is_returned(node):
            copied.append(node)
        if not _repays(node, copied, gpu):
            return False
        self.call = Calls(node)
        left = self.padded(left, more_rows, more_terms if along[0] or both else 0)
        right = self.padded(right, more_terms if along[1] or both else 0, more_columns)
        bias = node.args[0] if node.target is aten.addmm.default else None
        if isinstance(bias, fx.Node):
            bias = self.padded_bias(bias, (rows, columns), more_rows, more_columns)
        if more_terms and not both:
            total = self.in_parts(bias, left, right, terms, unit)
        else:
            total = self.gemm(bias, left, right)
        total = self.cut(total, 0, 0, rows, more_rows)
        total = self.cut(total, 1, 0, columns, more_columns)
        self.hand_on(node, total)
        return True

    def padded(self, node: fx.Node, rows: int, columns: int) -> fx.Node:
        """A matrix with so many more rows and columns of zeros, stored along the same axis."""
        if not (rows or columns):
            return node
        if _axis_in_memory(_value(node)) == 0:
            turned = _turned_from(node)
            turned = self.call(aten.permute.default, node, [1, 0]) if turned is None else turned
            return self.call(aten.permute.default, self.padded(turned, columns, rows), [1, 0])
        key = (node, (rows, columns))
        if key not in self.made:
            self.made[key] = self.call(
                aten.constant_pad_nd.default, node, [0, columns, 0, rows], 0.0)
        return self.made[key]

    def padded_bias(
        self, bias: fx.Node, size: tuple[int, int], rows: int, columns: int
    ) -> fx.Node:
        """The same of what is added to a result of this size, if it has elements there."""
        own = facts_of(_value(bias)).size
        pad = [0, columns if own[-1:] == size[1:] else 0]
        if len(own) == 2:
            pad += [0, rows if rows and own[0] == size[0] else 0]
        return self.call(aten.constant_pad_nd.default, bias, pad, 0.0) if any(pad) else bias

    def gemm(self, bias: Any, left: fx.Node, right: fx.Node) -> fx.Node:
        if bias is None:
            return self.call(aten.mm.default, left, right)
        return self.call(aten.addmm.default, bias, left, right)

    def in_parts(
        self, bias: Any, left: fx.Node, right: fx.Node, terms: int, unit: int
    ) -> fx.Node:
        """The sum over the last terms, to which that over whole words is added."""
        whole = terms // unit * unit
        last = self.gemm(
            bias, self.cut(left, 1, whole, terms), self.cut(right, 0, whole, terms))
        return self.gemm(last, self.cut(left, 1, 0, whole), self.cut(right, 0, 0, whole))

    def cut(self, node: fx.Node, axis: int, begin: int, end: int, more: int = 1) -> fx.Node:
        """Rows or columns of a matrix, where it has `more` than those."""
        return self.call(aten.slice.Tensor, node, axis, begin, end) if more else node

    def hand_on(self, node: fx.Node, total: fx.Node) -> None:
        """What used a result uses another one, which may have other strides."""
        views: dict[fx.Node, Any] = {node: total.meta["val"]}
        alike = _is_alike(_value(total), _value(node))
        copied = {} if alike else self._readers_of_strides(views)
        if copied is None:
            total = self.call.copy(total)
            node.replace_all_uses_with(total)
        else:
            for one, value in views.items():
                one.meta["val"] = value
            for one, users in copied.items():
                source = total if one is node else one
                copy = Calls(source, source.next).copy(source)
                for user in users:
                    user.replace_input_with(one, copy)
            node.replace_all_uses_with(total)
        node.graph.erase_node(node)

    def _readers_of_strides(
        self, views: dict[fx.Node, Any]
    ) -> dict[fx.Node, list[fx.Node]] | None:
        """For each of these, and of the views of them (which are added), the users that need the
        strides that it has had. None where a copy would not have those."""
        found: dict[fx.Node, list[fx.Node]] = {}
        waiting = list(views)
        while waiting:
            one = waiting.pop()
            for user in one.users:
                again = self._run_with(user, views)
                if again is not None and _is_alike(again, user.meta.get("val")):
                    continue
                if again is not None and is_fake(again) and viewed(user) is one:
                    views[user] = again
                    waiting.append(user)
                elif is_row_major(_value(one)):
                    found.setdefault(one, []).append(user)
                else:
                    return None
        return found

    def _run_with(self, user: fx.Node, views: dict[fx.Node, Any]) -> Any:
        """The fakes of what a node gives for these; None for outputs, and where it can't, or would
        give something else."""
        if user.op != "call_function" or sees_strides(user, self.has_kernel):
            return None
        if not isinstance(user.target, torch._ops.OpOverload):
            return None
        args, kwargs = fx.map_arg(
            (user.args, user.kwargs), lambda one: views.get(one, _value(one)))
        try:
            return self.call.run(user.target, *args, **kwargs)
        except RuntimeError:  # a view that such strides don't have
            return None


def _turned_from(node: fx.Node) -> fx.Node | None:
    """The matrix of which this is the transpose."""
    given: tuple[Any, ...] = node.args
    if node.target is aten.permute.default:
        swaps = [n % 2 for n in given[1]] == [1, 0]
    elif node.target is aten.transpose.int:
        swaps = given[1] % 2 != given[2] % 2
    else:
        swaps = node.target is aten.t.default
    return given[0] if swaps else None


def _is_returned(node: fx.Node) -> bool:
    """Whether a result, or a view of it, is one of the graph."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        for user in one.users:
            if user.op == "output":
                return True
            if viewed(user) is one:
                waiting.append(user)
    return False


def _repays(node: fx.Node, copied: list[fx.Node], gpu: GpuProperties) -> bool:
    """Whether the GEMM of whole words, and the copies of these, take less time."""
    sizes = [elements_of(_value(one)) for one in (*_operands(node), node)]
    operations = 2 * sizes[0] * hint_of(facts_of(_value(node)).size[1])
    itemsize = facts_of(_value(node)).dtype.itemsize
    moved = sum(sizes) * itemsize / gpu.bandwidth
    bytes_of_copies = sum(
        2 * elements_of(_value(one)) * itemsize
        for one in copied if _is_copied(one) or one is node)
    quickly, slowly = WHOLE, ODD if gpu.capability >= HOPPER else ODD_BEFORE_HOPPER
    if facts_of(_value(node)).dtype is torch.float32:
        quickly, slowly = WHOLE_OF_FLOAT32, ODD_OF_FLOAT32
    before = max(moved, operations / (slowly * gpu.gemms))
    after = max(moved, operations / (quickly * gpu.gemms)) + bytes_of_copies / gpu.bandwidth
    return before > LEAST_GAIN * after + OVERHEAD


def _is_copied(node: fx.Node) -> bool:
    """Whether it lies in memory before it is padded."""
    while (source := viewed(node)) is not None:
        node = source
    return node.op != "call_function" or node.target in STORED


def _is_alike(one: Any, other: Any) -> bool:
    """Whether results have the same strides."""
    return all(
        not is_fake(a) or _stride(a) == _stride(b)
        for a, b in zip(_flat(one), _flat(other), strict=True)
    )


def _stride(value: Any) -> list[Any]:
    """Without asking what symbolic sizes are."""
    return [*map(expression_of, facts_of(value).stride)]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        yield from value
    else:
        yield value
