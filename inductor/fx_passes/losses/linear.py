"""Whether gradients are proportional to a number: the gradient that comes from upstream.

Then they can be computed for 1 in its place, before it is known, and multiplied by it later. All
that autograd's own formulas do is linear; a function or a hook of the program's need not be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from inductor.fx_passes.losses.regions import VIEWS, filling

aten = torch.ops.aten

# Linear in the first argument, whatever the others are.
FIRST = frozenset({
    *VIEWS, aten.expand.default, aten.clone.default, aten.neg.default, aten.t.default,
    aten.permute.default, aten.transpose.int, aten.slice.Tensor, aten.sum.default,
    aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.div.Tensor, aten.div.Scalar,
    aten.mul.Scalar, aten.tanh_backward.default, aten.sigmoid_backward.default,
})  # fmt: skip
SUMMED = (aten.add.Tensor, aten.sub.Tensor)


class NotLinear(Exception):
    """It may not be proportional."""


class Degrees:
    """How often the number is a factor of a node, 0 or 1. Errors: NotLinear.

    late: all that is computed from the number.
    """

    def __init__(self, number: fx.Node, late: set[fx.Node]) -> None:
        self.late = late
        self.known: dict[fx.Node, int] = {number: 1}

    def of(self, node: Any) -> int:
        """Of a node, or of a plain number."""
        if not isinstance(node, fx.Node) or node not in self.late:
            return 0
        if node not in self.known:
            self.known[node] = self._number_of(node)
        return self.known[node]

    def _number_of(self, node: fx.Node) -> int:
        rule = RULES.get(node.target)
        if rule is None or not rule(self, node):
            raise NotLinear(str(node))
        return 1

    def _is_first(self, node: fx.Node) -> bool:
        first = node.args[0]
        others = [given for given in node.all_input_nodes if given is not first]
        doubled = any(given is first for given in node.args[1:])
        return self.of(first) == 1 and not doubled and not any(map(self.of, others))

    def _is_cast(self, node: fx.Node) -> bool:
        return node.meta["val"].dtype.is_floating_point and self.of(node.args[0]) == 1

    def _is_sum(self, node: fx.Node) -> bool:
        return all(self.of(given) == 1 or _is_zero(given) for given in node.args[:2])

    def _is_multiple(self, node: fx.Node) -> bool:
        return sum(map(self.of, node.args[:2])) == 1

    def _is_choice(self, node: fx.Node) -> bool:
        condition, *values = node.args
        return self.of(condition) == 0 and all(
            self.of(given) == 1 or _is_zero(given) for given in values)

    def _is_masked(self, node: fx.Node) -> bool:
        given, mask, value = node.args
        return self.of(given) == 1 and self.of(mask) == 0 and _is_zero(value)

    def _is_spread(self, node: fx.Node) -> bool:
        """Values written into zeros."""
        base, *rest = node.args
        values = [given for given in rest if self.of(given)]
        place = 0 if node.target is aten.slice_scatter.default else 2
        return filling(base) == 0 and values == [rest[place]]


RULES: dict[Any, Callable[[Degrees, fx.Node], bool]] = {
    **dict.fromkeys(FIRST, Degrees._is_first),
    **dict.fromkeys(SUMMED, Degrees._is_sum),
    aten._to_copy.default: Degrees._is_cast,
    aten.mul.Tensor: Degrees._is_multiple,
    aten.where.self: Degrees._is_choice,
    aten.masked_fill.Scalar: Degrees._is_masked,
    aten.masked_fill.Tensor: Degrees._is_masked,
    aten.scatter_add.default: Degrees._is_spread,
    aten.slice_scatter.default: Degrees._is_spread,
}


def _is_zero(value: Any) -> bool:
    known = filling(value) if isinstance(value, fx.Node) else value
    return type(known) in (int, float) and known == 0
