"""Parts and picks as a GPU's kernels compute them: what is read once, and what is not stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_stacks_on_gpu import compare, stored
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from inductor.ir import interpret
from inductor.ir.body import trace_body
from inductor.ir.graph import ComputedBuffer


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)


def nibbles(x: Tensor) -> Tensor:
    return torch.cat([x >> 4, x & 15], 0) + 1


def fields(x: Tensor) -> Tensor:
    return torch.cat([x >> 6 & 3, x >> 4 & 3, x >> 2 & 3, x & 3], -1) * 2


def repeated(x: Tensor) -> Tensor:
    half = x.float().cos()
    return torch.cat([half, half], -1) * 2


def of_several(x: Tensor) -> Tensor:
    return torch.cat([x * 2, x + 1, x * x], 1)


def turned_halves(x: Tensor) -> Tensor:
    """Each part reads what the other does not."""
    return torch.cat([x[:, 16:], x[:, :16]], -1) * 2


def odd_rows(x: Tensor) -> Tensor:
    """Loads of whole words would begin anywhere."""
    return torch.cat([x[:, :5] >> 4, x[:, :5] & 15], -1)


@pytest.mark.parametrize(("program", "loads"), [
    (nibbles, 1), (fields, 1), (repeated, 1), (of_several, 1), (turned_halves, 2), (odd_rows, 2)])
def test_loads(program: Any, loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.randint(0, 256, (6, 32)).to(torch.uint8)
    (node,) = compare(program, [given], monkeypatch).graph.nodes
    assert isinstance(node, ComputedBuffer)
    found = list(node.body.loads())
    assert len(found) == loads and (loads > 1) == any(op.args for op in found)


def picked(x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    z = (x * y).clamp(-1, 1)
    return z.sum(1), z[torch.arange(6), at]


@pytest.mark.parametrize(("columns", "nodes"), [(64, 2), (4, 3)])
def test_few_of_many_are_computed_where_they_are_wanted(
    columns: int, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [torch.randn(6, columns), torch.randn(6, columns), torch.randint(-columns, columns, (6,))]
    assert stored(compare(picked, given, monkeypatch)) == nodes


def compared(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    """As `compare_columns` writes `x[arange, at] = v`, of which some rows are wanted."""
    places = torch.arange(20)
    return torch.where(places[at].unsqueeze(1) == places, v[:, None], x.sin())[:2] * 2


def scattered(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    places = torch.arange(20)
    known = places.expand(5, 20).gather(1, at[:, None])
    return torch.where(known == places, v[:, None], x.sin())[:2] * 2


@pytest.mark.parametrize("program", [compared, scattered])
def test_columns_of_rows_that_nothing_reads_are_checked(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [torch.randn(5, 20), torch.tensor([0, 1, 2, 3, 19]), torch.randn(5)]
    monkeypatch.setattr(fx, "symbolic_trace", lambda one: make_fx(one)(*given))  # which counts itself
    made = compare(program, given, monkeypatch)
    given[1] = torch.tensor([0, 1, 2, 3, 20])
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        interpret.interpret_graph(made.graph, given)


@pytest.mark.parametrize(("dtype", "held"), [
    (torch.bool, torch.int32), (torch.uint8, torch.int32), (torch.int8, torch.int32),
    (torch.int16, torch.int64), (torch.int64, torch.int64)])
def test_narrow_integers_are_summed_in_32_bits(
    dtype: torch.dtype, held: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = torch.full((4, 300), 1 if dtype is torch.bool else 127).to(dtype)
    (node,) = compare(lambda x: x.sum(1), [given], monkeypatch).graph.nodes
    assert isinstance(node, ComputedBuffer)
    (sum_,) = [op for op in node.body.ops if op.name == "reduction"]
    assert sum_.dtype is held and node.layout.dtype is torch.int64


def test_a_position_is_compared_by_the_digits_that_count() -> None:
    def body(ops: Any, i: Any, r: Any) -> None:
        position = ops.index_expr(i[0] * 64 + i[1])
        below = ops.lt(position, ops.index_expr(640))
        odd = ops.ge(position, ops.index_expr(650))
        ops.store("out", i[0] * 64 + i[1], ops.bitwise_and(below, odd))

    ops = trace_body((16, 64), (), body).ops
    assert [str(op) for op in ops if op.name in ("index_expr", "constant")] == [
        "index_expr(64*i0 + i1) int64", "index_expr(i0) int64", "constant(10) int64",
        "constant(650) int64"]


def test_parts_of_a_cat_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of a part lies within it: a view of the part needs no division."""
    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([y, torch.cat([(x * 2).flatten(1, 2), y + 1], 1), (x + 1).view(2, 24, 5)], 1).exp()

    made = compare(program, [torch.randn(2, 3, 8, 5), torch.randn(2, 3, 5)], monkeypatch)
    (node,) = [node for node in made.graph.nodes if isinstance(node, ComputedBuffer)]
    read = {str(op.index) for op in node.body.ops if op.name == "load"}
    assert len(read) == 4 and not any("//" in text or "%" in text for text in read)
