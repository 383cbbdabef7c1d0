"""Assertions about values: they stay in the graph, and raise when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import CompileCounter

SEEN: list[int] = []


def with_text(x: Tensor) -> Any:
    torch._assert_async((x > -1).all(), "too small")
    return x * 2


def without_text(x: Tensor) -> Any:
    y = x + 1
    torch._assert_async(y.min())
    SEEN.append(len(x))
    return y, torch._assert_async(torch.ones((), dtype=torch.bool)) is None


def alone(x: Tensor) -> Any:
    torch._assert_async((x > -1).all(), assert_msg="too small")


def operators(x: Tensor) -> Any:
    torch.ops.aten._assert_async.msg((x > -1).all(), "too small")
    torch.ops.aten._assert_async(x.sum() + 9)
    torch.ops.aten._assert_async.default((x > -3).all())
    return x * 2


def caught(x: Tensor) -> Any:
    try:
        torch._assert_async((x > -1).all(), "too small")
    except RuntimeError:
        return x - 1
    return x * 2


def in_transform(x: Tensor) -> Any:
    return torch.func.grad(lambda y: with_text(y).sum())(x)


def outcome(f: Callable[[Tensor], Any], x: Tensor) -> Any:
    SEEN.clear()
    try:
        return str(f(x)), [*SEEN]
    except RuntimeError as error:
        return str(error), [*SEEN]


BREAKING = [caught, in_transform]
FORMS = [with_text, without_text, alone, operators, *BREAKING]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("f", FORMS, ids=lambda f: f.__name__)
def test_assertions(f: Callable[[Tensor], Any], backend: str) -> None:
    dynamo.counters.clear()
    compiled = dynamo.compile(f, backend=backend)
    for x in (torch.ones(3), torch.full((3,), -2.0), torch.ones(4), torch.full((5,), -1.0)):
        assert outcome(compiled, x) == outcome(f, x)
    if f not in BREAKING:
        assert not dynamo.counters["graph_break"]


def test_one_graph() -> None:
    counter = CompileCounter()
    dynamo.compile(with_text, backend=counter, fullgraph=True)(torch.ones(3))
    assert counter.frame_count == 1
