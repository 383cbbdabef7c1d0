"""Collectives of one graph, by the settings: which are sent together, when they start."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dynamo.base import logs
from inductor.collectives.buckets import join_collectives
from inductor.collectives.machine import machine_of
from inductor.collectives.overlap import plan_collectives
from inductor.config import config, is_enabled
from inductor.ir.graph import LoopGraph
from inductor.scheduler.schedule import Schedule


def with_buckets(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with small neighbouring collectives as one, where the program says that all ranks
    have the same graphs (`collectives={"same_graphs": 1}`). One rank can't see that: a graph's
    breaks, and what needs what in it, may go by the rank, as in `if rank == 0: x = x + total`, and
    ranks that join other collectives wait for each other, or take each other's data."""
    if not (config.collectives or {}).get("same_graphs"):
        return module
    fakes = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    kinds = {fake.device.type for fake in fakes if isinstance(fake, torch.Tensor)}
    machine = machine_of("cpu" if kinds <= {"cpu"} else "cuda", config.collectives)
    for names in join_collectives(module, machine):
        logs.log("collectives").emit(f"sent together: {', '.join(names)}")
    return module


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
