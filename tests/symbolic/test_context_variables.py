"""`contextvars.ContextVar` in compiled functions: reading guards the value, setting breaks the graph."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

SCALE: contextvars.ContextVar[Any] = contextvars.ContextVar("SCALE", default=3)
WEIGHT: contextvars.ContextVar[Any] = contextvars.ContextVar("WEIGHT")
EMPTY: contextvars.ContextVar[Any] = contextvars.ContextVar("EMPTY")


def in_new_context(test: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        contextvars.Context().run(test)

    run.__name__ = test.__name__
    return run


@in_new_context
def test_a_value_is_read_in_one_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE.get() + WEIGHT.get()

    counter = CompileCounter()
    compiled = dynamo.compile(function, backend=counter, fullgraph=True)
    WEIGHT.set(torch.ones(2))
    x = torch.rand(2)
    for scale in (3, 4, 5, 6):
        SCALE.set(scale)
        assert torch.equal(compiled(x), function(x))
    assert counter.frame_count == 2
    WEIGHT.set(torch.zeros(2))  # another tensor is no new compile
    assert torch.equal(compiled(x), function(x))
    assert counter.frame_count == 2
    WEIGHT.set(2)
    assert torch.equal(compiled(x), function(x))
    with pytest.raises(LookupError):
        contextvars.Context().run(dynamo.compile(function, backend="eager"), x)


def sets(x: torch.Tensor) -> Any:
    token = SCALE.set(5)
    y = x * SCALE.get()
    SCALE.reset(token)
    return y, SCALE.get(), SCALE.get(7), EMPTY.get(8)


def lacks(x: torch.Tensor) -> Any:
    try:
        return EMPTY.get()
    except LookupError as error:
        return x + 1, str(error).partition(" at ")[0]


def fills(x: torch.Tensor) -> Any:
    WEIGHT.get().append(x * 2)
    return len(WEIGHT.get()), WEIGHT.get()[-1]


def in_a_copy(x: torch.Tensor) -> Any:
    inner = contextvars.copy_context().run(lambda: (SCALE.set(9), SCALE.get())[1])
    return x * inner, SCALE.get()


def looks_at_it(x: torch.Tensor) -> Any:
    known = {SCALE: 1, WEIGHT: 2}
    return x + 1, SCALE.name, isinstance(SCALE, contextvars.ContextVar), SCALE is SCALE, known[WEIGHT], SCALE == WEIGHT


@pytest.mark.parametrize("program", [sets, lacks, fills, in_a_copy, looks_at_it], ids=lambda one: one.__name__)
def test_like_eager(program: Callable[..., Any]) -> None:
    def run(function: Callable[..., Any]) -> list[Any]:
        results = []
        for scale in (3, 4, 4):
            SCALE.set(scale)
            results.append(shown(function(torch.ones(2))))
        return [*results, shown(WEIGHT.get())]

    found = []
    for function in (program, dynamo.compile(program, backend="eager")):
        context = contextvars.Context()
        context.run(WEIGHT.set, [])
        found.append(context.run(run, function))
    assert found[0] == found[1]


def shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value
