"""What may be recorded as a CUDA graph, and what a recording writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor.ir.body import trace_body
from inductor.ir.graph import ComputedBuffer, ExternKernel, InputBuffer, Layout, LoopGraph, ViewRef
from inductor.ir.index import constant
from inductor.operators.device_numbers import ADD_TO_NUMBERS, COMPUTE_NUMBERS, NUMBERS_ON
from inductor.operators.dropout_ops import STATE
from inductor.runtime.recordable import is_reread, refusal, written_inputs
from inductor.scheduler.schedule import Schedule

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
LAYOUT = Layout(GPU, torch.float32, (4, 4), (4, 1))
X = ViewRef("arg0", (4, 4), (4, 1), 0, torch.float32)


def extern(target: Any = aten.mm.default, *args: Any, **changes: Any) -> ExternKernel:
    return replace(ExternKernel("buf0", LAYOUT, target, args or (X, X)), **changes)


def graph_of(*nodes: Any, layout: Layout = LAYOUT) -> tuple[LoopGraph, Schedule]:
    calls = [extern() for _ in range(3)]
    inputs = (InputBuffer("arg0", layout, 0), None)
    steps = [node for node in (*calls, *nodes) if isinstance(node, ExternKernel)]
    output = (ViewRef("buf0", (4, 4), (4, 1), 0, torch.float32), 3)
    graph = LoopGraph(inputs, (), (*calls, *nodes), output, layout.device)
    return graph, Schedule(tuple(steps))


def store_into(buffer: str) -> ComputedBuffer:
    body = trace_body((), (), lambda ops, i, r: ops.store(
        buffer, constant(0), ops.constant(1.0, torch.float32)))
    return ComputedBuffer("buf9", LAYOUT, body, "scatter", mutates=buffer)


INDEX = replace(X, dtype=torch.int64)
MASK = replace(X, dtype=torch.bool)
ATTENTION = aten._scaled_dot_product_flash_attention.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default


@pytest.mark.parametrize(("node", "reason"), [
    (None, ""),
    (extern(aten._softmax.default, X, -1, False), ""),
    (extern(ATTENTION, X, X, X), ""),
    (extern(ATTENTION, X, X, X, 0.1), ""),
    (extern(EFFICIENT, X, X, X, None, True, 0.1), "random"),
    (extern(aten.bernoulli.default, X), ""),
    (extern(aten.bernoulli.default, X, kwargs=(("generator", 1),)), "random"),
    (extern(aten.multinomial.default, X, 3), "random"),
    (extern(STATE, (16,), GPU), ""),
    (extern(aten.nonzero.default, X), "waits"),
    (extern(aten.index_put.default, X, (INDEX,), X), ""),
    (extern(aten.index_put.default, X, (INDEX, MASK), X), "waits"),
    (extern(aten.index.Tensor, X, (None, MASK)), "waits"),
    (extern(aten.embedding_dense_backward.default, X, INDEX, 4, -1, False), ""),
    (extern(aten.linalg_solve_ex.default, X, X), "may wait"),
    (extern(aten.add_.Tensor, X, X, mutates=("arg0",)), ""),
    (extern(torch.ops.mkldnn._linear_pointwise.default, X), ""),
    (extern(NUMBERS_ON, (X,), GPU, layout=None), "host"),
    (extern(ADD_TO_NUMBERS, (X,), 1, layout=None, mutates=("arg0",)), "host"),
    (extern(COMPUTE_NUMBERS, (X,), (X,), (), (0, 0, 0, 0), (1,), layout=None, mutates=("arg0",)), "host"),
    (extern(aten.clone.default, X, layout=replace(LAYOUT, device=torch.device("cpu"))), "another device"),
    (store_into("arg0"), ""),
    (store_into("buf0"), ""),
])  # fmt: skip
def test_what_is_recorded(node: Any, reason: str) -> None:
    graph, schedule = graph_of(*([node] if node else []))
    found = refusal(graph, schedule, ())
    assert reason in found and bool(reason) == bool(found)


def test_what_else_is_not_recorded() -> None:
    graph, schedule = graph_of()
    assert "runs as ATen" in refusal(graph, schedule, ("kernel3",))
    assert "too few" in refusal(graph, Schedule(schedule.steps[:2]), ())
    on_cpu, calls = graph_of(layout=replace(LAYOUT, device=torch.device("cpu")))
    assert "cpu" in refusal(on_cpu, calls, ())
    assert "another device" in refusal(replace(on_cpu, device=GPU), calls, ())


def test_inputs_that_are_written() -> None:
    kernel, call = store_into("arg0"), extern(aten.add_.Tensor, X, X, mutates=("arg1", "buf0"))
    for node, expected in ((None, set()), (kernel, {0}), (call, {1})):
        graph, schedule = graph_of(*([node] if node else []))
        graph = replace(graph, inputs=(None, *graph.inputs, InputBuffer("arg1", LAYOUT, 3)))
        assert written_inputs(graph, schedule) == expected
    assert is_reread(graph_of(extern(aten.bernoulli.default, X))[1])
    assert is_reread(graph_of(extern(STATE, (16,), GPU))[1])
    assert not is_reread(schedule)
