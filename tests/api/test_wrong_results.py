"""A backend whose function returns something else than its graph's results: an error says so."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo import _C
from dynamo.exc import BackendError

WRONG: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "a tensor": (lambda outs: outs[0], "a Tensor"),
    "too few": (lambda outs: outs[1:], r"\d values?"),
    "too many": (lambda outs: (*outs, outs[0]), r"\d values"),
    "None": (lambda outs: None, "a NoneType"),
    "dict": (lambda outs: dict(enumerate(outs)), "a dict"),
    "generator": (lambda outs: (out for out in outs), "a generator"),
    "set": (lambda outs: set(outs), "a set"),
    "no tensor": (lambda outs: [None for _ in outs], "a NoneType for the tensor with index 0"),
}


def one(x: torch.Tensor) -> Any:
    return x.sin()


def two(x: torch.Tensor) -> Any:
    return x.sin(), x.cos()


def behind_a_break(x: torch.Tensor) -> Any:
    dynamo.graph_break()
    y = x.sin()
    dynamo.graph_break()
    return y


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("function", (one, two, behind_a_break))
def test_wrong_results_are_an_error(function: Any, name: str) -> None:
    change, found = WRONG[name]

    def wrong(module: Any, inputs: Any) -> Any:
        return lambda *args: change([*module(*args)])

    x = torch.rand(2 if function is two else 1, 3)  # as many rows as there are results
    compiled = dynamo.compile(function, backend=wrong)
    for _ in range(2):
        with pytest.raises(BackendError, match=(
            rf"test_wrong_results.py:\d+ in {function.__name__}\n  .*backend 'wrong' .*returned "
            rf"{found}, where the graph has {1 + (function is two)} result.*\n  What to do: "
        )):
            compiled(x)


@pytest.mark.parametrize("kind", (tuple, list))
def test_results_in_a_tuple_or_a_list(kind: Any) -> None:
    def right(module: Any, inputs: Any) -> Any:
        return lambda *args: kind(module(*args))

    x = torch.rand(2, 3)
    got = dynamo.compile(two, backend=right)(x)
    assert torch.equal(torch.stack(got), torch.stack(two(x)))


def test_numbers_among_the_results() -> None:
    def right(module: Any, inputs: Any) -> Any:
        return lambda *args: module(*args)

    def f(x: torch.Tensor) -> Any:
        return x.sum().item() * 2, x + 1

    with dynamo.config.patch(capture_scalar_outputs=True):
        number, tensor = dynamo.compile(f, backend=right, fullgraph=True)(torch.ones(3))
    assert number == 6 and torch.equal(tensor, torch.full((3,), 2.0))


def test_the_check_takes_no_frame_of_its_own() -> None:
    names: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            caller = sys._getframe(1)
            names.append(caller.f_code.co_filename)
            return module(*args)

        return run

    torch.testing.assert_close(dynamo.compile(one, backend=backend)(torch.ones(2)), torch.ones(2).sin())
    assert names == [__file__]


class Results(list[Any]):
    """A list of a class of its own."""


@pytest.mark.parametrize(
    ("results", "plain"),
    [([1, "a"], True), ((1, "a"), True), ((True, None), True), (Results([1, "a"]), False),
     ((1,), False), ((1, 2, 3), False), (("a", 1), False), (None, False), ({}, False)],
    ids=str,
)  # fmt: skip
def test_checked_call(results: Any, plain: bool) -> None:
    asked: list[Any] = []
    call = _C.checked_call(lambda *args: results, (True, False), int, asked.append)
    assert call(1, 2) is (results if plain else None)
    assert asked == ([] if plain else [results])


def test_checked_call_passes_errors_on() -> None:
    call = _C.checked_call(int, (), int, repr)
    with pytest.raises(ValueError, match="invalid literal"):
        call("x")
    with pytest.raises(TypeError, match="keyword"):
        call(x=1)
    for parts in ((int,), (int, [], int, repr), (int, (), 1, repr)):
        with pytest.raises(TypeError, match="a function, a tuple, a type and a function"):
            _C.checked_call(*parts)  # type: ignore[call-arg, arg-type]
    assert gc.is_tracked(call)
