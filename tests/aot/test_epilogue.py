"""Buffers that a training step writes: by the forward graph itself, with eager's values, gradients and errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import dynamo
from dynamo.aot.api import compile_training
from inductor.fx_passes.in_place import write_in_place
from inductor.lowering.registry import LOWERINGS

aten = torch.ops.aten


class Queue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("queue", torch.zeros(8, 4))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.norm(self.layer(x))
        old = self.queue.clone()
        self.queue[2:4] = keys.detach()
        self.count[1] += 1
        return (keys @ old.t()).sum() + keys.square().sum(), self.queue[1:3].sum()


def read_before(w: Tensor, b: Tensor) -> Tensor:
    y = (w * b).sum()
    b[0] = 2.0
    return y


def read_after(w: Tensor, b: Tensor) -> Tensor:
    b[0] = w[1].detach()
    return (w * b).sum()


def given_back(w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    old = b[0] * 1
    b[0] = 2.0
    b[1] += 1
    return w.square(), b, old


def with_history(w: Tensor, b: Tensor) -> Tensor:
    b[0] = w[0]
    return (w * 2).sum() + b.sum()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_module(backend: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    mine = Queue()
    other = copy.deepcopy(mine)
    compiled = dynamo.compile(mine, backend=backend, fullgraph=True, dynamic=dynamic)
    for _ in range(3):
        x = torch.randn(2, 3)
        for found, expected in zip(compiled(x), other(x), strict=True):
            torch.testing.assert_close(found, expected)
            if expected.requires_grad:
                found.backward()
                expected.backward()
        torch.testing.assert_close(mine.state_dict(), other.state_dict())
        for one, two in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", [read_before, read_after, given_back, with_history])
def test_programs(program: Callable[..., Any], backend: str) -> None:
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    for write in (False, True):
        outcomes = []
        for run in (program, compiled):
            w, b = torch.arange(1.0, 5.0).requires_grad_(), torch.arange(4.0)
            version = b._version
            result = run(w, b)
            values = list(result) if isinstance(result, tuple) else [result]
            if write:
                with torch.no_grad():
                    b.add_(1)
            try:
                values[0].sum().backward()
                error = ""
            except RuntimeError:
                error = "raised"
            same = [value is b for value in values]
            outcomes.append((values[1:], b.detach().tolist(), w.grad, error, same, b._version > version))
        if program is read_after and write:  # backward has values of its own: see docs/semantics.md
            assert outcomes[0][3] == "raised"
            continue
        assert repr(outcomes[0]) == repr(outcomes[1])


def test_more_writes_than_python_unpacks_before_a_star() -> None:
    """The last one is what backward is given, so that it happens behind the graph."""
    def program(w: Tensor, rows: list[Tensor]) -> Tensor:
        for row in rows:
            row.add_(1)
        return w * rows[-1]

    rows, w = [torch.zeros(3) for _ in range(258)], torch.randn(3, requires_grad=True)
    result = dynamo.compile(program, fullgraph=True)(w, rows)
    result.sum().backward()
    assert torch.equal(result, w) and all(row.eq(1).all() for row in rows)
    assert w.grad is not None and w.grad.eq(1).all()


def test_forward_writes() -> None:
    graphs: list[fx.GraphModule] = []

    def compile_forward(module: fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        graphs.append(write_in_place(module, LOWERINGS.__contains__))
        return module.forward

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_training(
            gm, inputs, compile_forward, lambda module, fakes: module.forward, epilogue_in_graph=True)

    dynamo.compile(Queue(), backend=backend, fullgraph=True)(torch.randn(2, 3))
    targets = [node.target for node in graphs[0].graph.nodes]
    assert aten.slice_scatter.default not in targets and aten.select_scatter.default not in targets
    assert targets.count(aten.copy_.default) >= 2
    assert None in graphs[0].graph.output_node().args[0]
