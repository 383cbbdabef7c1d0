"""The interpreter against eager, on graphs that are written by hand."""

import pytest
import torch

from dynamo.base.errors import VerifyError
from inductor.ir.body import trace_body
from inductor.ir.graph import (
    ComputedBuffer,
    ExternKernel,
    InputBuffer,
    Layout,
    LoopGraph,
    ViewRef,
    verify,
)
from inductor.ir.interpret import interpret_graph

CPU = torch.device("cpu")
F32 = torch.float32


def layout(*size: int, dtype: torch.dtype = F32) -> Layout:
    return Layout(CPU, dtype, size, torch.empty(size).stride())


def graph_of(body, out: Layout, kind: str, *inputs: Layout) -> LoopGraph:
    buffers = tuple(InputBuffer(f"arg{n}", lay, n) for n, lay in enumerate(inputs))
    node = ComputedBuffer("buf0", out, body, kind)
    view = ViewRef("buf0", out.size, out.stride, 0, out.dtype)
    return LoopGraph(buffers, (), (node,), (view,), CPU)


def test_row_sum_then_mean() -> None:
    def mean(ops, i, r):
        total = ops.reduction("sum", ops.load("arg0", i[0] * 6 + r[0], F32))
        ops.store("buf0", i[0], ops.truediv(total, ops.constant(6, F32)))

    graph = graph_of(trace_body((4,), (6,), mean), layout(4), "reduction", layout(4, 6))
    verify(graph)
    x = torch.randn(4, 6)
    torch.testing.assert_close(interpret_graph(graph, [x])[0], x.mean(1))


def test_masked_load_reads_nothing_outside() -> None:
    def pad(ops, i, r):
        inside = ops.bitwise_and(
            ops.ge(ops.index_expr(i[0] - 2), ops.constant(0, torch.int64)),
            ops.lt(ops.index_expr(i[0] - 2), ops.constant(3, torch.int64)),
        )
        ops.store("buf0", i[0], ops.masked(inside, lambda: ops.load("arg0", i[0] - 2, F32), 7.0))

    graph = graph_of(trace_body((7,), (), pad), layout(7), "pointwise", layout(3))
    verify(graph)
    x = torch.randn(3)
    expected = torch.nn.functional.pad(x, (2, 2), value=7.0)
    assert torch.equal(interpret_graph(graph, [x])[0], expected)


def gather_graph() -> LoopGraph:
    def gather(ops, i, r):
        row = ops.indirect(ops.load("arg1", i[0], torch.int64), 5)
        ops.store("buf0", i[0] * 3 + i[1], ops.load("arg0", row * 3 + i[1], F32))

    body = trace_body((4, 3), (), gather)
    return graph_of(body, layout(4, 3), "pointwise", layout(5, 3), layout(4, dtype=torch.int64))


def test_indirect_wraps_negative() -> None:
    x, rows = torch.randn(5, 3), torch.tensor([0, -1, 4, 2])
    verify(gather_graph())
    assert torch.equal(interpret_graph(gather_graph(), [x, rows])[0], x[rows])


@pytest.mark.parametrize("bad", [5, -6])
def test_indirect_checks_bounds(bad: int) -> None:
    with pytest.raises(IndexError):
        interpret_graph(gather_graph(), [torch.randn(5, 3), torch.tensor([0, bad, 4, 2])])


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_arg_reduction(kind: str) -> None:
    def find(ops, i, r):
        value = ops.load("arg0", i[0] * 6 + r[0], F32)
        ops.store("buf0", i[0], ops.reduction(kind, value, ops.index_expr(r[0])))

    graph = graph_of(
        trace_body((4,), (6,), find), layout(4, dtype=torch.int64), "reduction", layout(4, 6)
    )
    x = torch.randn(4, 6)
    assert torch.equal(interpret_graph(graph, [x])[0], getattr(x, kind)(1))


def test_extern_call_over_transposed_view() -> None:
    out = layout(4, 3)
    call = ExternKernel(
        "buf0", out, torch.ops.aten.mm.default,
        (ViewRef("arg0", (4, 5), (5, 1), 0, F32), ViewRef("arg1", (5, 3), (1, 5), 0, F32)),
    )
    inputs = (InputBuffer("arg0", layout(4, 5), 0), InputBuffer("arg1", layout(3, 5), 1))
    graph = LoopGraph(inputs, (), (call,), (ViewRef("buf0", (4, 3), (3, 1), 0, F32),), CPU)
    verify(graph)
    x, w = torch.randn(4, 5), torch.randn(3, 5)
    assert torch.equal(interpret_graph(graph, [x, w])[0], x @ w.t())


def test_verify_finds_reads_outside_of_a_buffer() -> None:
    def wrong(ops, i, r):
        ops.store("buf0", i[0], ops.load("arg0", i[0] + 1, F32))

    with pytest.raises(VerifyError, match="leaves the buffer"):
        verify(graph_of(trace_body((3,), (), wrong), layout(3), "pointwise", layout(3)))
