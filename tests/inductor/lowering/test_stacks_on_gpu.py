"""Stacks as they are lowered for a GPU: recorded here, then said to be on one, and interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.pipeline import decompositions
from inductor.ir import interpret
from inductor.ir.graph import ComputedBuffer
from inductor.lowering import indexing
from inductor.lowering.run import Lowered, lower_graph

GPU = torch.device("cuda", 0)
SIZE = (3, 6, 5)


def moved(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(moved, value))
    if not is_fake(value):
        return value
    facts, cache = facts_of(value), value.world.cache
    facts = cache.facts(facts.size, facts.stride, facts.offset, facts.dtype, GPU)
    return value.world.make(facts, value.token)


def lowered(program: Any, given: list[Tensor]) -> Lowered:
    captured = capture_forward(fx.symbolic_trace(program), given)
    world = next(n.meta["val"].world for n in captured.module.graph.nodes if n.op == "placeholder")
    module = simplify(captured.module, decompositions(), world)
    for node in module.graph.nodes:
        node.meta["val"] = moved(node.meta.get("val"))
    return lower_graph(module)


def compare(program: Any, given: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> Lowered:
    """The program's lowering, which gives what eager does."""
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))
    made = lowered(program, given)
    if not made.fallbacks:
        wanted = program(*given)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for one, other in zip(interpret.interpret_graph(made.graph, given), wanted, strict=True):
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    return made


def stored(made: Lowered) -> int:
    return sum(isinstance(node, ComputedBuffer) for node in made.graph.nodes)


def colours(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
    """Many parts, of which few differ."""
    p, q, t = x * (1 - y), x * y.sin(), x - y
    return torch.gather(torch.stack((x, q, p, p, t, x, t, x, x, q, p, p), -3), -3, i)


def alternating(x: Tensor, y: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    parts = [F.layer_norm(x * n, SIZE[-1:]) + y for n in range(1, 7)]
    both = torch.stack(parts, -1)
    return both, both.sum(-1)


def along_rows(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
    return torch.stack([*(x + n for n in range(7)), y.double()], 1) * 2


def truths(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
    return torch.stack([x > n / 4 for n in range(-4, 4)], 0)


def in_turns(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
    parts = [x + n for n in range(8)]
    return torch.stack([*parts, *parts[::-1]], 0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("program", [colours, alternating, along_rows, truths, in_turns])
def test_all_parts_are_written_where_they_belong(program, large, monkeypatch) -> None:
    if large:
        monkeypatch.setattr(indexing, "LARGE_PART", 1)
    given = [torch.randn(SIZE), torch.randn(SIZE), torch.randint(0, 12, (3, 2, 6, 5))]
    assert not compare(program, given, monkeypatch).fallbacks


def test_what_is_gathered_of_a_stack_is_computed_where_it_is_wanted(monkeypatch) -> None:
    given = [torch.randn(4, 6), torch.randn(4, 6), torch.randint(0, 12, (3, 4, 6))]
    assert stored(compare(colours, given, monkeypatch)) == 4  # three parts, and the result

    def of_another_axis(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        return torch.gather(torch.stack((x.exp(), y.exp(), x, y), 0), 1, i)

    given = [torch.randn(4, 6), torch.randn(4, 6), torch.randint(0, 4, (4, 4, 6))]
    assert stored(compare(of_another_axis, given, monkeypatch)) == 2


def test_large_parts_are_not_stored_twice(monkeypatch) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.stack([x + n for n in range(8)], 1)

    given = [torch.randn(SIZE)]
    assert stored(compare(program, given, monkeypatch)) == 9
    monkeypatch.setattr(indexing, "LARGE_PART", 1)
    assert stored(compare(program, given, monkeypatch)) == 8


def test_a_long_list_of_parts_is_copied_by_aten(monkeypatch) -> None:
    made = compare(lambda x: torch.stack([x[:, n].sum(-1) for n in range(20)], 1), [torch.randn(3, 20, 5)], monkeypatch)
    assert [(str(op), why) for op, why in made.fallbacks] == [("aten.stack.default", "many parts, which ATen copies")]
