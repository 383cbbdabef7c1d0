"""`torch.FloatTensor(...)` and the like, and `torch.Tensor(...)`: in one graph, and as eager makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dynamo

KINDS = [
    torch.Tensor, torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor,
    torch.LongTensor, torch.IntTensor, torch.ShortTensor, torch.CharTensor, torch.ByteTensor,
    torch.BoolTensor,
]  # fmt: skip
CAPTURED: list[Any] = [
    [1, 2], [True, 0], [], [[1, 2], [3, 4]], (1, 2), [(1, 2)], [[]], np.ones(2), np.ones((2, 2), np.float32),
    np.arange(3),
]
OTHERS: list[Any] = [
    [1.5, 2], [[1], [2, 3]], [2**40], [1e300], ["a"], [None], [1j], torch.Size([2, 3]), torch.ones(2), range(3), "ab",
    2.5, True, -1, [float("nan"), 2.0], {1: 2}, [np.float32(1.5)], [np.float64(2.0)], [torch.tensor(2.0)] * 2,
    [torch.tensor(3), 1.5], [np.ones(2)] * 2,
]


def outcome(function: Callable[[], Any]) -> Any:
    try:
        made = function()
    except Exception as error:
        return type(error), str(error)
    return made.dtype, repr(made.tolist()), made.shape, made.device, made.requires_grad


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_of_data(kind: Any) -> None:
    def function() -> torch.Tensor:
        made = kind(data)
        return made.zero_() if isinstance(data, torch.Size) else made * 1

    for data in (*CAPTURED, *OTHERS):
        dynamo.reset()
        captured = any(data is one for one in CAPTURED)
        compiled = dynamo.compile(function, backend="eager", fullgraph=captured)
        assert outcome(compiled) == outcome(function), data


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_of_sizes(kind: Any) -> None:
    for sizes in ((), (3,), (2, 3), (0, 2)):
        dynamo.reset()
        compiled = dynamo.compile(lambda sizes=sizes: kind(*sizes).zero_(), backend="eager", fullgraph=True)
        assert outcome(compiled) == outcome(lambda sizes=sizes: kind(*sizes).zero_())


def test_memory_of_an_array_is_shared_where_the_type_is_the_same() -> None:
    def function(single: Any, double: Any) -> Any:
        torch.FloatTensor(single).add_(1)
        torch.FloatTensor(double).add_(1)
        return torch.Tensor(single) * 2

    results = []
    for run in (function, dynamo.compile(function, backend="eager")):
        single, double = np.ones(2, np.float32), np.ones(2)
        results.append((run(single, double).tolist(), single.tolist(), double.tolist()))
    assert results[0] == results[1]
    assert results[0][1:] == ([2.0, 2.0], [1.0, 1.0])


def test_the_default_type_is_asked() -> None:
    compiled = dynamo.compile(lambda x: torch.Tensor([1, 2]) + x, backend="eager", fullgraph=True)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert compiled(torch.ones(2, dtype=torch.float16)).dtype == dtype
        finally:
            torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert compiled(torch.ones(2, device="cpu")).device.type == "cpu"


def test_numbers_that_change_are_open() -> None:
    counter = dynamo.testing.CompileCounter()
    compiled = dynamo.compile(lambda x, a: torch.FloatTensor([a, 2.0]) * x, backend=counter, fullgraph=True)
    for a in (0.5, 1.5, 2.5, 3.5):
        assert torch.equal(compiled(torch.ones(2), a), torch.tensor([a, 2.0]))
    assert counter.frame_count == 2


PARAMETER = torch.nn.Parameter(torch.rand(3))
OF_TENSORS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: torch.Tensor(x) + x,
    "of integers": lambda x: torch.Tensor(x.long()) + 1,
    "of one number": lambda x: torch.Tensor(x[0]) + 1,
    "written": lambda x: (lambda y: (torch.Tensor(y).mul_(2), y))(x * 1),
    "with strides": lambda x: torch.Tensor(x.expand(2, 3).t()),
    "of a parameter": lambda x: (torch.Tensor(PARAMETER) * x, type(torch.Tensor(PARAMETER)) is torch.Tensor,
                                 torch.Tensor(PARAMETER).is_leaf, torch.Tensor(PARAMETER).requires_grad),
    "another object": lambda x: (x + 1, torch.Tensor(x) is x, torch.Tensor(x)._is_view()),
    "lazily conjugated": lambda x: torch.Tensor((x + 1j).conj()) * 2,
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OF_TENSORS)
def test_of_a_tensor(name: str, grad: bool, backend: str) -> None:
    """Another tensor in the same memory, with the history of the first."""
    f = OF_TENSORS[name]
    results = []
    for run in (f, dynamo.compile(f, backend=backend, fullgraph=True)):
        PARAMETER.grad = None
        x = torch.arange(3.0).requires_grad_(grad)
        found = run(x)
        first = found[0] if isinstance(found, tuple) else found
        if first.requires_grad:
            first.abs().sum().backward()
        results.append((found, first.stride(), x.grad, PARAMETER.grad))
    torch.testing.assert_close(*results)
