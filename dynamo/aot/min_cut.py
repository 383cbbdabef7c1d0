"""Which values forward saves for backward: the minimum cut (see `partition`)."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import bytes_of, elements_of, is_fake
from dynamo.aot.flow import FlowNetwork
from dynamo.aot.graphs import ancestors, is_effect, is_once
from dynamo.aot.joint import SAVED, viewed
from dynamo.aot.partition import Halves
from dynamo.aot.records import FAILS, Unsupported

aten = torch.ops.aten

# Prices in hundredths of a byte.
_FREE = 1
_BYTE = 100
_BYTE_OF_VIEW = 101  # rather save what it views
_BYTE_OF_NEW = 200  # forward would not write it to memory otherwise
_BYTE_OF_COPY = 201  # rather save what is computed from it

FEW = 8  # one of so many elements
SEVERAL = 2  # times as much as is there, as by two experts a token; not measured
MANY = 4096  # elements, for one
LARGE_COPY = 16 << 20  # bytes of a weight in another layout; chosen, not measured

# Elementwise operations without torch's tag, and views that make no fake of their storage.
_CHEAP = frozenset(
    {
        aten._to_copy.default, aten.clone.default, aten.copy.default, aten.where.self,
        aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.arange.default, aten.arange.start,
        aten.arange.start_step, aten.empty.memory_format, aten.empty_like.default,
        aten.new_empty_strided.default, aten.gelu.default, aten.silu.default, aten.tril.default,
        aten.triu.default, aten._unsafe_view.default,
    }
)  # fmt: skip
_SCALES = frozenset([aten.mul.Tensor, aten.add.Tensor])
# Tensors of one number, or identities, from sizes alone: to write them anew never costs more than
# to keep them.
_CONSTANTS = frozenset(
    {
        aten.full_like.default, aten.ones_like.default, aten.zeros_like.default,
        aten.new_zeros.default, aten.new_full.default, aten.new_ones.default, aten.full.default,
        aten.zeros.default, aten.ones.default, aten.scalar_tensor.default, aten.eye.default,
        aten.eye.m,
    }
)  # fmt: skip


def min_cut(halves: Halves, anything: bool = False) -> list[fx.Node]:
    """The cheapest values from which backward can be computed, in order. anything: whatever gives
    the same again may be recomputed, from any input."""
    wanted = read_by_backward(halves)
    if not wanted:
        return []
    side = _Network(halves, wanted, anything).flow.source_side("source", "sink")
    if side is None:
        raise Unsupported("backward reads what forward can't save")
    return [node for node in halves.available if (node, 0) in side and (node, 1) not in side]


def save_all(halves: Halves) -> list[fx.Node]:
    """What backward reads, as it is: no recomputation except of constants and of tuples' items."""
    found = []
    for node in read_by_backward(halves):
        if node.op != "get_attr":
            found.append(node)
    return [node for node in halves.available if node in set(found)]


def read_by_backward(halves: Halves) -> list[fx.Node]:
    """Values without tangents that backward reads, or that are gradients themselves."""
    read = {
        given
        for node in halves.backward
        for given in node.all_input_nodes
        if given not in halves.backward
    }
    read |= {node for node in halves.gradients if node is not None and node not in halves.backward}
    return [node for node in halves.available if node in read]


