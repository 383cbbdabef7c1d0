"""Collectives of one graph, by the settings: which are sent together, when they start."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dynamo.base import logs, ranks
from dynamo.base.fallbacks import Site, site_now
from inductor.collectives.buckets import join_collectives
from inductor.collectives.machine import Machine, machine_of
from inductor.collectives.overlap import plan_collectives
from inductor.config import config, is_enabled
from inductor.ir.graph import LoopGraph
from inductor.scheduler.schedule import Schedule


def are_same() -> bool:
    """Whether the program says that all ranks have the same graphs."""
    return bool((config.collectives or {}).get("same_graphs"))


def tie(site: Site) -> None:
    """No limit of recompiles holds for a function whose collectives are joined: eager would send
    each alone, and other ranks would wait."""
    if are_same():
        ranks.tie(site.compile.region)


def with_buckets(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with small neighbouring collectives as one, where the program says that all ranks
    have the same graphs (`collectives={"same_graphs": 1}`). One rank can't see that: a graph's
    breaks, and what needs what in it, may go by the rank, as in `if rank == 0: x = x + total`, and
    ranks that join other collectives wait for each other, or take each other's data."""
    if not are_same():
        return module
    tie(site_now())
    for names in join_collectives(module, machine_of_graph(module)):
        ranks.tie(site_now().compile.region)
        logs.log("collectives").emit(f"sent together: {', '.join(names)}")
    return module


def machine_of_graph(module: torch.fx.GraphModule) -> Machine:
    """The numbers by which collectives of a graph are planned."""
    fakes = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    kinds = {fake.device.type for fake in fakes if isinstance(fake, torch.Tensor)}
    return machine_of("cpu" if kinds <= {"cpu"} else "cuda", config.collectives)


def with_overlap(graph: LoopGraph, schedule: Schedule, dying: Iterable[str] = ()) -> Schedule:
    """The schedule with its collectives started early and waited for late; dying: inputs that go at
    their last use."""
    if not is_enabled("overlap"):
        return schedule
    machine = machine_of(graph.device.type, config.collectives)
    planned = plan_collectives(graph, schedule, machine, dying)
    if planned is None:
        return schedule
    logs.log("collectives").emit(lambda: str(planned))
    return planned.schedule
