"""Large results of GEMMs that are added up, as GEMMs that add.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where `x + a @ b` on
a GPU, with a large `x` that the graph makes and that nothing else wants, is `addmm(x, a, b)`, which
is then written where `x` lies (`places.SUMS`), if the sum is a result of the graph. So the gradient
of a weight that is used for a chunk of rows at a time is there once: a kernel that adds all parts
up holds them all. The sum is rounded once, where each part was rounded before. (What a kernel reads
is added up there, in the same bytes.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import bytes_of, facts_of, is_fake
from inductor.config import config
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.in_place import is_made

aten = torch.ops.aten
LARGE = 64 << 20  # bytes; smaller ones are added by a kernel; chosen for memory, on any device
# Arguments with which operators transpose a matrix.
TURNS: dict[Any, list[tuple[Any, ...]]] = {
    aten.permute.default: [([1, 0],)],
    aten.transpose.int: [(0, 1), (1, 0), (-1, -2), (-2, -1)],
}


def add_in_gemms(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file. Nothing where templates compete, which a kernel may follow."""
    if config.max_autotune:
        return module
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        operands = _operands(node)
        made = None if operands is None else _added(node, *operands)
        if made is not None:
            changed = True
        if made is not None and facts_of(made.meta["val"]).stride == _strides(node):
            node.replace_all_uses_with(made)  # else what is new is dead
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand of a sum, or what it is a transposed view of."""

    node: fx.Node
    turned: bool


def _strides(node: fx.Node) -> Any:
    return facts_of(node.meta["val"]).stride


def _operands(node: fx.Node) -> tuple[_Operand, _Operand] | None:
    """What is added to, and the GEMM: the later operand, whose own operands may then go."""
    value: Any = node.meta.get("val")
    if node.kwargs or len(node.args) != 2 or not is_fake(value) or not on_gpu(value.device):
        return None
    left, right = node.args
    if left is right or not all(_is_like(each, node) for each in (left, right)):
        return None
    if not _is_result(node):
        return None
    total, gemm = sorted((_peeled(each) for each in (left, right)), key=lambda each: each.node)  # type: ignore[arg-type]
    fits = gemm.node.target is aten.mm.default and len(gemm.node.users) == 1
    made = len(total.node.users) == 1 and total.node.op == "call_function" and is_made(total.node)
    return (total, gemm) if fits and made else None


def _is_like(given: Any, node: fx.Node) -> bool:
    """Whether an operand is as large as the sum, and wanted for it alone."""
    if not isinstance(given, fx.Node) or not is_fake(given.meta.get("val")) or (
            len(given.users) != 1 or given.op != "call_function"):
        return False
    one, other = facts_of(given.meta["val"]), facts_of(node.meta["val"])
    known = all(type(extent) is int for extent in one.size)
    alike = one.dtype is other.dtype and one.size == other.size
    return known and alike and len(one.size) == 2 and bytes_of(given.meta["val"]) >= LARGE


def _is_result(node: fx.Node) -> bool:
    """Whether a sum is given back, perhaps transposed, or with more added to it."""
    return all(
        user.op == "output" or (_turns(user) or user.target is aten.add.Tensor) and _is_result(user)
        for user in node.users)


def _turns(node: fx.Node) -> bool:
    return node.target is aten.t.default or node.args[1:] in TURNS.get(node.target, ())


def _peeled(node: fx.Node) -> _Operand:
    one, turned = node, False
    while len(one.users) == 1 and _turns(one):
        one, turned = one.args[0], not turned  # type: ignore[assignment]
    return _Operand(one, turned)


def _added(node: fx.Node, total: _Operand, gemm: _Operand) -> fx.Node:
    call = Calls(node, before=gemm.node)
    factors: list[Any] = [*gemm.node.args]
    if gemm.turned != total.turned:
        factors = [call(aten.t.default, each) for each in reversed(factors)]
    made = call(aten.addmm.default, total.node, *factors)
    return Calls(node)(aten.t.default, made) if total.turned else made
