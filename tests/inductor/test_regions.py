"""Blocks that a program repeats, and marks with `nested_compile_region`: compiled once.

In: programs that call a marked block several times. Checked: results, gradients and side effects
are eager's, and that all calls that are alike use what the first one has made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamo
from inductor import metrics
from inductor.config import config

Tensor = torch.Tensor
MARKS = {"own": dynamo.nested_compile_region, "torch's": torch.compiler.nested_compile_region}


class Layer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    """What another test has kept is no answer to how often a block is compiled."""
    dynamo.reset()
    with dynamo.config.patch(cache_dir=str(tmp_path)), config.patch(graph_cache=True):
        yield
    dynamo.reset()


def counted(call: Callable[[], Any], name: str) -> tuple[Any, int]:
    before = metrics.snapshot()[name]
    result = call()
    return result, metrics.snapshot()[name] - before


def gradients_of(model: nn.Module, call: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    model.zero_grad()
    given = x.clone().requires_grad_()
    out = call(given)
    out.square().sum().backward()
    return [out.detach(), given.grad, *[p.grad.clone() for p in model.parameters()]]  # type: ignore


def check(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.fixture(params=MARKS)
def marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Layer, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))

    monkeypatch.setattr(Layer, "forward", MARKS[request.param](forward))


@pytest.mark.usefixtures("marked")
def test_training_compiles_a_block_once() -> None:
    model = Stack(6)
    compiled = dynamo.compile(model, fullgraph=True)
    x = torch.randn(5, 8)
    found, reused = counted(lambda: gradients_of(model, compiled, x), "graphs_reused")
    assert reused == 10  # forward and backward of five of six
    check(found, gradients_of(model, model, x))
    x = torch.randn(5, 8)
    with torch.no_grad():  # an optimizer's step
        for p in model.parameters():
            p.mul_(0.9)
    check(gradients_of(model, compiled, x), gradients_of(model, model, x))
    assert dynamo.counters["stats"]["graphs"] == 1 and not dynamo.counters["not_compiled"]


@pytest.mark.usefixtures("marked")
def test_inference_keeps_the_weights_of_each_call() -> None:
    model = Stack(5).eval()
    compiled = dynamo.compile(model, fullgraph=True)
    with torch.no_grad():
        x = torch.randn(3, 8)
        found, reused = counted(lambda: compiled(x), "graphs_reused")
        assert reused == 4
        check([found], [model(x)])
        model.get_parameter("layers.2.up.weight").mul_(3)
        x = torch.randn(3, 8)
        check([compiled(x)], [model(x)])
        other = Stack(5).eval()
        model.load_state_dict(other.state_dict())
        check([compiled(x)], [other(x)])


@pytest.mark.usefixtures("marked")
def test_without_a_cache_there_is_one_graph() -> None:
    model = Stack(3)
    compiled = dynamo.compile(model, options={"graph_cache": False})
    x = torch.randn(2, 8)
    check(gradients_of(model, compiled, x), gradients_of(model, model, x))


@pytest.mark.usefixtures("marked")
def test_sizes_that_change() -> None:
    model = Stack(4)
    compiled = dynamo.compile(model)
    for rows in (3, 5, 7, 11):
        x = torch.randn(rows, 8)
        check(gradients_of(model, compiled, x), gradients_of(model, model, x))
    assert not dynamo.counters["not_compiled"]


@dynamo.nested_compile_region
def write(x: Tensor, log: Tensor, at: int) -> tuple[Tensor, Tensor]:
    log[at] = x.sum()
    x.mul_(2)
    return x, x[1:]


def writes(x: Tensor, log: Tensor) -> tuple[Tensor, ...]:
    for at in range(3):
        x, rest = write(x, log, at)
        rest.add_(1)
    return x, rest, log


@dynamo.nested_compile_region
def drop(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) * 2 + torch.rand_like(x)


def draws(x: Tensor) -> Tensor:
    for _ in range(4):
        x = drop(x)
    return x


@dynamo.nested_compile_region
def several(x: Tensor, y: Tensor | None, parts: int) -> Any:
    out = (x if y is None else x * y).chunk(parts, -1)
    with torch.no_grad():
        scale = out[0].abs().amax()
    return {"parts": [part.sin() / scale for part in out], "same": x}


def nests(x: Tensor) -> Any:
    first = several(x, None, 2)
    second = several(first["parts"][0], first["parts"][1], 2)
    third = several(second["same"], x[:, : x.shape[1] // 2], 2)
    return first, second, third


@dynamo.nested_compile_region
def outer(x: Tensor) -> Tensor:
    return drop_nothing(x) + drop_nothing(x.cos())


@dynamo.nested_compile_region
def drop_nothing(x: Tensor) -> Tensor:
    return x * 2 + 1


def nested(x: Tensor) -> Tensor:
    return outer(outer(x)) - outer(x * 3)


@dynamo.nested_compile_region
def picks(x: Tensor) -> Tensor:
    return x[x > 0].sum() + x * x.max().item()


def unknown(x: Tensor) -> Tensor:
    return picks(picks(x)) + picks(x.neg())


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "writes and views": (writes, lambda: (torch.randn(4, 3), torch.zeros(3))),
    "random numbers": (draws, lambda: (torch.randn(40, 30),)),
    "several results": (nests, lambda: (torch.randn(4, 8),)),
    "a block in a block": (nested, lambda: (torch.randn(6),)),
    "sizes known later": (unknown, lambda: (torch.randn(12),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program, make = PROGRAMS[name]
    compiled = dynamo.compile(program)
    for _ in range(3):
        given = make()
        mine, theirs = copy.deepcopy(given), copy.deepcopy(given)
        torch.manual_seed(7)
        wanted = torch.utils._pytree.tree_leaves(program(*theirs))
        torch.manual_seed(7)
        found = torch.utils._pytree.tree_leaves(compiled(*mine))
        check(found, wanted)
        check(list(mine), list(theirs))
        shared = [(a.data_ptr() == b.data_ptr()) for a in found for b in found]
        assert shared == [(a.data_ptr() == b.data_ptr()) for a in wanted for b in wanted]
    assert not dynamo.counters["not_compiled"]


def test_blocks_that_differ() -> None:
    @dynamo.nested_compile_region
    def block(x: Tensor, weight: Tensor, wide: bool) -> Tensor:
        return F.linear(x, weight).exp() if wide else F.linear(x, weight).tanh()

    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return block(block(block(x, a, True), b, False), a, False)

    compiled = dynamo.compile(f, fullgraph=True)
    given = torch.randn(3, 4), torch.randn(6, 4), torch.randn(4, 6)
    check([compiled(*given)], [f(*given)])


def test_an_error_is_that_of_the_program() -> None:
    @dynamo.nested_compile_region
    def block(x: Tensor, at: Tensor) -> Tensor:
        return x.index_select(0, at).sin()

    def f(x: Tensor, at: Tensor) -> Tensor:
        return block(block(x, at), at)

    compiled = dynamo.compile(f)
    x, at = torch.randn(4, 2), torch.tensor([0, 3, 1, 2])
    check([compiled(x, at)], [f(x, at)])
    with pytest.raises(IndexError):
        compiled(x, at + 1)
    check([compiled(x, at)], [f(x, at)])


def test_what_can_be_marked() -> None:
    layer = Layer()
    assert dynamo.nested_compile_region(layer.forward) == layer.forward
    assert dynamo.nested_compile_region()(write) is write
    with pytest.raises(TypeError, match="mark the `forward` of its class"):
        dynamo.nested_compile_region(layer)
