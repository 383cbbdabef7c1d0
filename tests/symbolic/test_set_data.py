"""`tensor.data = other`: one memory from there on, in the graph and behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


def written(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    x.add_(2)
    return x, x * 3, y


def read_before(x: torch.Tensor, y: torch.Tensor) -> Any:
    doubled, row = x * 2, x[:1]
    x.data = y * 2
    return doubled, row, x[:1], x.mul_(3)


def of_another_size(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y[1:]
    return x * 2, torch.tensor(x.shape)


def exchanged(x: torch.Tensor, y: torch.Tensor) -> Any:
    kept = x.data
    x.data = y.data
    y.data = kept
    return x * 2, y * 3


def over_a_break(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    dynamo.graph_break()
    y.add_(1)
    return x + y, x


WHOLE = (written, read_before, of_another_size)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("f", [*WHOLE, exchanged, over_a_break])
def test_tensors_that_get_other_memory(f: Callable[..., Any], backend: str) -> None:
    compiled = dynamo.compile(f, backend=backend, fullgraph=f in WHOLE)
    for same in (False, False, True):
        first, results = torch.randn(2, 3), []
        for call in (f, compiled):
            x, y = first.clone().unbind()
            y = x if same else y
            outcome = call(x, y)
            shares = x.untyped_storage()._cdata == y.untyped_storage()._cdata
            known = [result is x for result in outcome]
            results.append([[*outcome, x, y], shares, known])
        assert all(map(torch.equal, results[0][0], results[1][0]))
        assert results[0][1:] == results[1][1:]


def test_parameters_keep_their_history() -> None:
    def f(w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        w.data = y * 2
        return (w * y).sum()

    y = torch.randn(3)
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for call, w in zip((f, dynamo.compile(f, backend="eager")), weights, strict=True):
        call(w, y).backward()
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[1].grad, y)


def restored(kept: list[torch.Tensor], weights: list[torch.nn.Parameter]) -> Any:
    """What sharpness-aware steps do: weights from before, then a step."""
    with torch.no_grad():
        for w, before in zip(weights, kept, strict=True):
            w.data = before
            w.sub_(0.1).mul_(2)
        return [w * 3 for w in weights], [w.requires_grad for w in weights]


def averaged(kept: list[torch.Tensor], weights: list[torch.nn.Parameter]) -> Any:
    with torch.no_grad():
        for w, other in zip(weights, kept, strict=True):
            w.data = 0.9 * w.data + 0.1 * other
    return [w is other for w, other in zip(weights, kept, strict=True)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f", [restored, averaged])
def test_parameters_that_get_other_memory(f: Callable[..., Any], backend: str) -> None:
    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        first, results = torch.randn(4, 3), []
        for call in (f, compiled):
            kept = list(first[:2].clone().unbind())
            weights = [torch.nn.Parameter(row) for row in first[2:].clone().unbind()]
            outcome = call(kept, weights)
            weights[0].square().sum().backward()
            shares = [w.data_ptr() == row.data_ptr() for w, row in zip(weights, kept, strict=True)]
            assert all(w.requires_grad and w.is_leaf for w in weights)
            results.append([outcome, kept, [w.detach() for w in weights], weights[0].grad, shares])
        torch.testing.assert_close(results[1][:-1], results[0][:-1])
        assert results[1][-1] == results[0][-1] == [f is restored] * 2


def test_moved_parameters_are_leaves_where_gradients_are_recorded() -> None:
    def f(w: torch.nn.Parameter, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            w.data = y * 2
            w.add_(1)
        return (w * w * y).sum()

    y = torch.randn(3)
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for call, w in zip((f, dynamo.compile(f, backend="aot_eager")), weights, strict=True):
        call(w, y).backward()
    torch.testing.assert_close(weights[1].grad, weights[0].grad)
    assert torch.equal(weights[0], weights[1])
