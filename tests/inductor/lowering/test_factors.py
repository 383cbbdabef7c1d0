"""Operands of products that are written out: which are stored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from dynamo.aot.capture import capture_forward
from inductor.ir.interpret import interpret_graph
from inductor.lowering.run import lower_graph
from inductor.operators.factor_ops import FACTOR


def operand(x: Tensor, operations: int, uses: int) -> Tensor:
    for _ in range(operations):
        x = x * 0.5
    factor = FACTOR(x, uses)
    return factor[:1] + factor[1:]


@pytest.mark.parametrize(("operations", "uses", "stored"), [(4, 3, False), (4, 9, True), (40, 1, True), (2, 1 << 16, False), (0, 99, False)])
def test_what_is_costly_in_all_places_is_stored(operations: int, uses: int, stored: bool) -> None:
    x = torch.randn(5, 7)
    module = fx.symbolic_trace(lambda x: operand(x, operations, uses))
    graph = lower_graph(capture_forward(module, [x]).module).graph
    assert len(graph.nodes) == 1 + stored
    torch.testing.assert_close(interpret_graph(graph, [x])[0], operand(x, operations, uses))


def test_it_is_no_view() -> None:
    """Where no kernel computes it."""
    x = torch.randn(5, 7).t()
    found = FACTOR(x, 3)
    assert found.data_ptr() != x.data_ptr() and torch.equal(found, x) and found.stride() == x.stride()
