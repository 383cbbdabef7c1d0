"""The whole system in seconds: capture, guards, breaks that resume, effects, recompiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


def check(function: Callable[..., Any], *args: Any, graphs: int) -> None:
    """Eager and compiled agree on three calls; the first makes so many graphs, the others none."""
    counter = CompileCounter()
    compiled = dynamo.compile(function, backend=counter)
    for _ in range(3):
        want, got = function(*args), compiled(*args)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert counter.frame_count == graphs


X = torch.arange(3.0)


def test_straight() -> None:
    check(lambda x: x * 2 + 1, X, graphs=1)


def test_inlined_call() -> None:
    def scaled(x, k=3, *, m=1):  # type: ignore[no-untyped-def]
        return x * k + m

    check(lambda x: scaled(x) + scaled(x, 2, m=5), X, graphs=1)


def test_closure() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        n = 2

        def g(v):  # type: ignore[no-untyped-def]
            nonlocal n
            n += 1
            return v * n

        return g(x) + g(x)

    check(f, X, graphs=1)


def test_loops() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        for i in range(3):
            x = x + i
        for k, t in enumerate([x, x * 2]):
            x = x * k + t
        return x

    check(f, X, graphs=1)


def test_break_resumes() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        y = x + 1
        dynamo.graph_break()
        return y * 2

    check(f, X, graphs=2)


def test_branch_on_data_resumes_on_both_sides() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        if (x * 2).sum() > 0:
            return x + 1
        return x - 1

    check(f, X, graphs=2)
    check(f, -X, graphs=2)


def test_break_inside_an_inlined_call() -> None:
    def inner(v):  # type: ignore[no-untyped-def]
        v = v + 1
        dynamo.graph_break()
        return v * 2

    check(lambda x: inner(x + 1) + 5, X, graphs=3)


def test_break_in_a_loop_makes_few_graphs() -> None:
    def f(x, n):  # type: ignore[no-untyped-def]
        for _ in range(n):
            x = x + 1
            dynamo.graph_break()
            x = x * 2
        return x

    check(f, X, 7, graphs=3)


def test_break_in_try() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        try:
            y = x + 1
            dynamo.graph_break()
            raise ValueError(3)
        except ValueError as error:
            y = y + error.args[0]
        return y * 2

    check(f, X, graphs=2)


def test_list_is_mutated_in_place() -> None:
    log: list[torch.Tensor] = []

    def f(x, log):  # type: ignore[no-untyped-def]
        log.append(x + 1)
        return log[-1] * 2

    assert dynamo.compile(f, backend="eager")(X, log).tolist() == [2, 4, 6]
    assert len(log) == 1 and log[0].tolist() == [1, 2, 3]


def test_recompiles_only_when_needed() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x, k: x * k, backend=counter)
    compiled(X, 2), compiled(X + 1, 2)
    assert counter.frame_count == 1
    assert compiled(X.double(), 2).dtype == torch.float64
    assert counter.frame_count == 2


def test_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
    check(model, X, graphs=1)


def test_exception_is_the_same() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        y = x + 1
        raise KeyError(int(y.dim()))

    with pytest.raises(KeyError, match="1"):
        dynamo.compile(f, backend="eager")(X)


def test_fullgraph_says_where() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        dynamo.graph_break()
        return x

    with pytest.raises(dynamo.exc.Unsupported, match=r"test_tiny.py:\d+(.|\n)*graph_break"):
        dynamo.compile(f, backend="eager", fullgraph=True)(X)
