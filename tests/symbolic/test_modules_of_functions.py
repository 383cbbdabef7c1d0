"""Functions and classes whose `__module__` is no string: programs may store anything there."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo

CALLS: list[Any] = []


class Error(Exception):
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 3


class Manager:
    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return True


class All(metaclass=Kind):
    pass


class Log(logging.Logger):
    pass


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def original(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def noted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(type(x))
    return x * 2


ERROR, LOG, DISABLED = Error(), Log("of no module"), torch.compiler.disable(original)


def key(x: torch.Tensor) -> Any:
    return {ERROR: x + 1}[ERROR]


def with_block(x: torch.Tensor) -> Any:
    with Manager():
        return x + 1


def call(x: torch.Tensor) -> Any:
    return helper(x)


def call_on_device(x: torch.Tensor) -> Any:
    with torch.device("cpu"):
        return helper(x)


def instance(x: torch.Tensor) -> Any:
    return isinstance(x, All), x + 1


def log(x: torch.Tensor) -> Any:
    LOG.info("said")
    return x + 1


def disabled(x: torch.Tensor) -> Any:
    return DISABLED(x)


@pytest.fixture(params=[None, 42, []], ids=repr)
def no_module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for value in (Error, Manager, Kind, Log, helper, original, DISABLED):
        monkeypatch.setattr(value, "__module__", request.param)
    monkeypatch.setattr(Kind.__instancecheck__, "__module__", request.param)
    dynamo.reset()
    yield
    dynamo.reset()


@pytest.mark.parametrize(
    "f", [key, with_block, call, call_on_device, instance, log, disabled],
    ids=lambda f: f.__name__)
def test_a_module_is_any_object(no_module: None, f: Any) -> None:
    x = torch.rand(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the compiler itself must not fail
        made = dynamo.compile(f, backend="eager")(x)
    torch.testing.assert_close(made, f(x))


def test_functions_of_the_program_in_a_graph_are_called_where_nothing_reads_their_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        noted(x)
        return x + 1

    monkeypatch.setattr(noted, "__module__", "builtins")
    dynamo.reset()
    compiled = dynamo.compile(dynamo.allow_in_graph(noted) and f, backend="eager")
    compiled(torch.ones(2))
    CALLS.clear()
    compiled(torch.ones(2))
    assert CALLS == [torch.Tensor]


def test_classes_that_exec_has_made_change_like_others() -> None:
    space: dict[str, Any] = {}
    exec("class Made:\n    factor = 1\n    def go(self, x): return x * self.factor", space)
    made = space["Made"]

    def f(x: torch.Tensor, one: Any) -> Any:
        return one.go(x), one.factor, type(one).__module__

    dynamo.reset()
    compiled, x = dynamo.compile(f, backend="eager"), torch.ones(2)
    for factor, module in ((1, "builtins"), (2, "builtins"), (3, "other")):
        made.factor, made.__module__ = factor, module
        y, *texts = compiled(x, made())
        assert torch.equal(y, x * factor) and texts == [factor, module]
