"""Independent branches of a graph at the same time: on streams of a GPU.

In: a `torch.fx` graph module and its arguments. Out: a module with the same arguments and results,
in which each operation belongs to a lane. Lane 0 is the stream that is current when it is called,
the others are side streams. Where an operation reads what another lane computes, its lane waits for
an event of that one; the caller's stream waits for all at the end ("torch.fx", section 6.2.3 of the
paper). Without a GPU there is nothing to overlap: the operations run in the graph's order.

Memory of one lane that another reads is recorded with the allocator (`record_stream`), so that it
is not given away while a kernel may still read it. A graph with writes in place has one lane: no
edge tells what a write reaches.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from dynamo.graphs.copies import copied
from dynamo.graphs.cost import CALLS, Peaks, analyze
from dynamo.graphs.effects import has_effect
from dynamo.graphs.split import USUAL

# Seconds for one lane to see what another has done: an event is recorded and waited for.
HANDOVER = 5e-6


def lanes_of(
    module: fx.GraphModule, *args: Any, count: int = 2, peaks: Peaks = USUAL,
    handover: float = HANDOVER,
) -> dict[fx.Node, int]:
    """The lane of each operation, by simulation: in the graph's order, each goes where it ends
    first, and to the lane of what it reads if that makes no difference.

    args: of the graph, for its shapes. peaks: of the machine, for the time of each operation.
    """
    nodes = [node for node in module.graph.nodes if node.op in CALLS]
    if count < 2 or any(has_effect(module, node) for node in nodes):
        return dict.fromkeys(nodes, 0)
    costs = {cost.name: cost for cost in analyze(module, *args, peaks=peaks).nodes}
    free = [0.0, *[handover] * (count - 1)]
    lane: dict[fx.Node, int] = {}
    ends: dict[fx.Node, float] = {}
    for node in nodes:
        cost = costs[node.name]
        given = [other for other in node.all_input_nodes if other in lane]
        if not cost.flops and not cost.moved and given:  # a view: where its tensor is
            lane[node], ends[node] = lane[given[0]], ends[given[0]]
            continue
        starts = [
            max([free[at], *(ends[other] + handover * (lane[other] != at) for other in given)])
            for at in range(count)
        ]
        near = {lane[other] for other in given}
        lane[node] = min(range(count), key=lambda at: (starts[at], at not in near, at))  # noqa: B023
        ends[node] = starts[lane[node]] + peaks.seconds(cost.flops, cost.moved)
        free[lane[node]] = ends[node]
    return lane


class Lanes(Protocol):
    """What a graph on lanes asks for while it runs.

    enter, leave: around a call. switch: the operations that follow belong to this lane. mark: an
    event behind what a lane has been given so far. wait: a lane goes on behind an event. keep: a
    lane reads a value that another one has made.
    """

    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def switch(self, lane: int) -> None: ...
    def mark(self, lane: int) -> Any: ...
    def wait(self, lane: int, event: Any) -> None: ...
    def keep(self, lane: int, value: Any) -> None: ...


class InOrder:
    """Lanes where there is nothing to overlap."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def switch(self, lane: int) -> None: ...
    def mark(self, lane: int) -> None: ...
    def wait(self, lane: int, event: Any) -> None: ...
    def keep(self, lane: int, value: Any) -> None: ...


class CudaLanes:
    """Streams of one GPU; one of these for each thread that calls."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        self.side = [torch.cuda.Stream(device) for _ in range(count - 1)]
        self.streams: list[Any] = []

    def enter(self) -> None:
        """Side streams begin behind all that the caller has asked for."""
        main = torch.cuda.current_stream(self.device)
        self.streams = [main, *self.side]
        event = main.record_event()
        for stream in self.side:
            stream.wait_event(event)

    def leave(self) -> None:
        """The caller's stream goes on behind all of them, also after an error."""
        main = self.streams[0]
        torch.cuda.set_stream(main)
        for stream in self.side:
            main.wait_stream(stream)

    def switch(self, lane: int) -> None:
        torch.cuda.set_stream(self.streams[lane])

    def mark(self, lane: int) -> Any:
        return self.streams[lane].record_event()

    def wait(self, lane: int, event: Any) -> None:
        self.streams[lane].wait_event(event)

    def keep(self, lane: int, value: Any) -> None:
        for tensor in pytree.tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                tensor.record_stream(self.streams[lane])


class _Running(threading.local):
    """Of this thread: the lanes of the graph that runs, and the streams that it has."""

    lanes: Lanes

    def __init__(self) -> None:
        self.lanes = InOrder()
        self.streams: dict[tuple[torch.device, int], CudaLanes] = {}

    def on(self, device: torch.device, count: int) -> CudaLanes:
        if (device, count) not in self.streams:
            self.streams[device, count] = CudaLanes(device, count)
        return self.streams[device, count]


