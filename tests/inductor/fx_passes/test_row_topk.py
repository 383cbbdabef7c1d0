"""Which calls of `topk` become a kernel of our own; here on a CPU, where ATen is its implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from inductor.driver import shipping
from inductor.fx_passes import row_topk

Program = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def taken(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of the operator's calls."""
    seen: list[Any] = []
    has_kernel = row_topk._has_kernel

    def noting(x: Any, k: Any, dim: int) -> bool:
        seen.append(has_kernel(x, k, dim))
        return bool(seen[-1])

    as_on_gpu(row_topk)
    monkeypatch.setattr(row_topk, "_has_kernel", noting)
    return seen


def long_rows(x: torch.Tensor) -> torch.Tensor:
    return (torch.arange(6 * 5003) * 7919 % 30011 - 9000).to(x.dtype).view(2, 3, 5003)


@pytest.mark.parametrize("program, has_kernel", [
    (lambda x: torch.topk(x, 3), True), (lambda x: x.topk(k=2, dim=2, largest=False, sorted=False), True),
    (lambda x: x.half().topk(1), True), (lambda x: x[0, 0].topk(5), True), (lambda x: x.topk(2, 0), False),
    (lambda x: x.double().topk(2), False), (lambda x: (x * 9).int().topk(2), False), (lambda x: x.topk(9), False),
    (lambda x: x.topk(0), False), (lambda x: x.repeat(1, 1, 60).topk(2), False),
    (lambda x: long_rows(x).topk(600), True), (lambda x: long_rows(x).half().topk(200, largest=False), True),
    (lambda x: long_rows(x).int().topk(9)[0], True), (lambda x: long_rows(x)[1, :, 9:].topk(20), True),
    (lambda x: long_rows(x).topk(700), False), (lambda x: long_rows(x).double().topk(9), False),
    (lambda x: long_rows(x).long().topk(9)[0], False), (lambda x: long_rows(x).topk(2, 0), False),
    (lambda x: long_rows(x).repeat(11, 1, 1).topk(9), False), (lambda x: long_rows(x).repeat(1, 1, 220).topk(9), False),
])  # fmt: skip
def test_calls(taken: list[Any], program: Program, has_kernel: bool) -> None:
    x = torch.randn(2, 3, 18)
    dynamo.reset()
    found, wanted = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})(x), program(x)
    torch.testing.assert_close(tuple(found), tuple(wanted))
    assert taken == [has_kernel]


def test_gradients(taken: list[Any]) -> None:
    x, y = (torch.randn(4, 9, requires_grad=True) for _ in range(2))
    y.data.copy_(x.data)

    def program(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.topk(x.softmax(-1), 3)
        return (values * places).sum()

    dynamo.compile(program, fullgraph=True, options={"graph_cache": False})(x).backward()
    program(y).backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert taken == [True]


def test_kernels_are_shipped(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled at the first call: whoever loads the file would need a compiler."""
    called: list[Any] = []
    monkeypatch.setattr(shipping, "_binaries", lambda made, inputs: called.append(inputs) or set())
    with torch.no_grad():
        dynamo.compile(lambda x: x.topk(2)[0] + 1).aot_compile(torch.randn(2, 9))
        assert taken == [True] and len(called) == 1
        dynamo.compile(lambda x: x.topk(2, 0)[0] + 1).aot_compile(torch.randn(3, 9))
        assert taken == [True, False] and len(called) == 1


def test_what_eager_raises(taken: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="selected index k out of range"):
        dynamo.compile(lambda x: x.topk(7))(torch.randn(2, 5))
