"""Arithmetic of complex numbers as that of their real and imaginary parts, as in rotary embeddings
and around Fourier transforms.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where what is read
back by `view_as_real` or `abs`, and what a library is given, is computed on pairs: a complex tensor
is a real one with a last axis of two. No kernel of ours has complex numbers; ATen's would write
each value to memory. What a graph gives and what other operators read stays complex. A real operand
has an imaginary part of zero, as in eager, which makes NaN of an infinity.

    >>> # view_as_real(view_as_complex(q) * turns): one kernel of four products a pair
    >>> # irfft(rfft(x) * filter): one between two calls of the library
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.calls_with_fakes import Calls, order_in_memory
from inductor.fx_passes.fakes import on_gpu

aten = torch.ops.aten

PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
SHAPES = (
    aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.transpose.int, aten.permute.default, aten.expand.default, aten.slice.Tensor,
    aten.select.int, aten.clone.default, aten.alias.default, aten.index.Tensor,
    aten.index_select.default, aten.repeat.default,
)  # fmt: skip
# Which change a part of a tensor, or make one of another's size.
WRITES = (aten.slice_scatter.default, aten.select_scatter.default, aten.copy.default)
ZEROS = (aten.new_zeros.default, aten.zeros_like.default)
SUMS = (aten.add.Tensor, aten.sub.Tensor)
PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
QUOTIENTS = (aten.div.Tensor, aten.div.Scalar)
CONJUGATES = (aten._conj.default, aten.conj_physical.default)
OPERATORS = frozenset((
    *SHAPES, *WRITES, *ZEROS, *SUMS, *PRODUCTS, *QUOTIENTS, *CONJUGATES, aten.neg.default,
    aten.cat.default, aten.sum.dim_IntList, aten.sgn.default, aten.view_as_complex.default,
    aten.view_as_real.default, aten.polar.default, aten.complex.default,
))  # fmt: skip
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.permute.default)
CALLS = (aten._fft_c2r.default, aten._fft_c2c.default, aten.bmm.default, aten.mm.default)
KNOWN = OPERATORS.union(CALLS, (aten.abs.default,))
# What is worth pairs in front of a call of a library: ATen would write it to memory, and read it.
COMPUTED = frozenset((
    *WRITES, *SUMS, *PRODUCTS, *QUOTIENTS, aten.conj_physical.default, aten.clone.default,
    aten.neg.default, aten.cat.default, aten.sum.dim_IntList, aten.sgn.default,
    aten.polar.default,
))  # fmt: skip


def compute_on_pairs(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    graph = module.graph
    ends = graph.find_nodes(op="call_function", target=aten.view_as_real.default)
    pairs = _Pairs()
    changed = False
    for end in ends:
        pair = pairs.of(end.args[0])  # type: ignore[arg-type]
        if pair is None or pair.target is aten.view_as_real.default:
            continue
        if pair.meta["val"].stride() == end.meta["val"].stride():
            end.replace_all_uses_with(pair)
            changed = True
    for node in graph.find_nodes(op="call_function", target=aten.abs.default):
        changed |= _compute_length(node, pairs)
    for target in CALLS:
        for node in graph.find_nodes(op="call_function", target=target):
            for given in dict.fromkeys(node.all_input_nodes):
                changed |= _give_pairs(node, given, pairs)
    if pairs.made:
        graph.eliminate_dead_code()
    if changed:
        graph.lint()
        module.recompile()
    return module


def _compute_length(node: fx.Node, pairs: _Pairs) -> bool:
    """Have the absolute values of complex numbers computed from pairs."""
    pair = pairs.of(node.args[0])  # type: ignore[arg-type]
    if pair is None:
        return False
    length = _length(Calls(node), pair)
    if length.meta["val"].stride() != node.meta["val"].stride():
        return False
    node.replace_all_uses_with(length)
    return True


def _length(call: Calls, pair: fx.Node) -> fx.Node:
    return call(aten.hypot.default, _part(call, pair, 0), _part(call, pair, 1))


def _give_pairs(library: fx.Node, given: fx.Node, pairs: _Pairs) -> bool:
    """Have what a library's call reads computed on pairs, in memory as it lay. On a GPU: loops of a
    CPU take parts that alternate one by one, ATen's take several."""
    made: Any = given
    if not on_gpu(facts_of(given.meta["val"]).device):
        return False
    while made.target in VIEWS:
        made = made.args[0]
    if made.target not in COMPUTED or given.meta["val"].is_conj():
        return False
    pair = root = pairs.of(given)
    while root is not None and root.target in VIEWS:
        root = root.args[0]  # type: ignore[assignment]
    if pair is None or root is None or root.target is aten.view_as_real.default:
        return False  # complex numbers that lie there
    call, value = Calls(library), given.meta["val"]
    if not _lies_as(pair.meta["val"], value):
        order = [*order_in_memory(value), value.dim()]
        pair = call.copy_in_order(pair, order)
        if not _lies_as(pair.meta["val"], value):
            return False
    library.replace_input_with(given, call(aten.view_as_complex.default, pair))
    return True