class _Network:
    """The flow network: (node, 0) -> (node, 1) has the price of saving the node.

    Below it (node, 1) -> (user, 0) is free to cross for recomputation. "source" holds what can't be
    computed in backward, "sink" is backward.
    """

    def __init__(self, halves: Halves, wanted: list[fx.Node], anything: bool) -> None:
        self.anything = anything
        self.flow = FlowNetwork()
        self.halves = halves
        self.outputs = set(halves.outputs)
        self.inputs = set(halves.inputs)
        self.depths = _depths(halves.available)
        self.needed = ancestors(halves.computed)
        for node in halves.available:
            self._add(node)
        for node in wanted:
            self.flow.add((node, 1), "sink", None)

    def _add(self, node: fx.Node) -> None:
        self.flow.add((node, 0), (node, 1), self._price(node))
        if node in self.inputs or not self._may_recompute(node):
            self.flow.add("source", (node, 0), None)
        for user in node.users:
            if user not in self.halves.backward and user.op != "output":
                self.flow.add((node, 1), (user, 0), None)

    def _price(self, node: fx.Node) -> int | None:
        """Hundredths of bytes; None for what must not be saved."""
        value = node.meta["val"]
        if not is_fake(value):
            return None
        if self.anything and node in self.inputs:
            return _FREE
        if node in self.halves.copied:
            return max(bytes_of(value), 1) * _BYTE_OF_COPY
        bound = node in self.inputs or node in self.outputs
        if bound:
            return _FREE if node.meta.get(SAVED) or node in self.halves.loose else None
        base = viewed(node)
        if base is None:
            price = _BYTE if self._is_in_memory(node) else _BYTE_OF_NEW
            return max(bytes_of(value), 1) * price
        root = node
        while base is not None:
            root, base = base, viewed(base)
        if root in self.inputs and not self.anything:
            return None
        return max(elements_of(value) * value.dtype.itemsize, 1) * _BYTE_OF_VIEW

    def _is_in_memory(self, node: fx.Node) -> bool:
        """True where forward writes the value anyway."""
        if not _is_cheap(node):
            return True
        work = [node]
        while work:
            for user in work.pop().users:
                if user in self.halves.backward or user.op == "output":
                    continue
                if viewed(user) is not None:
                    work.append(user)
                elif not _fuses(user) and not _reads_few(user):
                    return True
                elif self.depths.get(user, 0) > self.depths[node] and not _is_wider(node):
                    return True  # it waits for a GEMM, say, as a residual does
        return False

    def _may_recompute(self, node: fx.Node) -> bool:
        if node in self.halves.decided:
            return False
        if self.anything:
            return node.op == "get_attr" or FAILS not in node.meta and not is_once(node)
        if node not in self.needed and not is_effect(node) and not is_once(node):
            return True  # nor is it twice that it is computed: only backward wants it
        if node.op == "get_attr" or node.target is operator.getitem:
            return node.op == "get_attr" or _is_cheap(node.args[0])
        if not _is_cheap(node):
            return False
        if self._is_rewritten(node) and not (
            self._is_input_in_other_layout(node) or _repeats_rows(node) or self._is_modulated(node)
        ):
            return False
        if viewed(node) is not None or not node.all_input_nodes or node.target in _CONSTANTS:
            return True
        return not _is_spread(node)

    def _is_input_in_other_layout(self, node: fx.Node) -> bool:
        """True for a copy of data, images say, that a convolution on a GPU wants: data stay where
        they are, so the copy is made again. That of a weight is saved, for there are many, unless
        it is large: half a gigabyte in a UNet of Stable Diffusion XL."""
        if node.target is not aten.clone.default or not _is_on_gpu(node):
            return False
        given = node.args[0]
        is_large = bytes_of(node.meta["val"]) >= LARGE_COPY
        return given in self.inputs and (is_large or given not in self.halves.differentiated)

    def _is_modulated(self, node: fx.Node) -> bool:
        """True for what few numbers scale and shift on a GPU, as the numbers of each image do to a
        norm's result, where kernels of backward read that: they write it along with their own
        results. (DiT-L/2 keeps 128 of 1706 MiB less so, for 1 % of its step.)"""
        if not _is_on_gpu(node):
            return False
        seen = node
        while seen.target in _SCALES:
            size = elements_of(seen.meta["val"])
            large = [given for given in seen.all_input_nodes
                     if is_fake(given.meta["val"]) and elements_of(given.meta["val"]) == size]
            if len(large) != 1:
                return False
            seen = large[0]
            while (base := viewed(seen)) is not None:
                seen = base
            if self._is_read_by_kernels(seen):
                return True
        return False

    def _is_read_by_kernels(self, node: fx.Node) -> bool:
        """Whether kernels of backward read it, through views or not, in any case."""
        work = [node]
        while work:
            for user in work.pop().users:
                if user.op != "output" and viewed(user) is not None:
                    work.append(user)
                elif user in self.halves.backward and _fuses(user):
                    return True
        return False

    def _is_rewritten(self, node: fx.Node) -> bool:
        """True where some operation of backward that does not fuse would read it from memory."""
        if viewed(node) is not None or not node.all_input_nodes or node.target in _CONSTANTS:
            return False
        work, seen = [node], {node}
        while work:
            for user in work.pop().users:
                if user in seen or user.op == "output":
                    continue
                seen.add(user)
                if viewed(user) is not None:
                    work.append(user)
                elif user in self.halves.backward and not _fuses(user):
                    return True
        return False


