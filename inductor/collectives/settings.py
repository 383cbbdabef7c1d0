"""Collectives of one graph, by the settings: which are sent together, when they start."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dynamo.base import logs, ranks
from dynamo.base.fallbacks import Site, site_now
from inductor.collectives.buckets import join_collectives
from inductor.collectives.calls import collective_of
from inductor.collectives.machine import machine_of
from inductor.collectives.overlap import plan_collectives
from inductor.config import config, does
from inductor.ir.graph import LoopGraph
from inductor.scheduler.schedule import Schedule

# In the meta of a module of backward: its program must be one graph.
IS_WHOLE = "is_whole"


def mark_whole(module: torch.fx.GraphModule, site: Site) -> None:
    """Says of a backward whether its program must be one graph; of one without collectives nothing,
    which is kept as it is."""
    if any(collective_of(node.target, node.args) is not None for node in module.graph.nodes):
        module.meta[IS_WHOLE] = site.strict
        if site.strict:
            ranks.tie(site.compile.region)


def with_buckets(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with small neighbouring collectives as one, where the other ranks surely do the
    same: in a function that is one graph on each of them, as `fullgraph=True` demands. Elsewhere
    one rank may break its graph (to print, say) between two that another rank would join."""
    is_whole = module.meta.get(IS_WHOLE, site_now().strict)
    if not (is_whole or (config.collectives or {}).get("same_graphs")):
        return module
    fakes = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    kinds = {fake.device.type for fake in fakes if isinstance(fake, torch.Tensor)}
    machine = machine_of("cpu" if kinds <= {"cpu"} else "cuda", config.collectives)
    for names in join_collectives(module, machine):
        ranks.tie(site_now().compile.region)
        logs.log("collectives").emit(f"sent together: {', '.join(names)}")
    return module


def with_overlap(graph: LoopGraph, schedule: Schedule, dying: Iterable[str] = ()) -> Schedule:
    """The schedule with its collectives started early and waited for late; dying: inputs that go at
    their last use."""
    if not does("overlap"):
        return schedule
    machine = machine_of(graph.device.type, config.collectives)
    planned = plan_collectives(graph, schedule, machine, dying)
    if planned is None:
        return schedule
    logs.log("collectives").emit(lambda: str(planned))
    return planned.schedule