def _lies_as(pair: Any, value: Any) -> bool:
    """Whether pairs are, in memory, the complex numbers of a tensor."""
    return bool(pair.stride() == (*(2 * step for step in value.stride()), 1))


class _Pairs:
    """The real tensors that stand for complex ones. made: whether nodes may be new."""

    def __init__(self) -> None:
        self.made = False
        self.pairs: dict[fx.Node, fx.Node | None] = {}

    def of(self, node: fx.Node) -> fx.Node | None:
        """The pairs of a complex value; None where there are none."""
        if node not in self.pairs:
            self.pairs[node] = self._make(node)
        return self.pairs[node]

    def _make(self, node: fx.Node) -> fx.Node | None:
        value = node.meta["val"]
        if not is_fake(value) or value.dtype not in PARTS:
            return None
        if node.target is aten.view_as_complex.default:
            return node.args[0]  # type: ignore[return-value]
        if node.op == "call_function" and all(user.target in KNOWN for user in node.users):
            pair = self._computed(node)
            if pair is not None:
                return pair
        if value.is_conj():
            return None
        return self._calls(node)(aten.view_as_real.default, node)

    def _computed(self, node: fx.Node) -> fx.Node | None:
        """The pairs of a result, from those of what it is computed from."""
        if node.target is aten.cat.default:
            given: Any = node.args[0]
            parts = [self.of(part) if _is_complex(part, node) else None for part in given]
            if None in parts:
                return None
            dim: Any = node.args[1] if len(node.args) > 1 else 0
            return self._calls(node)(aten.cat.default, parts, int(dim) % node.meta["val"].dim())
        if node.target in (aten.polar.default, aten.complex.default):
            return _made_of_two(node, self._calls(node))
        if node.target in ZEROS:
            return _zeros(node, self._calls(node))
        if node.target not in OPERATORS or not _is_complex(node.args[0], node):
            return self._of_a_real(node)
        first = self.of(node.args[0])  # type: ignore[arg-type]
        if first is None:
            return None
        call = self._calls(node)
        if node.target in SHAPES:
            return _shaped(node, first, call)
        if node.target is aten.neg.default:
            return call(aten.neg.default, first)
        if node.target is aten.sgn.default:
            return _direction(first, call)
        if node.target in CONJUGATES:
            imaginary = call(aten.neg.default, _part(call, first, 1))
            return _stacked(call, _part(call, first, 0), imaginary)
        if node.target is aten.sum.dim_IntList and not node.kwargs:
            return _sum(node, first, call)
        return None if node.kwargs else self._of_two(node, first, call)

    def _of_two(self, node: fx.Node, first: fx.Node, call: Calls) -> fx.Node | None:
        """The pairs of what a complex tensor and another operand make."""
        other: Any = node.args[1]
        if node.target in PRODUCTS and type(other) in (int, float, complex):
            number = complex(other)
            return _product_of_parts(call, first, number.real, number.imag)
        if node.target in QUOTIENTS:  # by the reciprocal, as ATen divides
            if type(other) not in (int, float) or not other:
                return None
            return _product_of_parts(call, first, 1 / float(other), 0.0)
        if node.target in PRODUCTS and _is_part(other, node):
            return _product_of_parts(call, first, other, 0.0)
        second = self.of(other) if _is_complex(other, node) else None
        if second is None:
            return None
        if node.target in WRITES:
            return _written(node, first, second, call)
        if node.target in SUMS:
            return call(node.target, first, second)
        return _product(call, first, second)

    def _of_a_real(self, node: fx.Node) -> fx.Node | None:
        """The pairs of a real tensor times a complex one."""
        if node.target is not aten.mul.Tensor or node.kwargs or not _is_part(node.args[0], node):
            return None
        if not _is_complex(node.args[1], node):
            return None
        second = self.of(node.args[1])  # type: ignore[arg-type]
        if second is None:
            return None
        return _product_of_parts(self._calls(node), second, node.args[0], 0.0)

    def _calls(self, node: fx.Node) -> Calls:
        """Puts operations behind a node."""
        self.made = True
        follower = node.next
        while follower.op == "placeholder":
            follower = follower.next
        return Calls(node, follower)


def _is_complex(given: Any, node: fx.Node) -> bool:
    """Whether an operand is complex in the precision of the result, and where the result is."""
    if not isinstance(given, fx.Node) or not is_fake(given.meta["val"]):
        return False
    value, result = given.meta["val"], node.meta["val"]
    return bool(value.dtype is result.dtype and value.device == result.device)