def _depths(nodes: list[fx.Node]) -> dict[fx.Node, int]:
    """How many operations that do not fuse lie before each node, at most, one behind the other."""
    depths: dict[fx.Node, int] = {}
    for node in nodes:
        given = (other for other in node.all_input_nodes if other in depths)
        depths[node] = max((depths[other] + (not _is_free(other)) for other in given), default=0)
    return depths


def _is_free(node: fx.Node) -> bool:
    """Whether what reads a node may be part of its kernel."""
    return node.op != "call_function" or node.target is operator.getitem or _fuses(node)


def _is_on_gpu(node: fx.Node) -> bool:
    value = node.meta["val"]
    return is_fake(value) and value.device.type != "cpu"


def _is_cheap(node: Any) -> bool:
    if is_effect(node) or is_once(node):
        return False
    # Kernels of a GPU read a table as they need it.
    if node.target is aten.embedding.default or _reads_places(node):
        return _is_on_gpu(node)
    if viewed(node) is not None or node.target in _CHEAP or node.target in _CONSTANTS:
        return True
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _reads_places(node: fx.Node) -> bool:
    """Whether it reads elements at places that are given as numbers, fewer than the elements."""
    if node.target is aten.gather.default:
        index: Any = node.args[2]
        while (base := viewed(index)) is not None:
            index = base
        return FEW * elements_of(index.meta["val"]) <= elements_of(node.meta["val"])
    if node.target is not aten.index.Tensor:
        return False
    places: Any = node.args[1]
    return all(
        place is None or place.meta["val"].dtype in (torch.int64, torch.int32) for place in places)


def _repeats_rows(node: fx.Node) -> bool:
    """Whether a read gives several times as much as there is: each token's row to each of its
    experts, say. To keep that costs memory, to read it again a fraction of a GEMM with it."""
    if not _reads_places(node):
        return False
    given: Any = node.args[0]
    return elements_of(node.meta["val"]) >= SEVERAL * elements_of(given.meta["val"])


def _is_spread(node: fx.Node) -> bool:
    """Whether few numbers meet many: each of the many would compute them again."""
    if not is_fake(node.meta["val"]) or node.target is aten._to_copy.default:
        return False
    least = MANY * elements_of(node.meta["val"])
    work = [node]
    while work:
        for user in work.pop().users:
            if user.op == "output" or not is_fake(user.meta["val"]):
                continue
            if viewed(user) is not None:
                work.append(user)
            elif elements_of(user.meta["val"]) >= least:
                return True
    return False


def _reads_few(node: fx.Node) -> bool:
    """Whether it takes few elements of what it reads, which needs no memory for the others."""
    if node.target is not aten.gather.default:
        return False
    given: Any = node.args[0]
    return FEW * elements_of(node.meta["val"]) < elements_of(given.meta["val"])


def _is_wider(node: fx.Node) -> bool:
    """Whether it is what takes fewer bytes in another dtype, which waits in its place."""
    if node.target is not aten._to_copy.default:
        return False
    given = node.all_input_nodes[0].meta["val"]
    return bool(given.dtype.itemsize < node.meta["val"].dtype.itemsize)


def _fuses(node: fx.Node) -> bool:
    if _is_cheap(node):
        return True
    target = node.target
    if target is aten.max_pool2d_with_indices_backward.default:  # on a GPU it gathers
        return bool(node.meta["val"].device.type != "cpu")
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.reduction in target.tags
