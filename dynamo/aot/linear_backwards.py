"""Whether the backward of an autograd function is linear in the gradients that come to it.

In: the nodes that such a backward has recorded, the gradients that come in, those that go out.
Out: False where it is not linear (`grad + 1`, `grad.clamp(-1, 1)`), or not known to be.

A linear one may run for two parts of a gradient, one after the other: the sum is the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import fx

from dynamo.graph_operators.arrived import ARRIVED

aten = torch.ops.aten

# Linear in the first argument; the others are no gradients.
IN_FIRST = frozenset("""
    _adaptive_avg_pool2d _adaptive_avg_pool3d _conj _conj_physical _fft_c2c _fft_c2r _fft_r2c
    _neg_view _reshape_alias _to_copy _unsafe_index _unsafe_view alias as_strided avg_pool2d
    avg_pool3d clone col2im conj_physical constant_pad_nd cumsum detach diag_embed diagonal
    expand flip fold gather im2col imag index index_select lift_fresh mean movedim
    narrow neg permute pixel_shuffle pixel_unshuffle positive real reflection_pad1d
    reflection_pad2d reflection_pad3d repeat replication_pad1d replication_pad2d replication_pad3d
    roll rot90 select slice split split_with_sizes squeeze sum sum_to_size t take trace transpose
    tril triu unbind unfold unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d view view_as
    view_as_complex view_as_real
""".split())
# Linear in each of the first two, where the other is no gradient.
IN_EITHER = frozenset("bmm convolution dot linalg_cross linear matmul mm mul mv vdot".split())
# Linear in all of their tensors together, but for indices.
IN_ALL = frozenset("""
    _unsafe_index_put add as_strided_scatter cat complex diagonal_scatter index_add index_copy
    index_put scatter scatter_add select_scatter slice_scatter stack sub
""".split())
ZEROS = frozenset("new_zeros zeros zeros_like".split())
# They read no element of their argument.
SIZES = frozenset("empty_like full_like new_empty new_full new_ones ones_like sym_size".split())
# Names of arguments: those that are no addends, and numbers that are.
INDICES, NUMBERS = frozenset(("index", "indices")), frozenset(("other", "value"))


def is_linear(
    nodes: Iterable[fx.Node], grads: Collection[fx.Node], results: Iterable[fx.Node | None]
) -> bool:
    """nodes: what the backward has recorded, in order. grads: what comes in. results: what goes
    out, None where there is no gradient."""
    kinds = _Kinds(grads)
    return all(map(kinds.take, nodes)) and all(map(kinds.may_add, results))


class _Kinds:
    """The nodes that are linear in the gradients (`linear`), or zeros; others depend on none."""

    def __init__(self, grads: Iterable[fx.Node]) -> None:
        self.linear, self.zeros = set(grads), set[fx.Node]()

    def take(self, node: fx.Node) -> bool:
        """Tells what a node is; False where it depends on a gradient, not linearly."""
        name = _name_of(node.target)
        sources = node.all_input_nodes
        if name in ZEROS or (name == "full" and node.args[1] == 0):
            self.zeros.add(node)
        elif name in SIZES:
            pass
        elif self.linear.isdisjoint(sources):
            if name in IN_FIRST and sources and sources[0] in self.zeros:
                self.zeros.add(node)
        elif self._keeps(name, node):
            self.linear.add(node)
        else:
            return False
        return True

    def may_add(self, node: Any) -> bool:
        """True for an addend that keeps a sum linear."""
        return node is None or node in self.linear or node in self.zeros

    def _keeps(self, name: str, node: fx.Node) -> bool:
        value, args = node.meta.get("val"), node.args
        if isinstance(value, torch.Tensor) and not (
                value.is_floating_point() or value.is_complex()):
            return False
        if node.target in (operator.getitem, ARRIVED):
            return True
        if name in IN_FIRST or name.endswith(("backward", "backward_data")):
            return self._hangs_on(node, args[:1])
        if name in IN_EITHER:
            bias = args[2:3] if name in ("convolution", "linear") else ()
            at = 0 if args[0] in self.linear else 1
            return self._hangs_on(node, args[at : at + 1]) and all(map(self.may_add, bias))
        check = SPECIAL.get(name)
        if check is not None:
            return check(self, node)
        return name in IN_ALL and self._adds(node)

    def _hangs_on(self, node: fx.Node, places: Collection[Any]) -> bool:
        """True where the node takes gradients there, and nowhere else."""
        given = [source for source in _flat((node.args, node.kwargs)) if source in self.linear]
        return len(given) == len(places) and all(place in self.linear for place in places)

    def _adds(self, node: fx.Node) -> bool:
        """True where all tensors but indices are addends, and no number but zero is one."""
        arguments = node.target._schema.arguments  # type: ignore[union-attr]
        names = [argument.name for argument in arguments]
        for name, value in [*zip(names, node.args, strict=False), *node.kwargs.items()]:
            if name in NUMBERS and isinstance(value, (int, float, complex)) and value != 0:
                return False
            for item in _flat(value):
                if item in self.linear if name in INDICES else not self.may_add(item):
                    return False
        return True

    def _divides(self, node: fx.Node) -> bool:
        return not node.kwargs.get("rounding_mode") and self._hangs_on(node, node.args[:1])

    def _copies(self, node: fx.Node) -> bool:
        return node.args[1] in self.linear

    def _where(self, node: fx.Node) -> bool:
        condition, *others = node.args
        return condition not in self.linear and all(
            self.may_add(other) if isinstance(other, fx.Node) else bool(other == 0)
            for other in others)

    def _masked(self, node: fx.Node) -> bool:
        return bool(node.args[2] == 0) and self._hangs_on(node, node.args[:1])

    def _product_and_addend(self, node: fx.Node) -> bool:
        addend, *factors = node.args[:3]
        given = [factor for factor in factors if factor in self.linear]
        return self.may_add(addend) and len(given) == 1


SPECIAL: dict[str, Callable[[_Kinds, fx.Node], bool]] = {
    "div": _Kinds._divides,
    "copy": _Kinds._copies,
    "where": _Kinds._where,
    "masked_fill": _Kinds._masked,
    "addcmul": _Kinds._product_and_addend,
    "addmm": _Kinds._product_and_addend,
    "addmv": _Kinds._product_and_addend,
    "baddbmm": _Kinds._product_and_addend,
}


def _flat(values: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(values, lambda node: found.append(node))
    return found


def _name_of(target: Any) -> str:
    """The name of an operator of ATen; "" of anything else."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return ""
    return str(target._schema.name.partition("::")[2])
