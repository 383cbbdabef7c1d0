"""A place out of range raises where only a part of what is looked up is wanted, and not that part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_stacks_on_gpu import compare
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

import dynamo
from inductor.ir import interpret

RIGHT, WRONG = torch.tensor([0, 1, 4, 3, 2]), torch.tensor([0, 1, 2, 3, 5])
FIRST = torch.tensor([0, 1, 0])

PROGRAMS: dict[str, Any] = {
    "index": lambda x, at: (x[at] + 1)[:2] * 2,
    "gather": lambda x, at: (x.gather(0, at[:, None]) + 1)[:2] * 2,
    "embedding": lambda x, at: (F.embedding(at, x) + 1)[:2] * 2,
    "index_select": lambda x, at: (x.index_select(0, at) + 1)[1] * 2,
    "pad": lambda x, at: F.pad(x[at] + 1, (0, 0, 3, -2)) * 2,
    "unbind": lambda x, at: (x[at] + 1).unbind()[0] * 2,
    "split": lambda x, at: (x[at] + 1).split([3, 2])[0] * 2,
    "some of them": lambda x, at: (x[at] + 1)[FIRST] * 2,
    "another dtype": lambda x, at: x[at].double()[:2] * 2,
    "cat": lambda x, at: torch.cat([x, x[at] * 2])[:7] * 2,
    "a step": lambda x, at: x[at][::3] * 2,
    "flip": lambda x, at: x[at].flip(0)[3:] * 2,
    "twice": lambda x, at: (x[at][:3] + 1)[FIRST] * 2,
}


@pytest.mark.parametrize("columns", [4, 64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_cpu(name: str, columns: int) -> None:
    x, program = torch.randn(5, columns), PROGRAMS[name]
    made = dynamo.compile(program, dynamic=name in ("index", "cat"))
    torch.testing.assert_close(made(x, RIGHT), program(x, RIGHT))
    for one in (program, made):
        with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)"):
            one(x, WRONG)


@pytest.mark.parametrize("columns", [4, 64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_a_gpu_lowers_it(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [torch.randn(5, columns), RIGHT]
    monkeypatch.setattr(fx, "symbolic_trace", lambda program: make_fx(program)(*given))
    made = compare(PROGRAMS[name], given, monkeypatch)
    assert not made.fallbacks
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        interpret.interpret_graph(made.graph, [given[0], WRONG])


def test_rows_are_not_stored_for_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, at: Tensor) -> Tensor:
        left, right = (x[at] + 1).chunk(2, dim=1)
        return left * right

    given = [torch.randn(5, 64), torch.tensor([0, -1, 4, -5, 2])]
    monkeypatch.setattr(fx, "symbolic_trace", lambda program: make_fx(program)(*given))
    made = compare(program, given, monkeypatch)
    assert sorted(node.layout.numel() for node in made.graph.nodes) == [5, 5 * 32]
    for wrong in (5, -6):
        with pytest.raises(IndexError, match="out of range"):
            interpret.interpret_graph(made.graph, [given[0], torch.tensor([0, 1, 2, 3, wrong])])


def test_places_that_are_in_range_store_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, at: Tensor) -> Tensor:
        return (x[at.clamp(0, 4)] + 1)[:2] * 2

    made = compare(program, [torch.randn(5, 4), WRONG], monkeypatch)
    assert len(made.graph.nodes) == 1
