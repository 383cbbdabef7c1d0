"""`x[i] = v` where `i` is a tensor without dimensions: in the graph where `x` is made there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from tests.parametrize import rotated

KEYS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "row": (lambda i: i, (3, 3)),
    "column": (lambda i: (slice(None), i), (3, 3)),
    "two": (lambda i: (i, i), (3,)),
    "int, number": (lambda i: (0, i), (3,)),
    "number, int": (lambda i: (i, -1), (3,)),
    "number, slice": (lambda i: (i, slice(1, None)), (2, 3)),
    "slice, number, int": (lambda i: (slice(1, None), i, 0), (2,)),
    "number, slice, number": (lambda i: (i, slice(None), i), (3,)),
}
VALUES: dict[str, Any] = {
    "float": 5.5, "int": 3, "bool": True, "number": torch.tensor(2.5), "double": torch.tensor(2.5, dtype=torch.float64),
    "too large": torch.ones(9), "leading ones": torch.full((1, 1, 1, 1), 3.0), "row": None,
}


def made(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(size).numel()).reshape(size).to(dtype)


@pytest.fixture(autouse=True)
def fresh() -> None:
    dynamo.reset()


@rotated("name, backend", KEYS, ["eager", "aot_eager"])
def test_values(name: str, backend: str) -> None:
    key, size = KEYS[name]

    def f(x: Tensor, i: Tensor, v: Any) -> Tensor:
        y = x * 1
        y[key(i)] = v
        return y + 0

    for dtype in (torch.float32, torch.int64, torch.bool):
        compiled = dynamo.compile(f, backend=backend)
        for value in VALUES.values():
            given = made(size, dtype) if value is None else value
            for number in (-1, 7):
                args = made((3, 3, 3), dtype), torch.tensor(number), given
                outcomes = []
                for run in (f, compiled):
                    try:
                        outcomes.append(run(*args))
                    except Exception as error:
                        outcomes.append(type(error))
                assert repr(outcomes[0]) == repr(outcomes[1]), (dtype, given, number)


def fill(x: Tensor, i: Tensor, v: Any) -> Tensor:
    y = x.clone()
    y[i] = v
    y[:, i] = x[0]
    return y * 2


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_graph(backend: str) -> None:
    x, i = torch.rand(4, 4), torch.tensor(2)
    compiled = dynamo.compile(fill, backend=backend, fullgraph=True)
    for value in (1.5, torch.rand(4), x[1]):
        torch.testing.assert_close(compiled(x, i, value), fill(x, i, value))


def test_gradients() -> None:
    outcomes = []
    for run in (fill, dynamo.compile(fill, backend="aot_eager", fullgraph=True)):
        x, v = torch.arange(16.0).reshape(4, 4).requires_grad_(), torch.ones(4, requires_grad=True)
        run(x, torch.tensor(1), v).square().sum().backward()
        outcomes.append((x.grad, v.grad))
    assert repr(outcomes[0]) == repr(outcomes[1])


@rotated("name, backend", KEYS, ["inductor", "eager"])
def test_tensors_from_outside(name: str, backend: str) -> None:
    """They are written in place."""
    key, size = KEYS[name]

    def f(x: Tensor, i: Tensor, v: Any) -> Tensor:
        x[key(i)] = v
        return x[0] * 2

    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for value in (5.5, torch.tensor(2, dtype=torch.int8), made(size, torch.float32)):
        for number in (1, -1, 7):
            outcomes = []
            for run in (f, compiled):
                whole = made((3, 3, 6), torch.float32)
                x, version = whole[..., ::2], whole._version
                try:
                    result: Any = run(x, torch.tensor(number), value)
                except IndexError as error:
                    result = type(error)
                outcomes.append((result, whole, number == 7 or whole._version > version))
            assert repr(outcomes[0]) == repr(outcomes[1]), (value, number)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_memory_shared_with_what_is_written(backend: str, dynamic: bool) -> None:
    """Eager copies into a view: the operator of the graph would refuse."""

    def value(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x[i] = v
        return x + 1

    def index(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x[i] = 3
        return x + 1

    def plus(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x[i] += v
        return x + 1

    for function in (value, index, plus):
        compiled = dynamo.compile(function, backend=backend, dynamic=dynamic)
        for shared in (False, True, False):
            outcomes = []
            for run in (function, compiled):
                whole = torch.arange(12).reshape(4, 3)
                v = whole[0] if shared else torch.ones(3, dtype=torch.int64)
                i = whole[0, 1] if shared else torch.tensor(2)
                outcomes.append((run(whole, i, v), whole))
            assert repr(outcomes[0]) == repr(outcomes[1]), (function, shared)


def test_what_breaks() -> None:
    def caught(x: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        try:
            y[i] = 1.0
        except IndexError:
            return x + 1
        return y * 2

    def overlapping(x: Tensor, i: Tensor) -> Tensor:
        y = x.reshape(1, 3) + torch.arange(9.0).reshape(3, 3)
        y[:, i] = y[0]
        return y * 2

    for function in (caught, overlapping):
        for number in (1, 7):
            dynamo.reset()
            outcomes = []
            for run in (function, dynamo.compile(function, backend="eager")):
                x = torch.ones(3)
                try:
                    outcomes.append((run(x, torch.tensor(number)), x))
                except IndexError as error:
                    outcomes.append((str(error), x))
            assert repr(outcomes[0]) == repr(outcomes[1])
            assert any(reason.startswith("item") for reason in dynamo.counters["graph_break"])
