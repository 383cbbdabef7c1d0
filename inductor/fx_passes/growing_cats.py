"""Concatenations that grow share their memory, as in a dense block.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where of
`cat([a, b])`, `cat([a, b, c])`, .. only the last one has memory of its own: each part is written
there once, and the shorter ones are views of its beginning. Else each of n concatenations copies
all parts before it, with a kernel for each. Sharing ends where an operator is not ours, which may
want the strides that the shorter one had; results of a graph (what backward will read, too) have
their own memory.

    >>> # y = cat([x, f(x)], 1); z = cat([x, f(x), g(y)], 1): x and f(x) are written into z's memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake, is_static
from inductor.fx_passes.in_place import put_in_place
from inductor.fx_passes.places import NotInPlace, OpOverload, run_on_fake

aten = torch.ops.aten
FEWEST = 3  # concatenations that share
HasKernel = Callable[[OpOverload], bool]


def share_growing_cats(module: fx.GraphModule, has_kernel: HasKernel) -> fx.GraphModule:
    """See the top of the file. has_kernel: tells the operators that get a kernel of ours."""
    changed = False
    for chain in _chains(module.graph, has_kernel):
        changed |= _share(module.graph, chain, has_kernel)
    if changed:
        module.graph.lint()
        module.recompile()
    return module


def _chains(graph: fx.Graph, has_kernel: HasKernel) -> list[list[fx.Node]]:
    """Concatenations of which each begins with all parts of the one before."""
    cats = [n for n in graph.find_nodes(op="call_function", target=aten.cat.default) if _fits(n)]
    by_parts: dict[tuple[Any, ...], fx.Node] = {}
    before: dict[fx.Node, fx.Node] = {}
    for cat in cats:
        parts = _parts(cat)
        for count in range(len(parts) - 1, 1, -1):
            shorter = by_parts.get((_dim(cat), *parts[:count]))
            if shorter is not None and shorter not in before.values():
                if all(_reads_anything(user, has_kernel) for user in shorter.users):
                    before[cat] = shorter
                    break
        by_parts.setdefault((_dim(cat), *parts), cat)
    found = []
    for cat in cats:
        if cat not in before.values():
            chain = [cat]
            while chain[-1] in before:
                chain.append(before[chain[-1]])
            if len(chain) >= FEWEST:
                found.append(chain[::-1])
    return found


def _parts(cat: fx.Node) -> Sequence[fx.Node]:
    return cat.args[0]  # type: ignore[return-value]


def _dim(cat: fx.Node) -> int:
    given = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    return int(given) % cat.meta["val"].dim()  # type: ignore[arg-type]


def _fits(cat: fx.Node) -> bool:
    """Whether all parts are of the result's kind, in known sizes."""
    fake: Any = cat.meta.get("val")
    tensors: list[Any] = [part.meta.get("val") for part in _parts(cat)]
    return is_fake(fake) and all(
        is_fake(tensor) and is_static(facts_of(tensor)) and tensor.dim() == fake.dim()
        and tensor.dtype is fake.dtype and tensor.device == fake.device
        for tensor in (fake, *tensors)
    )


def _reads_anything(user: fx.Node, has_kernel: HasKernel) -> bool:
    """Whether it reads a tensor of whatever strides, and gives no view of it."""
    target = user.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable or not has_kernel(target):
        return False
    return not any(result.alias_info is not None for result in target._schema.returns)


def _share(graph: fx.Graph, chain: list[fx.Node], has_kernel: HasKernel) -> bool:
    """Write the parts into memory of the last concatenation, if that is sound."""
    whole, dim = chain[-1].meta["val"], _dim(chain[-1])
    facts = facts_of(whole)
    memory = (facts.size, facts.stride)
    options = {"dtype": whole.dtype, "device": whole.device}
    added: list[fx.Node] = []

    def add(before: fx.Node, target: OpOverload, args: tuple[Any, ...], **kwargs: Any) -> fx.Node:
        with graph.inserting_before(before):
            node = graph.call_function(target, args, kwargs)
        node.meta = {**before.meta, "val": whole}
        added.append(node)
        return node

    base = version = add(chain[0], aten.empty_strided.default, memory, **options)
    shown, written, end = [], 0, 0
    for cat in chain:
        for part in _parts(cat)[written:]:
            start, end = end, end + part.meta["val"].shape[dim]
            version = add(cat, aten.slice_scatter.default, (version, part, dim, start, end))
        written = len(_parts(cat))
        shown.append(version if cat is chain[-1] else add(
            cat, aten.slice.Tensor, (version, dim, 0, end)))
    try:
        for view in shown[:-1]:
            view.meta["val"] = run_on_fake(aten.slice.Tensor, whole, view.args[1:])
        users = {cat: list(cat.users) for cat in chain}
        for cat, view in zip(chain, shown, strict=True):
            cat.replace_all_uses_with(view)
        put_in_place(graph, base, version, has_kernel)
    except NotInPlace:
        for cat, view in zip(chain, shown, strict=True):
            for user in users[cat]:
                user.replace_input_with(view, cat)
        for node in reversed(added):
            graph.erase_node(node)
        return False
    for cat in chain:
        graph.erase_node(cat)
    return True
