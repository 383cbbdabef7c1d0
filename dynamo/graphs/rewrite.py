"""Parts of a graph that look like a pattern, replaced.

In: a graph module, a pattern and its replacement as graphs of the same capture (so that they are
written in the same operations). Out: a copy, and how often the pattern was found. The search is
that of `torch.fx.subgraph_rewriter`: occurrences do not overlap, and nothing else reads what is
inside.
"""

from __future__ import annotations

from torch import fx
from torch.fx.subgraph_rewriter import replace_pattern

from dynamo.graphs.copies import copied
from dynamo.graphs.effects import finish


def rewrite(
    module: fx.GraphModule, pattern: fx.GraphModule, replacement: fx.GraphModule
) -> tuple[fx.GraphModule, int]:
    """A copy of the graph in which each occurrence of the pattern is the replacement.

    Errors: ValueError where pattern and replacement have different numbers of arguments.

    >>> import torch, dynamo
    >>> def graph_of(f): return dynamo.export(f, torch.ones(2))[0]
    >>> graph = graph_of(lambda x: torch.relu(x + 1) * 2)
    >>> rewrite(graph, graph_of(lambda y: torch.relu(y)), graph_of(torch.nn.SiLU()))[1]
    1
    """
    counts = [len([node for node in each.graph.nodes if node.op == "placeholder"])
              for each in (pattern, replacement)]  # fmt: skip
    if counts[0] != counts[1]:
        raise ValueError(f"the pattern has {counts[0]} arguments, its replacement {counts[1]}")
    made = copied(module)
    found = replace_pattern(made, _plain(pattern), _plain(replacement))
    return finish(made), len(found)


def _plain(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with its arguments one by one, and one result as that itself."""
    plain = copied(module)
    plain.graph.set_codegen(fx.graph.CodeGen())
    results = plain.graph.output_node().args[0]
    if isinstance(results, (list, tuple)) and len(results) == 1:
        plain.graph.output_node().args = (results[0],)
    plain.recompile()
    return plain
