"""Heads of keys and values that a program repeats for attention; our kernels read them as they are.

In: the node of an attention in a captured graph. Out: what is repeated, and how often, where keys
and values are `x[:, :, None].expand(..).reshape(..)`, as transformers writes it, or
`x.repeat_interleave(n, 1)`, and nothing is written between that and the attention.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from inductor.fx_passes.attention.patterns import has_effect

HEADS = 1


def before_repeats(attention: fx.Node) -> tuple[fx.Node, fx.Node, int] | None:
    """Keys and values of fewer heads, and for how many heads of queries each of them stands."""
    if len(attention.args) < 3:
        return None
    keys, values = attention.args[1:3]
    found = [_repeated(each) for each in (keys, values)]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return None
    nodes = list(attention.graph.nodes)
    begin = min(nodes.index(each) for each in (keys, values))
    if any(map(has_effect, nodes[begin : nodes.index(attention)])):
        return None
    return found[0][0], found[1][0], found[0][1]


def _repeated(node: object) -> tuple[fx.Node, int] | None:
    if not isinstance(node, fx.Node):
        return None
    if node.target in ("repeat_interleave", torch.repeat_interleave):
        return _interleaved(node)
    chain = [node]
    for name in ("reshape", "expand"):
        above = chain[-1].args[0] if chain[-1].target == name else None
        if not isinstance(above, fx.Node):
            return None
        chain.append(above)
    source = chain[-1].args[0] if chain[-1].args else None
    if not isinstance(source, fx.Node):
        return None
    x, apart, many, whole = (_shape(each) for each in (source, *reversed(chain)))
    if x is None or many is None or len(x) != 4 or len(many) != 5 or not _is_new_axis(chain[-1]):
        return None
    batch, heads, length, size = x
    count = many[2]
    views = (batch, heads, 1, length, size), (batch, heads, count, length, size)
    fits = (apart, many, whole) == (*views, (batch, heads * count, length, size))
    return (source, count) if fits else None


def _interleaved(node: fx.Node) -> tuple[fx.Node, int] | None:
    """`x.repeat_interleave(n, 1)`."""
    source, *rest = node.args
    count = rest[0] if rest else node.kwargs.get("repeats")
    dim = rest[1] if len(rest) > 1 else node.kwargs.get("dim")
    shape = _shape(source)
    if type(count) is not int or dim not in (HEADS, HEADS - 4) or shape is None or len(shape) != 4:
        return None
    return (source, count) if isinstance(source, fx.Node) and len(rest) <= 2 else None


def _is_new_axis(node: fx.Node) -> bool:
    """Whether it is a view with an axis of one element behind the heads."""
    if node.target in ("unsqueeze", torch.unsqueeze):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return dim in (HEADS + 1, HEADS - 4)
    if node.target not in ("__getitem__", operator.getitem) or len(node.args) != 2:
        return False
    index = node.args[1]
    if not isinstance(index, tuple) or len(index) < 3 or index[2] is not None:
        return False
    return all(one == slice(None) for at, one in enumerate(index) if at != 2)


def _shape(node: object) -> tuple[int, ...] | None:
    """The sizes of a tensor, if all are known."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or any(type(n) is not int for n in value.shape):
        return None
    return tuple(value.shape)
