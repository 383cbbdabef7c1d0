"""`explain(f)(*args)`: what compiling did with a function, as a report that a person can act on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.api import compile
from dynamo.base import counters
from dynamo.testing import CompileCounter


@dataclass(frozen=True)
class Explanation:
    """graphs: captured graphs in order; breaks: reason -> how often; seconds: by stage, this call only."""

    graphs: tuple[torch.fx.GraphModule, ...]
    breaks: dict[str, int]
    seconds: dict[str, float]

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def op_count(self) -> int:
        """Operations in all graphs."""
        nodes = (node for module in self.graphs for node in module.graph.nodes)
        return sum(node.op.startswith("call_") for node in nodes)

    def __str__(self) -> str:
        lines = [f"{self.graph_count} graphs with {self.op_count} operations, "
                 f"{sum(self.breaks.values())} graph breaks, "
                 f"{self.seconds.get('convert', 0.0):.2f} s"]
        lines += [f"  break ({count} times): {reason}" for reason, count in self.breaks.items()]
        lines += [f"  {stage}: {seconds:.3f} s" for stage, seconds in self.seconds.items()]
        return "\n".join(lines)


def explain(f: Any, **arguments: Any) -> Callable[..., Explanation]:
    """Compiles a function or module for capture only, and calls it once with the arguments given.

    >>> print(str(explain(lambda x: x + 1)(torch.ones(2))).splitlines()[0].rsplit(",", 1)[0])
    1 graphs with 1 operations, 0 graph breaks
    """

    def call(*args: Any, **kwargs: Any) -> Explanation:
        counter = CompileCounter("eager")
        compiled = compile(f, backend=counter, **arguments)
        breaks, seconds = dict(counters.counters["graph_break"]), counters.compile_times()
        compiled(*args, **kwargs)
        return Explanation(
            tuple(counter.graphs),
            {r: n - breaks.get(r, 0) for r, n in counters.counters["graph_break"].items()
             if n > breaks.get(r, 0)},
            {s: t - seconds.get(s, 0.0) for s, t in counters.compile_times().items()
             if t > seconds.get(s, 0.0)},
        )

    return call
