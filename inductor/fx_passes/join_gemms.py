"""Small GEMMs of one left operand become one, where their weights lie in order in memory.

In: a functional ATen graph of inference with fakes, and the addresses of its inputs. Out: the same
graph (changed in place), where GEMMs such as those of query, key and value are one
`dynamo_jit::joined_gemms` (`joined_gemms.py`) and columns of its result. A GEMM that does
not fill the device leaves most of it idle at its end; together they do so once, with one launch.

The columns have other strides than results of their own. So those who read them, also through
views, are kernels of ours, GEMMs and attention, whose results do not depend on that. What a
graph returns stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from dynamo.aot.fakes import facts_of, is_fake, is_static
from inductor.fx_passes.places import NotInPlace, OpOverload, is_view, run_on_fake
from inductor.operators.joined_gemms import OPERATOR, lie_in_order
from inductor.runtime.gpu_properties import properties_of

aten = torch.ops.aten
HasKernel = Callable[[OpOverload], bool]
TURNED = (aten.t.default, aten.permute.default, aten.transpose.int)
READERS = frozenset("""
    aten::mm aten::addmm aten::bmm aten::baddbmm dynamo_jit::attention
    aten::_scaled_dot_product_flash_attention aten::_scaled_dot_product_efficient_attention
    aten::_scaled_dot_product_cudnn_attention
""".split())  # fmt: skip
TILE = 128 * 256  # elements of a result that a multiprocessor computes at once
FEW_ROWS = 16  # (not measured) for which templates of ours compute such GEMMs side by side


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A GEMM of a weight (n, k) that is an input; number: the order in the graph."""

    node: fx.Node
    number: int
    weight: fx.Node
    bias: fx.Node | None
    address: int


def addresses_of(inputs: Sequence[Any]) -> dict[int, int]:
    """Where the dense tensors among the inputs lie on a GPU, by position."""
    return {
        at: tensor.data_ptr() for at, tensor in enumerate(inputs)
        if type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.is_cuda and tensor.layout is torch.strided and tensor.is_contiguous()
    }  # fmt: skip


def join_gemms(
    module: fx.GraphModule, addresses: Mapping[int, int], has_kernel: HasKernel,
    only_attention: bool = False,
) -> fx.GraphModule:
    """See the top of the file. addresses: by positions of inputs. has_kernel: tells operators that
    become part of kernels. only_attention: where kernels may compute GEMMs themselves, join only
    what no such kernel reads."""
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    known = {places[at]: address for at, address in addresses.items()}
    changed = False
    for members in _groups(module.graph, known):
        for run in _runs(members):
            fits = all(_may_move(each.node, has_kernel, only_attention) for each in run)
            changed |= fits and _join(module.graph, run)
    if changed:
        module.graph.lint()
        module.recompile()
    return module