def _is_part(given: Any, node: fx.Node) -> bool:
    """Whether an operand is real, as precise as the result's parts, and where the result is."""
    if not isinstance(given, fx.Node) or not is_fake(given.meta["val"]):
        return False
    value, result = given.meta["val"], node.meta["val"]
    return bool(value.dtype is PARTS[result.dtype] and value.device == result.device)


def _zeros(node: fx.Node, call: Calls) -> fx.Node | None:
    """Pairs of zeros."""
    value = node.meta["val"]
    if not math.prod(value.shape) or not value.is_contiguous():
        return None
    size, real = [*value.shape, 2], PARTS[value.dtype]
    return call(aten.full.default, size, 0, dtype=real, device=value.device)


def _direction(pair: fx.Node, call: Calls) -> fx.Node:
    """Pairs over their lengths; zero of zero."""
    length = call(aten.unsqueeze.default, _length(call, pair), -1)
    is_zero = call(aten.eq.Scalar, length, 0)
    return call(aten.where.ScalarSelf, is_zero, 0.0, call(aten.div.Tensor, pair, length))


def _sum(node: fx.Node, pair: fx.Node, call: Calls) -> fx.Node | None:
    """A sum over some axes."""
    rank = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    given: Any = node.args[1]
    dims = [int(dim) % rank for dim in given or range(rank)]
    keep = len(node.args) > 2 and bool(node.args[2])
    return call(aten.sum.dim_IntList, pair, dims, keep) if rank else None


def _written(node: fx.Node, whole: fx.Node, part: fx.Node, call: Calls) -> fx.Node | None:
    """Pairs of which a part is replaced, or all."""
    target: Any = node.target
    value = node.meta["val"]
    if target is aten.copy.default:
        return call(aten.expand.default, part, [*value.shape, 2])
    rest: Any = node.args[2:]
    dim = int(rest[0]) % value.dim() if rest else 0
    return call(target, whole, part, dim, *rest[1:])


def _part(call: Calls, pair: fx.Node, at: int) -> fx.Node:
    return call(aten.select.int, pair, -1, at)


def _stacked(call: Calls, real: fx.Node, imaginary: fx.Node) -> fx.Node:
    return call(aten.stack.default, [real, imaginary], -1)


def _product(call: Calls, first: fx.Node, second: fx.Node) -> fx.Node:
    return _product_of_parts(call, first, _part(call, second, 0), _part(call, second, 1))


def _product_of_parts(call: Calls, first: fx.Node, c: Any, d: Any) -> fx.Node:
    """(a + bi)(c + di), computed as ATen does, also where d is zero."""
    a, b = _part(call, first, 0), _part(call, first, 1)
    mul = aten.mul.Tensor
    real = call(aten.sub.Tensor, call(mul, a, c), call(mul, b, d))
    return _stacked(call, real, call(aten.add.Tensor, call(mul, a, d), call(mul, b, c)))


def _made_of_two(node: fx.Node, call: Calls) -> fx.Node | None:
    """The pairs of `complex(real, imaginary)`, or of `polar(length, angle)`."""
    first, second = node.args
    values = [given.meta["val"] for given in node.args]  # type: ignore[union-attr]
    if len({value.device for value in values}) > 1:
        return None
    if node.target is aten.polar.default:
        turns = call(aten.cos.default, second), call(aten.sin.default, second)
        return _stacked(call, *(call(aten.mul.Tensor, first, turn) for turn in turns))
    size = node.meta["val"].shape
    if any(value.shape != size for value in values):
        return None
    return _stacked(call, first, second)  # type: ignore[arg-type]


def _shaped(node: fx.Node, pair: fx.Node, call: Calls) -> fx.Node | None:
    """A view, copy or read of complex numbers, of their pairs. Dimensions count from the front."""
    target: Any = node.target
    if node.kwargs and target is not aten.clone.default:
        return None
    rest: Any = node.args[1:]
    dims = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    if target is aten.alias.default:
        return pair
    if target is aten.clone.default:
        rows = node.kwargs.get("memory_format") is torch.contiguous_format
        return call.copy(pair) if rows else call(target, pair)
    if target in (aten.view.default, aten._unsafe_view.default):
        shape = [*node.meta["val"].shape, 2]
        if not pair.meta["val"].is_contiguous():
            return None
        return call(aten.view.default, pair, shape)
    if target is aten.repeat.default:
        return call(target, pair, [*rest[0], 1])
    if target is aten.expand.default:
        return call(target, pair, [*node.meta["val"].shape, 2])
    if target is aten.permute.default:
        return call(target, pair, [*(int(dim) % dims for dim in rest[0]), dims])
    if target is aten.index.Tensor:
        return call(target, pair, rest[0])
    if target is aten.transpose.int:
        return call(target, pair, *(int(dim) % dims for dim in rest))
    if target is aten.index_select.default and dims == 0:
        return None
    dim = int(rest[0]) if rest else 0
    dim %= dims + 1 if target is aten.unsqueeze.default else dims
    return call(target, pair, dim, *rest[1:])
