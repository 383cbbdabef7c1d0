"""Graphs with symbolic sizes as plain data: the same graph comes back, and no value is made before it is read."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import fx

from dynamo.aot import symbolic_rows
from dynamo.aot.fakes import expression_of
from dynamo.aot.plain_graphs import Later, LaterMeta, module_of, rows_of
from dynamo.aot.plain_sizes import Sized, SizeWriter
from dynamo.aot.records import SymbolTable, Unsupported
from dynamo.shapes.symbolic import SymbolicWorld


def graph_of(world: SymbolicWorld) -> fx.GraphModule:
    """Of two inputs and a view of the first; sizes are expressions."""
    n, k = world.size("n", 9), world.number("k", 5)
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    view = graph.call_function(torch.ops.aten.view.default, (x, [-1]))
    graph.output((view,))
    with world.mode:
        x.meta["val"] = torch.empty_strided((n, 4), (4, 1))
        y.meta["val"] = torch.empty_strided((2 * n + 1, n // 2), (n // 2, 1), dtype=torch.int64)
        view.meta["val"] = x.meta["val"].as_strided((n * 4,), (1,), 0)
    view.meta.update(mark=("a", 1), number=k * 2, stack_trace="here")
    module = fx.GraphModule({}, graph)
    symbols = {n.node.expr: (0, 0), k.node.expr: (2, None)}
    module.meta.update(values=3, symbols=SymbolTable(symbols, ((n * 2 > k).node.expr,)))
    return module


def texts_of(module: fx.GraphModule) -> list[str]:
    """Sizes, strides and numbers with the names of symbols in the order in which they are met."""
    writer, found = SizeWriter(), []
    for node in module.graph.nodes:
        for name, value in node.meta.items():
            if isinstance(value, torch.Tensor):
                numbers = *value.shape, *value.stride(), value.storage_offset()
                found.append(f"{name} {[writer.number(number) for number in numbers]} {value.dtype} {value.device}")
            else:
                found.append(f"{name} {writer.number(value)}")
    table = module.meta["symbols"]
    env = module.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode.shape_env
    found += [f"{writer.expression(symbol, env)} {place}" for symbol, place in table.symbols.items()]
    found += [str(writer.expression(assumption, env)) for assumption in table.assumptions]
    return [*found, str(writer.rows), str(module.meta["values"])]


def test_a_graph_comes_back() -> None:
    module = graph_of(SymbolicWorld())
    again = module_of(rows_of(module))
    assert str(again.graph) == str(module.graph)
    assert texts_of(again) == texts_of(module)
    x, _, view, _ = again.graph.nodes
    assert x.meta["val"].untyped_storage()._cdata == view.meta["val"].untyped_storage()._cdata
    assert not x.meta["val"].fake_mode.shape_env.guards


def test_values_are_made_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module = graph_of(SymbolicWorld())
    del module.meta["symbols"]
    again = module_of(rows_of(module))
    made: list[Any] = []
    world = symbolic_rows.RowsWorld
    monkeypatch.setattr(symbolic_rows, "RowsWorld", lambda *args: made.append(args) or world(*args))
    view = list(again.graph.nodes)[2]
    assert view.meta["mark"] == ("a", 1) and view.meta.get("stack_trace") == "here" and "val" in view.meta
    assert not made
    assert expression_of(view.meta["val"].shape[0]) == 4 * expression_of(next(iter(again.graph.nodes)).meta["val"].shape[0])
    assert len(made) == 1


@pytest.mark.parametrize("read", [
    dict, lambda meta: {**meta}, copy.copy, copy.deepcopy, lambda meta: meta.copy(), lambda meta: dict(meta.items()),
    lambda meta: {} | meta, lambda meta: meta | {}, lambda meta: pickle.loads(pickle.dumps(meta)),
    lambda meta: dict(zip(meta, meta.values(), strict=True)), lambda meta: {"a": meta.pop("a"), "b": meta.setdefault("b")},
])  # fmt: skip
def test_whoever_copies_it_gets_values(read: Any) -> None:
    given = LaterMeta({"a": 1, "b": Later(5)}, lambda value: value * 10)
    found = read(given)
    assert type(found) is dict and dict.items(found) == {"a": 1, "b": 50}.items()


def test_what_is_written_before_stays() -> None:
    given = LaterMeta({"b": Later(5)}, lambda value: value * 10)
    given["b"] = 1
    assert given["b"] == 1 and given == {"b": 1}


def test_sizes_that_have_no_text() -> None:
    world = SymbolicWorld()
    with pytest.raises(Unsupported, match="not known before the call"):
        SizeWriter().number(world.make_unbacked(int))


def test_numbers_of_one_graph_are_numbered_in_order() -> None:
    world = SymbolicWorld()
    n, k = world.size("n", 9), world.size("k", 7)
    writer = SizeWriter()
    assert writer.number(k) == Sized("int", ("symbol", 0))
    assert writer.number(3) == 3
    assert "('symbol', 0)" in str(writer.number(k * n)) and "('symbol', 1)" in str(writer.number(n))
    assert [row.hint for row in writer.rows] == [7, 9]
