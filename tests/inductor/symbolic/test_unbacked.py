"""Numbers and sizes that only the running program knows: compiled between the lines that make them,
with eager's values, gradients and errors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.counters import counters
from inductor import metrics
from tests.inductor.symbolic.unbacked_programs import LAYER, PROGRAMS, Program
from tests.parametrize import long_where

NUMBERS = (3, 5, 0, 1, 7, 2, -1, 9)
# Each has a neighbour that differs in the operator only.
LIKE_ANOTHER = frozenset((
    "float scale", "both ends", "from the end", "index twice", "select", "narrow", "full", "softmax of a head", "mean",
    "normed", "mask and sum", "masked select", "argwhere", "columns", "reshaped", "product", "checked", "longer",
    "twice", "expanded", "layer", "sorted", "tail", "zeros", "joined", "rows", "positions", "same_memory",
))  # fmt: skip
KNOWN_ERRORS = (RuntimeError, IndexError, ValueError)
TWO_GRAPHS = {"float compares", "largest", "expanded"}  # the capture ends at a decision


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    dynamo.reset()
    with dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True, suppress_errors=False
    ):
        yield


def inputs() -> list[torch.Tensor]:
    """Rows of which some, none, one or all begin with a positive number."""
    one = -torch.rand(7, 3, dtype=torch.float64) - 0.1
    one[4] *= -1
    some = torch.randn(7, 3, dtype=torch.float64)
    return [some, some.abs() + 0.1, -some.abs() - 0.1, one]


def outcome(function: Program, x: torch.Tensor, t: torch.Tensor) -> Any:
    """Results and gradients, or the error."""
    leaf = x.clone().requires_grad_()
    LAYER.weight.grad = None
    try:
        results = function(leaf, t.clone())
    except KNOWN_ERRORS as error:
        return type(error), str(error)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum(r.double().square().sum() for r in results
               if isinstance(r, torch.Tensor) and r.requires_grad)  # fmt: skip
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return *results, leaf.grad, LAYER.weight.grad


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, torch.Tensor):
        assert found.requires_grad == wanted.requires_grad
        torch.testing.assert_close(found, wanted, equal_nan=True)
    elif isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, two in zip(found, wanted, strict=True):
            assert_same(one, two)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", long_where(PROGRAMS, LIKE_ANOTHER))
def test_values_gradients_and_errors(name: str) -> None:
    program = PROGRAMS[name]
    compiled = dynamo.compile(program)
    before = metrics.snapshot()["graphs"]
    for number, x in zip(NUMBERS, inputs() * 2, strict=True):
        t = torch.tensor(number)
        assert_same(outcome(compiled, x, t), outcome(program, x, t))
    assert metrics.snapshot()["graphs"] > before
    assert bool(counters["graph_break"]) == (name in TWO_GRAPHS)


def routed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, 3)
    out = torch.zeros_like(rows)
    choice = (rows.detach() @ weight.detach()).argmax(1)
    for expert in range(2):
        (at,) = torch.where(choice == expert)
        out = out.index_add(0, at, (rows[at] @ weight * (expert + 1)).tanh() * rows[at])
    return (x + out.view_as(x)).sin()


def test_rows_of_sizes_that_change_too() -> None:
    compiled = dynamo.compile(routed)
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    for length in (4, 5, 7, 6):
        x = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
        found, wanted = (
            (y, *torch.autograd.grad(y.square().sum(), [x, weight]))
            for y in (compiled(x, weight), routed(x, weight))
        )
        torch.testing.assert_close(found, wanted)
    assert not counters["graph_break"] and not counters["not_compiled"]


def test_limit_of_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of forms: more of them run as captured, right all the same."""
    piece = importlib.import_module("inductor.dynamic_shapes.subgraph")
    monkeypatch.setattr(piece, "MOST_FORMS", 1)
    program = PROGRAMS["rows"]
    compiled = dynamo.compile(program)
    for x in inputs():
        assert_same(outcome(compiled, x, torch.tensor(1)), outcome(program, x, torch.tensor(1)))
    assert any(why.startswith("subgraph") for why in counters["not_compiled"])


def test_sizes_that_a_number_and_its_reader_share() -> None:
    """A number of 1 makes no constant of the sizes that are made of it."""

    def program(x: torch.Tensor, t: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n = t.item()
        y = torch.nn.functional.pad(x, (0, n))
        z = x[mask]
        return (y * 2 + n).sin().sum() + z.sum() * n

    compiled = dynamo.compile(program)
    for number in (1, 0, 4, 2, 1, 6):
        x, mask = torch.randn(5, dtype=torch.float64), torch.rand(5) > 0.5
        t = torch.tensor(number)
        torch.testing.assert_close(compiled(x, t, mask), program(x, t, mask))