_running = _Running()


@contextlib.contextmanager
def running(lanes: Lanes) -> Iterator[None]:
    """Graphs on lanes that are called inside run on these."""
    before, _running.lanes = _running.lanes, lanes
    lanes.enter()
    try:
        yield
    finally:
        _running.lanes = before
        lanes.leave()


class _Switch(nn.Module):
    def __init__(self, lane: int) -> None:
        super().__init__()
        self.lane = lane

    def forward(self) -> None:
        _running.lanes.switch(self.lane)


class _Mark(_Switch):
    def forward(self) -> Any:
        return _running.lanes.mark(self.lane)


class _Wait(_Switch):
    def forward(self, event: Any, value: Any) -> None:  # type: ignore[override]
        _running.lanes.wait(self.lane, event)
        _running.lanes.keep(self.lane, value)


class _Keep(_Switch):
    def forward(self, value: Any) -> None:  # type: ignore[override]
        _running.lanes.keep(self.lane, value)


class Overlapped(nn.Module):
    """What `overlap` returns. graph: with what switches lanes and waits; lanes: of its operations,
    by name."""

    def __init__(self, graph: fx.GraphModule, lanes: Mapping[str, int]) -> None:
        super().__init__()
        self.graph = graph
        self.lanes = dict(lanes)
        self.count = max(lanes.values(), default=0) + 1

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = pytree.tree_leaves((args, kwargs, list(self.parameters())))
        devices = {each.device for each in given if isinstance(each, torch.Tensor)}
        on_gpu = [device for device in devices if device.type == "cuda"]
        if len(on_gpu) != 1 or self.count < 2:
            with running(InOrder()):
                return self.graph(*args, **kwargs)
        with running(_running.on(on_gpu[0], self.count)):
            return self.graph(*args, **kwargs)


def overlap(
    module: fx.GraphModule, *args: Any, count: int = 2, peaks: Peaks = USUAL,
    handover: float = HANDOVER,
) -> Overlapped:
    """A module that runs independent branches of a graph on `count` streams of a GPU.

    args: of the graph, for its shapes; peaks, handover: see `lanes_of`. Worth it where kernels are
    too small to fill the GPU, and best inside of a CUDA graph, as eager launches one at a time.

    >>> class Two(torch.nn.Module):
    ...     def forward(self, x, w):
    ...         return (x @ w).relu() + (w @ x).tanh()
    >>> given = torch.ones(512, 512), torch.ones(512, 512)
    >>> made = overlap(fx.symbolic_trace(Two()), *given)
    >>> made.lanes
    {'matmul': 0, 'relu': 0, 'matmul_1': 1, 'tanh': 1, 'add': 1}
    """
    found = lanes_of(module, *args, count=count, peaks=peaks, handover=handover)
    names = {node.name: lane for node, lane in found.items()}
    made = copied(module)
    if any(names.values()):
        _Writer(made, names).write()
    return Overlapped(made, names)


class _Writer:
    """Puts between the operations what switches lanes, records events and waits for them."""

    def __init__(self, module: fx.GraphModule, names: Mapping[str, int]) -> None:
        self.module = module
        self.graph = module.graph
        self.lane = {node: names[node.name] for node in module.graph.nodes if node.name in names}
        self.events: dict[fx.Node, fx.Node] = {}
        self.seen: set[tuple[fx.Node, int]] = set()  # values for which a lane has waited

    def write(self) -> None:
        current = 0
        for node in list(self.graph.nodes):
            if node not in self.lane and node.op != "output":
                continue
            lane = self.lane.get(node, 0)
            with self.graph.inserting_before(node):
                for given in node.all_input_nodes:
                    self._ready(given, lane)
                if lane != current:
                    self._call(_Switch, lane)
            current = lane
            if any(self.lane.get(user, 0) != lane for user in node.users):
                with self.graph.inserting_after(node):
                    self.events[node] = self._call(_Mark, lane)
        self.graph.lint()
        self.module.recompile()

    def _ready(self, given: fx.Node, lane: int) -> None:
        """A lane waits for a value of another one, once."""
        if (given, lane) in self.seen:
            return
        self.seen.add((given, lane))
        if given not in self.lane:
            if lane:  # the side streams have waited for the caller's
                self._call(_Keep, lane, given)
        elif self.lane[given] != lane:
            self._call(_Wait, lane, self.events[given], given)

    def _call(self, kind: type[_Switch], lane: int, *args: fx.Node) -> fx.Node:
        name = f"{kind.__name__.strip('_').lower()}_lane_{lane}"
        if not hasattr(self.module, name):
            self.module.add_submodule(name, kind(lane))
        return self.graph.call_module(name, args)
