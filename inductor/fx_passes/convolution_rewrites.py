"""One way over the convolutions of a graph, for passes that rewrite some of them.

In: a functional ATen graph with fakes, which convolutions are meant, and what rewrites one. Out:
the same graph (changed in place), without what nothing reads any more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

aten = torch.ops.aten
OfNode = Callable[[fx.Node], bool]


def rewrite_convolutions(
    module: fx.GraphModule, is_meant: OfNode, forward: OfNode, backward: OfNode
) -> fx.GraphModule:
    """See the top of the file. forward, backward: put other nodes in the place of a convolution, or
    of its backward; False where it stays after all."""
    changed = False
    for target, rewrite in (
        (aten.convolution.default, forward), (aten.convolution_backward.default, backward)
    ):
        for node in module.graph.find_nodes(op="call_function", target=target):
            changed |= is_meant(node) and rewrite(node)
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module
