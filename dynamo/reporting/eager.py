"""How long PyTorch's own operators take for what was captured, beside our kernels.

In: a `Report` whose graphs and times were kept. Out: seconds by graph, or why there are none. The
captured graphs run once more, on made-up values of the sizes that they were captured with: where
that is not the program's work, or could be seen from outside, they do not.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from dynamo.reporting.facts import Graph, Key, Report
from dynamo.symbolic.tensors.contexts import enter, leave, leaves_on_error

ROOM = 3.0  # seconds for all graphs
RUNS = 5  # of each; the fastest counts, as of our kernels
LEAST_CALLS = 2  # of our kernels: what the first call takes is that of cold memory
MOST_BYTES = 1 << 30  # of a graph's inputs
NAMESPACES = ("aten", "prims")


@dataclass(frozen=True)
class Eager:
    """Seconds of the fastest run; backward: 0.0 where it was not run."""

    forward: float = 0.0
    backward: float = 0.0
    why_not: str = ""


class _Unlike(Exception):
    """A made-up run is not what the program does."""


def eager_times(report: Report) -> dict[Key, Eager]:
    """Of each graph with timed kernels."""
    found: dict[Key, Eager] = {}
    end = time.perf_counter() + ROOM
    for graph in report.graphs:
        if graph.captured is None or not any(part.seconds for part in graph.parts):
            continue
        if any(step.calls < LEAST_CALLS for part in graph.parts for step in part.steps):
            found[graph.key] = Eager(why_not="called once")
            continue
        left = end - time.perf_counter()
        if left < 2 * sum(part.fastest for part in graph.parts):
            found[graph.key] = Eager(why_not="the time for that was up")
            continue
        try:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")
                found[graph.key] = _timed(graph, graph.captured, end)
        except _Unlike as reason:
            found[graph.key] = Eager(why_not=str(reason))
        except Exception as error:  # a made-up value need not be one that the operators take
            found[graph.key] = Eager(why_not=f"{type(error).__name__} on made-up values")
    return found


def _timed(graph: Graph, captured: fx.Graph, end: float) -> Eager:
    _check(captured)
    run = leaves_on_error(fx.GraphModule({}, captured).forward)
    grad = any(_requires_grad(node) for node in captured.nodes if node.op != "placeholder")
    trains = any(part.part == "backward" and part.seconds for part in graph.parts)
    forward, backward = float("inf"), float("inf")
    for _ in range(RUNS):
        inputs = [_made(node) for node in captured.nodes if node.op == "placeholder"]
        with torch.set_grad_enabled(grad):
            begin = time.perf_counter()
            outputs = run(*inputs)
            forward = min(forward, time.perf_counter() - begin)
            _compare(captured, outputs)
            if trains:
                roots = [value for value in _tensors(outputs) if value.requires_grad]
                slopes = [torch.ones_like(root) for root in roots]
                begin = time.perf_counter()
                torch.autograd.backward(roots, slopes)
                backward = min(backward, time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return Eager(forward, backward if trains else 0.0)


def _check(captured: fx.Graph) -> None:
    """Errors: _Unlike for graphs whose run could be seen, or that can't be run alone."""
    for node in captured.nodes:
        if node.op in ("get_attr", "call_module"):
            raise _Unlike("tensors in the graph itself")
        if node.op == "call_function" and not _is_of_torch(node.target):
            raise _Unlike(f"an operator of others, {getattr(node.target, '__name__', node.target)}")


def _is_of_torch(target: Any) -> bool:
    """True for operators that do nothing but compute."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        overload = target if isinstance(target, torch._ops.OpOverload) else target.default
        return overload.namespace in NAMESPACES
    if isinstance(target, torch._ops.OperatorBase):
        return False  # its subgraphs
    if target in (enter, leave, getattr):
        return True
    place = getattr(target, "__module__", None) or "torch"
    return place.startswith(("torch", "_operator", "math")) and "distributed" not in place


def _made(node: fx.Node) -> Any:
    """A value for an input. Numbers are 0.5 to 1.5, which most functions take; indices are 0."""
    like = node.meta["example_value"]
    if isinstance(like, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise _Unlike("sizes vary")
    if not isinstance(like, Tensor):
        if like is None or isinstance(like, bool | int | float | complex | str):
            return like
        raise _Unlike(f"an input that is a {type(like).__name__}")
    if any(isinstance(size, torch.SymInt) for size in like.shape):
        raise _Unlike("sizes vary")
    if like.device.type != "cpu" or like.layout != torch.strided:
        raise _Unlike(f"an input that is {like.layout} on {like.device}")
    needed = 1 + sum((size - 1) * stride
                     for size, stride in zip(like.shape, like.stride(), strict=True))
    if needed * like.dtype.itemsize > MOST_BYTES:
        raise _Unlike("inputs too large to be made")
    memory = torch.zeros(max(needed, 0), dtype=like.dtype)
    if like.dtype == torch.bool:
        memory.fill_(True)
    elif like.dtype.is_floating_point and like.dtype.itemsize > 1:
        memory.uniform_(0.5, 1.5)
    made = memory.as_strided(like.shape, like.stride())
    if not like.requires_grad:
        return made
    return made.requires_grad_() if like.is_leaf else made.requires_grad_().clone()


def _requires_grad(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and value.requires_grad


def _compare(captured: fx.Graph, outputs: Any) -> None:
    """Errors: _Unlike where the program's own run had other types, as under autocast."""
    (output,) = captured.find_nodes(op="output")
    nodes = output.all_input_nodes
    expected = {node.meta["example_value"].dtype for node in nodes
                if isinstance(node.meta.get("example_value"), Tensor)}
    if expected != {value.dtype for value in _tensors(outputs)}:
        raise _Unlike("the program runs it in another mode")


def _tensors(value: Any) -> Iterator[Tensor]:
    for each in torch.utils._pytree.tree_leaves(value):
        if isinstance(each, Tensor):
            yield each
