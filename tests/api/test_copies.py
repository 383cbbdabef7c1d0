"""Copies and pickles of what was compiled: what the plain object's would be, in its own way."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import threading
from typing import Any

import torch
from torch import nn

import dynamo


class Locked(nn.Module):
    """A module with a state that only its own methods can pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.lock = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.Lock())


class Chosen(nn.Module):
    """A module that keeps a compiled method of its own, as many programs do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.fast = dynamo.compile(self.slow, backend="eager")
        self.part = dynamo.compile(functools.partial(self.slow, twice=True), backend="eager")

    def slow(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        return x * self.weight * (2 if twice else 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fast(x) + self.part(x)


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = (copy.deepcopy, saved, lambda module: pickle.loads(pickle.dumps(module)))


def test_a_module_is_copied_in_the_way_of_its_class() -> None:
    module = Locked()
    x = torch.randn(2, 3)
    for way in WAYS:
        for compiled in (dynamo.compile(module, backend="eager"), module):
            other = way(compiled)
            assert type(other) is Locked and other.lock is not module.lock
            assert other.linear.weight is not module.linear.weight
            assert torch.equal(other(x), module(x))
    assert not hasattr(copy.copy(dynamo.compile(module)), "_policy")


def test_a_copy_of_a_module_compiled_in_place_has_its_own_weights() -> None:
    module = Locked()
    dynamo.compile_in_place(module, backend="eager")
    x = torch.randn(2, 3)
    module(x)
    for way in WAYS:
        other = way(module)
        with torch.no_grad():
            other.linear.weight.zero_()
            other.linear.bias.zero_()
        assert other(x).eq(0).all() and not module(x).eq(0).all()


def test_compiled_methods_of_a_copy_are_the_copys() -> None:
    module = Chosen()
    x = torch.randn(3)
    for way in WAYS:
        other = way(module)
        with torch.no_grad():
            other.weight.fill_(5.0)
        assert torch.allclose(other(x), x * 15) and torch.allclose(module(x), x * 3)
    assert copy.deepcopy(module).fast.region is module.fast.region  # it stays compiled


def test_functions_are_not_copied() -> None:
    compiled = dynamo.compile(lambda x: x + 1, backend="eager")
    assert copy.deepcopy(compiled) is compiled and copy.copy(compiled) is compiled


def test_in_place_can_be_turned_off() -> None:
    module = nn.Linear(2, 2)
    assert dynamo.compile_in_place(module, disable=True)._compiled_call_impl is None
    with dynamo.config.patch(disable=True):
        assert dynamo.compile_in_place(module)._compiled_call_impl is None
