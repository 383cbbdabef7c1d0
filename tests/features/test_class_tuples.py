"""`__mro__` and `__bases__`: one object of a class, and what it says at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo


class A: ...


class B: ...


class Derived(A, dict): ...  # type: ignore[type-arg]


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("name", ["__mro__", "__bases__"])
def test_one_object(name: str, breaks: bool) -> None:
    def f(x: Any) -> Any:
        found = getattr(Derived, name)
        y = x + 1
        if breaks:
            dynamo.graph_break()
        return y * 2, found, found is getattr(Derived, name), found is getattr(A, name)

    compiled = dynamo.compile(f, backend="eager", fullgraph=not breaks)
    for _ in range(2):
        y, found, same, others = compiled(torch.ones(2))
        assert torch.equal(y, torch.full((2,), 4.0))
        assert found is getattr(Derived, name) and same and not others


def test_bases_that_change() -> None:
    class Changing(A): ...

    def f(x: Any) -> Any:
        return x + 1, Changing.__bases__, [cls.__name__ for cls in Changing.__mro__]

    compiled = dynamo.compile(f, backend="eager")
    for bases in ((A,), (B,), (B, A)):
        Changing.__bases__ = bases
        assert compiled(torch.ones(2))[1:] == f(torch.ones(2))[1:]
