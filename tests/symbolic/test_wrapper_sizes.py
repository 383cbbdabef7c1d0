"""Wrappers among the arguments whose own sizes change: one graph for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import dynamo
from dynamo.testing import CompileCounter
from tests.wrapper_tensors import Scaled, assert_same

BATCHES = (4, 6, 9, 5)
torch.manual_seed(0)
WEIGHT = torch.randn(8, 8, requires_grad=True)


class Sized(torch.Tensor):
    """Its sizes are those that it is told."""

    @staticmethod
    def __new__(cls, inner: Any, size: Any, stride: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, size, strides=stride, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: Any, size: Any, stride: Any) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Sized(inner["inner"], size, stride)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = pytree.tree_map_only(Sized, lambda one: one.inner, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, sized, func(*plain[0], **plain[1]))


def sized(inner: torch.Tensor) -> Any:
    return Sized(inner, inner.shape, inner.stride())


def two(rows: int) -> Any:
    return TwoTensor(torch.randn(rows, 8), torch.randn(rows, 8))


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "a layer": (lambda t: (t @ WEIGHT.detach()).relu() + 1, two),
    "a weight that learns": (lambda t: (t @ WEIGHT).relu(), two),
    "views": (lambda t: t.view(-1).mean() + t.t().reshape(-1), two),
    "its size": (lambda t: t * t.shape[0], two),
    "inner tensors": (lambda t: t.a * t.size(0) + t.b, two),
    "nested": (lambda t: t * 2, lambda rows: TwoTensor(two(rows), two(rows))),
    "told sizes": (lambda t: (t * 2).sin() * t.size(0), lambda rows: sized(torch.randn(rows, 8))),
    "integers": (lambda t: t.plain() * 2, lambda rows: Scaled.quantize(torch.randn(rows, 8))),
}


def run(call: Callable[[Any], Any], value: Any, trains: bool) -> list[Any]:
    WEIGHT.grad = None
    leaf = value.detach().requires_grad_(trains)
    out = call(leaf)
    if out.requires_grad:
        (out * out).sum().backward()
    return [out.detach(), out.shape, leaf.grad, WEIGHT.grad]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_sizes(name: str, backend: str, dynamic: Any, trains: bool) -> None:
    program, make = PROGRAMS[name]
    counter = CompileCounter(backend)
    compiled = dynamo.compile(program, backend=counter, dynamic=dynamic, fullgraph=True)
    for rows in BATCHES:
        value = make(rows)
        learns = trains and name != "integers"
        assert_same(run(compiled, value, learns), run(program, value, learns))
    assert counter.frame_count == (2 if dynamic is None else 1)
    assert not dynamo.counters["not_compiled"] and not dynamo.counters["inductor"]["sizes compiled"]
