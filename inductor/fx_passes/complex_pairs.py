"""Arithmetic of complex numbers as that of their real and imaginary parts, as in rotary embeddings.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where what is read
back by `view_as_real` is computed on pairs: a complex tensor is a real one with a last axis of two.
No kernel of ours has complex numbers; ATen's would write each value to memory. What a graph gives
and what other operators read stays complex, and so do operations with a real tensor (eager gives
that an imaginary part of zero, which makes NaN of an infinity).

    >>> # view_as_real(view_as_complex(q) * turns): one kernel of four products a pair
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import is_fake
from inductor.fx_passes.calls_with_fakes import Calls

aten = torch.ops.aten

PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
SHAPES = (
    aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.transpose.int, aten.permute.default, aten.expand.default, aten.slice.Tensor,
    aten.select.int, aten.clone.default, aten.alias.default, aten.index.Tensor,
    aten.index_select.default, aten.repeat.default,
)  # fmt: skip
SUMS = (aten.add.Tensor, aten.sub.Tensor)
CONJUGATES = (aten._conj.default, aten.conj_physical.default)
OPERATORS = frozenset((
    *SHAPES, *SUMS, *CONJUGATES, aten.mul.Tensor, aten.neg.default, aten.cat.default,
    aten.view_as_complex.default, aten.view_as_real.default, aten.polar.default,
    aten.complex.default,
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
    if pairs.made:
        graph.eliminate_dead_code()
    if changed:
        graph.lint()
        module.recompile()
    return module


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
        if node.op == "call_function" and all(user.target in OPERATORS for user in node.users):
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
        if node.target not in OPERATORS or not _is_complex(node.args[0], node):
            return None
        first = self.of(node.args[0])  # type: ignore[arg-type]
        if first is None:
            return None
        call = self._calls(node)
        if node.target in SHAPES:
            return _shaped(node, first, call)
        if node.target is aten.neg.default:
            return call(aten.neg.default, first)
        if node.target in CONJUGATES:
            imaginary = call(aten.neg.default, _part(call, first, 1))
            return _stacked(call, _part(call, first, 0), imaginary)
        if node.kwargs:
            return None
        if node.target is aten.mul.Tensor and type(node.args[1]) in (float, complex):
            number = complex(node.args[1])  # type: ignore[arg-type]
            return _product_of_parts(call, first, number.real, number.imag)
        if not _is_complex(node.args[1], node):
            return None
        second = self.of(node.args[1])  # type: ignore[arg-type]
        if second is None:
            return None
        if node.target in SUMS:
            return call(node.target, first, second)
        return _product(call, first, second)

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
        return call(target, pair)
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
