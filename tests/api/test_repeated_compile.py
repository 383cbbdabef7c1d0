"""Calls of `compile` for one code with the same options share their entries."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.config import config
from dynamo.frames.sharing import MOST_CACHED, regions
from dynamo.testing import CompileCounter


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def scaled(k: Any) -> Callable[..., torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * k

    return inner


class Steps:
    def __init__(self, rate: float = 0.5) -> None:
        self.rate = rate

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.rate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rate


module, steps = torch.nn.Linear(3, 3), Steps()
MAKERS: dict[str, Callable[[], Any]] = {
    "function": lambda: plain,
    "closure": lambda: scaled(torch.ones(3)),
    "lambda": lambda: lambda x: x.cos(),
    "partial": lambda: functools.partial(torch.nn.functional.leaky_relu, negative_slope=0.1),
    "partial of a function": lambda: functools.partial(scaled(3)),
    "method": lambda: Steps().step,
    "instance": lambda: steps,
    "module": lambda: module,
    "its forward": lambda: module.forward,
    "operator": lambda: torch.sin,
    "no_grad": lambda: torch.no_grad()(plain),
}


@pytest.mark.parametrize("what", MAKERS)
def test_one_graph_for_all_calls_of_compile(what: str) -> None:
    counter, x = CompileCounter("eager"), torch.randn(2, 3)
    for _ in range(4):
        f = MAKERS[what]()
        assert torch.equal(dynamo.compile(f, backend=counter)(x), f(x))
    assert counter.frame_count == 1


def test_module_compiled_over_and_over() -> None:
    counter, x, net = CompileCounter("eager"), torch.randn(2, 3), torch.nn.Linear(3, 3)
    expected, compiled = net(x), net
    for _ in range(4):
        compiled = dynamo.compile(compiled, backend=counter)
        assert torch.equal(compiled(x), expected)
    for _ in range(2):
        assert torch.equal(dynamo.compile_in_place(net, backend=counter)(x), expected)
    assert counter.frame_count == 1


class Layer(torch.nn.Module):
    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.inner, self.number = torch.nn.Linear(3, width), number
        self.register_buffer("shift", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x) * self.number + self.shift).sin()


def test_equal_blocks_in_place() -> None:
    """They share a graph as far as they are alike, whatever they are changed to later."""
    counter, x = CompileCounter("eager"), torch.randn(2, 3)
    blocks = [dynamo.compile_in_place(Layer(4, 1), backend=counter) for _ in range(20)]
    for block in blocks:
        assert torch.equal(block(x), block.forward(x))
    assert counter.frame_count == 1
    for number, block in enumerate(blocks):  # more than the limit of one
        block.number = number / 4
        assert torch.equal(block(x), block.forward(x))
    assert dynamo.counters["recompile_limit"].total() == 0 and 1 < counter.frame_count <= 21
    others = [dynamo.compile_in_place(Layer(5, k), backend=counter, fullgraph=True) for k in (2, 3)]
    before = counter.frame_count
    for block in [*others, *others]:
        assert torch.equal(block(x), block.forward(x))
    assert counter.frame_count == before + 2


def test_closures_keep_their_own_values() -> None:
    counter, x = CompileCounter("eager"), torch.randn(3)
    tensors = [dynamo.compile(scaled(torch.full((3,), float(n))), backend=counter)
               for n in range(12)]
    for n, compiled in [*enumerate(tensors), *enumerate(tensors)]:
        assert torch.equal(compiled(x), x * n)
    assert counter.frame_count == 1
    others = [dynamo.compile(scaled(k), backend=counter) for k in (2, 3, 4, 0.5, 0.25, torch.ones(3))]
    for compiled, k in zip(others, (2, 3, 4, 0.5, 0.25, torch.ones(3)), strict=True):
        assert torch.equal(compiled(x), x * k)


def test_closures_that_live_have_room_for_each() -> None:
    """Nothing runs eager since many functions have one code."""
    nets = [torch.nn.Sequential(*[torch.nn.Linear(2, 2)] * n) for n in range(1, 13)]
    counter, x = CompileCounter("eager"), torch.randn(2, 2)
    compiled = [dynamo.compile(make_step(net), backend=counter) for net in nets]
    for net, step in zip(nets, compiled, strict=True):
        assert torch.equal(step(x), net(x) * 2)
    assert counter.frame_count == len(nets)


def make_step(net: torch.nn.Module) -> Callable[..., torch.Tensor]:
    return lambda x: net(x) * 2


def other_backend(gm: Any, inputs: Any) -> Any:
    return gm.forward


@pytest.mark.parametrize("first, second", [
    ({}, {"dynamic": True}), ({}, {"fullgraph": True}), ({}, {"name": "other"}),
    ({}, {"recompile_limit": 3}), ({}, {"isolate_recompiles": True}),
    ({"dynamic": {"x": {0: dynamo.Dim("a")}}}, {"dynamic": {"x": {0: dynamo.Dim("b")}}}),
    ({"options": {"n": 1}}, {"options": {"n": True}}),
], ids=repr)
def test_other_options_have_other_entries(first: dict[str, Any], second: dict[str, Any]) -> None:
    seen = []

    def backend(gm: Any, inputs: Any, options: Any = None) -> Any:
        seen.append(options)
        return gm.forward

    x = torch.ones(4)
    for arguments in (first, second, first, second):
        dynamo.compile(plain, backend=backend, **arguments)(x)
    assert len(seen) == (3 if "isolate_recompiles" in second else 2)


def test_settings_and_decisions_count_as_options() -> None:
    counter, x = CompileCounter("eager"), torch.ones(3)

    def run() -> int:
        assert torch.equal(dynamo.compile(plain, backend=counter)(x), plain(x))
        return counter.frame_count

    assert run() == 1
    with config.patch(assume_static_by_default=False):
        assert run() == 2
    assert run() == 2
    dynamo.allow_in_graph(plain)
    try:
        assert run() == 3
    finally:
        dynamo.disallow_in_graph(plain)


def test_entries_made_later_are_found_by_all() -> None:
    counter = CompileCounter("eager")
    one, two = (dynamo.compile(plain, backend=counter) for _ in range(2))
    for size in (2, 3, 4, 5):
        assert torch.equal(one(torch.ones(size)), two(torch.ones(size)))
    assert counter.frame_count == 2
    dynamo.reset()
    two(torch.ones(7)), one(torch.ones(7))
    dynamo.compile(plain, backend=counter)(torch.ones(7))
    assert counter.frame_count == 3


def test_threads_that_compile_at_once() -> None:
    counter, x = CompileCounter("eager"), torch.ones(3)

    def run() -> None:
        for _ in range(5):
            assert torch.equal(dynamo.compile(plain, backend=counter)(x), plain(x))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.frame_count == 1


def test_memory_does_not_grow_with_calls_of_compile() -> None:
    x, alive = torch.ones(3), []
    for _ in range(MOST_CACHED + 8):
        net = torch.nn.Linear(3, 3)
        dynamo.compile(net, backend="eager")(x)
        alive.append(weakref.ref(net))
        dynamo.compile(plain, backend="eager")(x)
    del net
    gc.collect()
    assert not any(ref() is not None for ref in alive)
    source = "def f(x):\n    return x + {}\n"
    before = len(regions.policies)
    for number in range(2 * MOST_CACHED):
        scope: dict[str, Any] = {}
        exec(source.format(number), scope)
        dynamo.compile(scope["f"], backend="eager")
    del scope
    gc.collect()
    assert len(regions.policies) <= before + MOST_CACHED


def test_closures_over_other_functions_have_limits_of_their_own() -> None:
    counter, x = CompileCounter("eager"), torch.randn(3)
    parts = [torch.sin, torch.cos, torch.tanh, lambda x: x + 1, lambda x: x * 2, lambda x: -x]

    def joined(first: Any, second: Any) -> Callable[..., torch.Tensor]:
        return lambda x: second(first(x))

    for first in parts:
        for second in parts:
            f = joined(first, second)
            assert torch.equal(dynamo.compile(f, backend=counter)(x), f(x))
    assert counter.frame_count == len(parts) ** 2
