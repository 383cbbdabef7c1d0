"""Copies of captured graphs: they may be changed or compiled, the graph stays as it is."""

from __future__ import annotations

from torch import fx


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """The same nodes, with their names and `meta`, in a graph of no module."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def copy_module(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with the same attributes and `meta`."""
    copy = fx.GraphModule(module, copy_graph(module.graph))
    copy.meta.update(module.meta)
    return copy
