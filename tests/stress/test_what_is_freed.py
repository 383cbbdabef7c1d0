"""Compiled code holds none of the program's tensors: arguments, results, weights."""

from __future__ import annotations

import gc
import linecache
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import dynamo
from dynamo._C import Program
from dynamo.shapes.constants import KNOWN
from dynamo.shapes.fake_tensor import Fake


class Parts(nn.Module):
    """Two graphs, a buffer, and a layer that both use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("shift", torch.rand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * 2 + self.shift
        dynamo.graph_break()
        return self.layer(y).relu()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_tensors_die_as_in_eager(backend: str, dynamic: bool | None, training: bool) -> None:
    dynamo.reset()
    model = Parts()
    compiled = dynamo.compile(model, backend=backend, dynamic=dynamic)
    seen: list[weakref.ref[Any]] = []
    with torch.set_grad_enabled(training):
        for count in (2, 2, 3, 4):
            x = torch.rand(count, 3)
            result = compiled(x)
            if training:
                result.sum().backward()
            seen += [weakref.ref(x), weakref.ref(result)]
            del x, result
    gc.collect()
    assert [reference() for reference in seen] == [None] * len(seen)
    weights = [weakref.ref(tensor) for tensor in (*model.parameters(), *model.buffers())]
    del model, compiled
    gc.collect()
    assert [reference() for reference in weights] == [None] * len(weights)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_call_that_is_compiled_lets_go_without_the_collector(backend: str, dynamic: bool | None) -> None:
    """A program's activations at a graph break, as large as they are, don't wait for the collector."""
    dynamo.compile(lambda x: x + 1, dynamic=True)(torch.ones(2))  # torch's first symbols hold frames
    dynamo.reset()
    seen: list[weakref.ref[Any]] = []

    @dynamo.disable
    def look(x: torch.Tensor) -> None:
        seen.append(weakref.ref(x))

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        look(y)
        z = y.relu(), torch.nonzero(y)
        look(z[0])
        return z[0] + 1

    compiled = dynamo.compile(program, backend=backend, dynamic=dynamic)
    gc.collect()
    gc.disable()
    try:
        for count in (2, 2, 3, 4):
            x = torch.rand(count, 3)
            result = compiled(x)
            seen += [weakref.ref(x), weakref.ref(result)]
            del x, result
            assert [reference() for reference in seen] == [None] * len(seen)
    finally:
        gc.enable()


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_waits_while_a_frame_is_traced(collects: bool) -> None:
    seen: list[tuple[str, bool]] = []

    def collecting() -> bool:
        return gc.isenabled() and gc.get_threshold()[0] > 0

    @dynamo.assume_constant_result
    def factor() -> int:
        seen.append(("trace", collecting()))
        return 2

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(("backend", collecting()))
        return gm.forward

    compiled = dynamo.compile(lambda x: x * factor(), backend=backend)
    (gc.enable if collects else gc.disable)()
    try:
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert seen == [("trace", False), ("backend", collects)]
        assert collecting() is collects
    finally:
        gc.enable()


def test_sources_go_with_the_functions_that_were_made_of_them() -> None:
    def sources() -> set[str]:
        for _ in range(4):
            gc.collect()
        return {name for name in linecache.cache if name.startswith("<dynamo wrapper ")}

    def writes() -> None:
        def f(x: torch.Tensor) -> Any:
            x.add_(1)
            return x * 2, x.view(-1)

        compiled = dynamo.compile(f, backend="aot_eager")
        compiled(torch.ones(3))
        assert sources() > before

    dynamo.reset()
    before = sources()
    for _ in range(3):
        writes()
    dynamo.reset()
    assert sources() == before


NAMES = types.ModuleType("names")


class Resets:
    """Its end takes all entries with it, and uses the memory that they had."""

    kept: list[bytes] = []

    def __del__(self) -> None:
        dynamo.reset()
        size = Program.__basicsize__ + 16 - b"".__sizeof__()  # with the head of the collector
        self.kept += [b"*" * (size + extra) for extra in range(-15, 16) for _ in range(500)]


def test_what_guards_let_go_of_may_take_them_with_it() -> None:
    def program(factor: float) -> Any:
        class Scale:
            pass

        def helper(x: torch.Tensor, unused: Any = None) -> torch.Tensor:
            return x * 2

        helper.__defaults__ = (Resets(),)
        scale: Any = Scale()
        scale.factor, NAMES.helper = factor, helper
        compiled = dynamo.compile(lambda x: NAMES.helper(x) * scale.factor, backend="eager")
        for _ in range(4):
            assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2 * factor))
        helper.__defaults__ = (1,)
        (cell,) = compiled.function.__closure__
        cell.cell_contents = None
        return compiled

    for factor in (2.5, 3.5, 4.5):
        compiled = program(factor)
        assert not Resets.kept  # the guards hold it
        gc.collect()  # the class, which they are about, dies
        assert Resets.kept
        Resets.kept.clear()
        del compiled


def _optimizer(kind: type[torch.optim.Optimizer]) -> Any:
    weights = [nn.Parameter(torch.randn(8)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.randn(8)
    return kind(weights, lr=0.1).step  # type: ignore[call-arg]


def _training() -> Any:
    """Autograd keeps the places that it reads; a mask is made of numbers."""
    table = torch.randn(9, 4, requires_grad=True)

    def step() -> None:
        places = torch.arange(5).remainder(3)
        chosen = table.index_select(0, places)
        chosen = torch.where(places[:, None] > 1, chosen.exp(), chosen)
        torch.nn.functional.cross_entropy(chosen.gather(1, places[:, None]).expand(5, 2),
                                          places.clamp(max=1)).backward()

    return step


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [
    lambda: _optimizer(torch.optim.SGD), lambda: _optimizer(torch.optim.AdamW), _training,
], ids=["sgd", "adamw", "training"])
def test_what_a_compile_has_made_goes_with_the_code(make: Any, dynamic: bool) -> None:
    """Tensors in C++ structures (gradients, what autograd saves) are roots for Python's collector:
    one that leads to a graph keeps it, its fakes and the values that these were known to hold."""

    def alive() -> list[Any]:
        for _ in range(3):
            gc.collect()
        kinds = (torch.fx.Node, Fake, FakeTensor)
        return [item for item in gc.get_objects() if type(item) in kinds]

    dynamo.reset()
    before = len(alive())
    compiled = dynamo.compile(make(), dynamic=dynamic)
    compiled()
    compiled()
    assert not any(KNOWN in item.__dict__ for item in alive())
    del compiled
    dynamo.reset()
    assert len(alive()) == before
