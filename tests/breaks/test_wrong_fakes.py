"""A fake kernel of the program that says other than its operator does: named, with its place, and eager's results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

LIBRARY = torch.library.Library("wrong_fakes", "FRAGMENT")


def made(name: str, returns: str, real: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    LIBRARY.define(f"{name}(Tensor x) -> {returns}")
    LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"wrong_fakes::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.wrong_fakes, name)


def same(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)  # the fake


CASES: dict[str, tuple[Any, str]] = {
    "shape": (made("turned", "Tensor", lambda x: x.t().contiguous(), same), "shape [6, 4], not [4, 6]"),
    "dtype": (made("widened", "Tensor", lambda x: x.double(), same), "dtype torch.float64, not torch.float32"),
    "strides": (made("strided", "Tensor", lambda x: x.t().contiguous().t(), same), "strides [1, 4], not [6, 1]"),
    "memory": (made("given_back", "Tensor", lambda x: x, same), "shares memory with an argument"),
    "second": (made("both", "(Tensor, Tensor)", lambda x: (x + 1, x[:2].clone()), lambda x: (same(x), same(x))),
               "its result 1 has shape [2, 6], not [4, 6]"),
}  # fmt: skip


def program(name: str) -> Callable[[torch.Tensor], Any]:
    operator = CASES[name][0]

    def f(x: torch.Tensor) -> Any:
        y = operator(x + 1)  # the call
        if name == "second":
            return y[1] * 2
        return y * 2

    return f


@pytest.mark.parametrize("name", [*CASES])
def test_a_wrong_fake_is_named(name: str) -> None:
    dynamo.counters.clear()
    f, x = program(name), torch.randn(4, 6)
    with pytest.warns(UserWarning) as told:
        found = dynamo.compile(f)(x)
    expected = f(x)
    assert torch.equal(found, expected) and found.stride() == expected.stride() and found.dtype is expected.dtype
    (text,) = [str(one.message) for one in told if "fake kernel" in str(one.message)]
    assert CASES[name][1] in text and f"wrong_fakes::{CASES[name][0]._qualified_op_name.split('::')[1]}" in text, text
    assert f"{__file__}:" in text and "register_fake" in text and "defect of dynamo" not in text, text
    assert dynamo.counters["not_compiled"] == {"call failed: a wrong fake kernel": 1}


def test_a_list_of_another_length_is_told_with_the_error() -> None:
    fewer = made("fewer", "Tensor[]", lambda x: [x + 1], lambda x: [same(x), same(x)])
    with pytest.raises((IndexError, RuntimeError)) as error:  # its last is the first, which no fake knows
        dynamo.compile(lambda x: fewer(x)[-1] * 2)(torch.ones(4, 6))
    assert any("gives 1 tensors, not 2" in note and __file__ in note for note in error.value.__notes__)


def test_it_is_an_error_where_errors_are_shown() -> None:
    with dynamo.config.patch(suppress_errors=False):
        with pytest.raises(dynamo.exc.InternalError, match="turned does not do what its fake kernel"):
            dynamo.compile(program("shape"))(torch.randn(4, 6))


@torch.library.custom_op("wrong_fakes::custom", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return x[:2].clone()


@custom.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_the_place_of_a_custom_operator_is_that_of_its_fake() -> None:
    with pytest.warns(UserWarning, match="wrong_fakes::custom does not do") as told:
        dynamo.compile(lambda x: custom(x).sum())(torch.ones(3))
    line = custom._abstract_fn.__code__.co_firstlineno  # type: ignore[union-attr]
    assert any(f"{__file__}:{line})" in str(one.message) for one in told)


def test_a_right_fake_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = made("right", "Tensor", lambda x: x + 1, same)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.ones(4, 6)
        assert torch.equal(dynamo.compile(lambda x: right(x) * 2)(x), x * 4)