def _groups(graph: fx.Graph, known: Mapping[fx.Node, int]) -> Iterable[list[_Member]]:
    written = {node.args[0] for node in graph.nodes if node.target is aten.copy_.default}
    found: dict[tuple[Any, ...], list[_Member]] = {}
    for number, node in enumerate(graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        bias, left, right = _factors(node)
        weight: Any = right.args[0] if right.target in TURNED else None
        inputs = [weight] if bias is None else [weight, bias]
        if any(one not in known or one in written for one in inputs) or not _is_small(node):
            continue
        if _are_turned(weight, right) and (bias is None or _is_row(bias, node)):
            member = _Member(node, number, weight, bias, known[weight])
            kind = (left, node.meta["val"].dtype, bias is None)
            found.setdefault(kind, []).append(member)
    return found.values()


def _factors(node: fx.Node) -> tuple[Any, Any, Any]:
    """Bias or None, left and right operand of `mm` or `addmm`."""
    return (None, *node.args)[-3:]  # type: ignore[return-value]


def _is_small(node: fx.Node) -> bool:
    """Whether the device is not filled by it, and no template of ours is likely to compute it."""
    result: Any = node.meta.get("val")
    if not is_fake(result) or not is_static(facts_of(result)):
        return False
    rows, columns = result.shape
    at_once = properties_of(result.device).multiprocessors * TILE
    return (FEW_ROWS < rows or result.dtype.itemsize != 2) and rows * columns <= at_once


def _are_turned(weight: fx.Node, right: fx.Node) -> bool:
    """Whether the right operand is the transpose of the dense weight."""
    (n, k), shown = weight.meta["val"].shape, right.meta["val"]
    return tuple(shown.shape) == (k, n) and tuple(shown.stride()) == (1, k)


def _is_row(bias: fx.Node, node: fx.Node) -> bool:
    given, result = bias.meta["val"], node.meta["val"]
    return tuple(given.shape) == (result.shape[1],) and given.dtype is result.dtype


def _runs(members: list[_Member]) -> Iterable[list[_Member]]:
    """Members whose weights lie one behind another, at least two."""
    ordered = sorted(members, key=lambda each: each.address)
    run: list[_Member] = []
    for each in ordered:
        if run:
            sizes = [_bytes(run[-1].weight), _bytes(each.weight)]
            if not lie_in_order([run[-1].address, each.address], sizes):
                if len(run) > 1:
                    yield run
                run = []
        run.append(each)
    if len(run) > 1:
        yield run


def _bytes(node: fx.Node) -> int:
    fake = node.meta["val"]
    count: int = fake.numel() * fake.dtype.itemsize
    return count


def _may_move(node: fx.Node, has_kernel: HasKernel, only_attention: bool) -> bool:
    """Whether all readers, also those of views, give the same for other strides."""
    for user in node.users:
        target = user.target
        if is_view(user):
            if user.args[0] is not node or not _may_move(user, has_kernel, only_attention):
                return False
        elif not isinstance(target, OpOverload) or target._schema.is_mutable:
            return False
        elif target._schema.name not in READERS and (only_attention or not has_kernel(target)):
            return False
    return True


def _join(graph: fx.Graph, run: list[_Member]) -> bool:
    """Puts one GEMM in the place of the run's first; says whether that was possible."""
    first = min(run, key=lambda each: each.number).node
    left: Any = first.args[-2]
    weights = [each.weight for each in run]
    biases = [each.bias for each in run if each.bias is not None]
    with graph.inserting_before(first):
        whole = graph.call_function(OPERATOR, (left, weights, biases))
        columns = []
        start = 0
        for each in run:
            end = start + each.node.meta["val"].shape[1]
            columns.append(graph.call_function(aten.slice.Tensor, (whole, 1, start, end)))
            start = end
    try:
        shown = run_on_fake(OPERATOR, left.meta["val"], (weights, biases))
        found: dict[fx.Node, Any] = {}
        for each, part in zip(run, columns, strict=True):
            fake = run_on_fake(aten.slice.Tensor, shown, part.args[1:])
            part.meta = {**each.node.meta, "val": fake}
            _views_of(each.node, fake, found)
    except NotInPlace:
        for node in (*columns, whole):
            graph.erase_node(node)
        return False
    whole.meta = {**first.meta, "val": shown}
    for node, fake in found.items():
        node.meta = {**node.meta, "val": fake}
    for each, part in zip(run, columns, strict=True):
        each.node.replace_all_uses_with(part)
        graph.erase_node(each.node)
    return True


def _views_of(node: fx.Node, fake: Any, views: dict[fx.Node, Any]) -> None:
    """What all views of a node are where it is this fake. Errors: NotInPlace."""
    for user in node.users:
        if is_view(user):
            rest: Any = user.args[1:]
            if isinstance(user.target, OpOverload):
                views[user] = run_on_fake(user.target, fake, rest, user.kwargs)
            else:
                views[user] = fake[rest[0]]
            _views_of(user, views[user], views)
