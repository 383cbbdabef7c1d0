"""A compiled module runs the module that the program holds: identity, `forward`, what is stored."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter


class Known(nn.Module):
    """A module that is looked for in what the program holds."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.calls = 0
        self.places: dict[Any, str] = {self: "key"}
        self.reference = weakref.ref(self)
        self.number = id(self)

    def forward(self, x: torch.Tensor, k: int = 1) -> Any:
        self.calls += 1
        told = (self.places.get(self), self.reference() is self, id(self) == self.number,
                is_same(self, next(iter(self.places))), type(self) is Known)
        return self.lin(x) * k, told


def is_same(one: Any, other: Any) -> bool:
    return one is other


@pytest.mark.parametrize("make", [
    lambda module: dynamo.compile(module, backend="eager"),
    lambda module: dynamo.compile(dynamo.compile(module, backend="aot_eager"), backend="eager"),
    lambda module: dynamo.disable(module),
    lambda module: dynamo.compile(lambda x: dynamo.compile(module, backend="eager")(x)),
], ids=("compiled", "twice", "disabled", "inside"))  # fmt: skip
def test_self_is_the_module_that_the_program_holds(make: Any) -> None:
    module, x = Known(), torch.randn(1, 2)
    result, told = make(module)(x)
    assert told == ("key", True, True, True, True) == module(x)[1]
    assert torch.allclose(result, module(x)[0])


def test_the_module_behind_a_compiled_one() -> None:
    module = Known()
    compiled = dynamo.compile(module, backend="eager")
    assert dynamo.run(compiled) is module and compiled is not module


def test_forward_of_a_compiled_module_is_compiled() -> None:
    module, counter, x = nn.Linear(2, 2), CompileCounter(), torch.randn(1, 2)
    module.register_forward_hook(lambda *args: pytest.fail("forward runs no hooks"))
    compiled = dynamo.compile(module, backend=counter)
    assert torch.equal(compiled.forward(x), module.forward(x)) and counter.frame_count == 1
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)
    module.forward = lambda x: x * 9  # type: ignore[method-assign, assignment]
    assert torch.equal(compiled.forward(x), x * 9)


def test_a_compiled_module_in_traced_code_is_one_with_its_module() -> None:
    def f(model: Any, module: Any, x: torch.Tensor) -> Any:
        y, _ = model(x)
        model.calls += 10
        z, _ = model.forward(x, k=2)
        model.extra = 3
        return y + z + module.lin.weight.sum(), module.calls, module.extra, model is module

    module, x = Known(), torch.randn(1, 2)
    want = f(module, module, x)
    module.calls = 0
    compiled = dynamo.compile(module, backend="eager")
    got = dynamo.compile(f, backend="eager", fullgraph=True)(compiled, module, x)
    assert torch.equal(got[0], want[0]) and got[1:3] == want[1:3] == (12, 3) and got[3] is False
