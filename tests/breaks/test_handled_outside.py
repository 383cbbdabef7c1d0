"""A function that is compiled while its caller handles an exception."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


def told(x: torch.Tensor) -> Any:
    return x + 1, repr(sys.exc_info()[1])


def told_alone(x: torch.Tensor) -> Any:
    return x + 1, repr(sys.exception())


def raised_again(x: torch.Tensor) -> Any:
    y = x + 1
    try:
        raise
    except (ValueError, RuntimeError) as error:
        return y, repr(error)


def formatted(x: torch.Tensor) -> Any:
    return x + 1, traceback.format_exc().splitlines()[-1]


@pytest.mark.parametrize("function", [told, told_alone, raised_again, formatted])
def test_it_is_seen(function: Callable[[torch.Tensor], Any]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    for number in range(3):
        try:
            raise ValueError(number)
        except ValueError:
            assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
    assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]


@pytest.mark.parametrize("function", [told, told_alone, formatted])
def test_what_was_compiled_where_nothing_is_handled(function: Callable[[torch.Tensor], Any]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
    try:
        raise ValueError("later")
    except ValueError:
        assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
    assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]


def chain(error: BaseException | None) -> list[str]:
    """The texts of an exception, of its context, and so on."""
    found = []
    while error is not None:
        found.append(repr(error))
        error = error.__context__
    return found


def fail(text: str) -> None:
    raise KeyError(text)


def caught() -> BaseException:
    try:
        fail("caught")
    except KeyError as error:
        return error


def caught_of_python() -> BaseException:
    try:
        return [][3]
    except IndexError as error:
        return error


def caught_in_a_handler() -> BaseException:
    try:
        fail("first")
    except KeyError:
        try:
            fail("second")
        except KeyError as error:
            return error


def caught_before_a_break() -> BaseException:
    try:
        fail("before")
    except KeyError as error:
        kept = error
    dynamo.graph_break()
    return kept


def raised_behind_a_break() -> BaseException:
    kept = caught()
    kept.__context__ = None
    dynamo.graph_break()
    try:
        raise kept
    except KeyError as error:
        return error


def context_is_read() -> Any:
    error = caught()
    return error.__context__


def context_is_cleared() -> BaseException:
    error = caught()
    error.__context__ = None
    return error


def context_of_its_own() -> BaseException:
    error = caught_in_a_handler()
    try:
        raise error
    except KeyError as again:
        return again


def of_a_generator() -> BaseException:
    def numbers() -> Any:
        yield 1
        raise StopIteration("early")
    try:
        return list(numbers())
    except RuntimeError as error:
        return error


def never_raised() -> BaseException:
    return KeyError("never")


CONTEXTS = [caught, caught_of_python, caught_in_a_handler, caught_before_a_break, raised_behind_a_break,
            context_is_read, context_is_cleared, context_of_its_own, of_a_generator, never_raised]


@pytest.mark.parametrize("function", CONTEXTS)
def test_contexts(function: Callable[[], Any]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    assert chain(compiled()) == chain(function())
    for number in range(2):
        try:
            raise ValueError(number)
        except ValueError:
            want = chain(function())
            assert chain(compiled()) == want
    assert chain(compiled()) == chain(function())


def test_a_generator_is_resumed_where_nothing_is_handled() -> None:
    def handled() -> str:
        return repr(sys.exception())

    def numbers() -> Any:
        yield handled()
        try:
            fail("own")
        except KeyError:
            yield handled()
            yield handled()
        yield handled()
        try:
            fail("last")
        except KeyError as error:
            yield chain(error)

    def f(x: torch.Tensor) -> Any:
        try:
            fail("outer")
        except KeyError:
            given = numbers()
            seen = [next(given), next(given)]
        seen += [next(given), next(given)]
        try:
            fail("other")
        except KeyError:
            seen.append(next(given))
        return x + 1, seen, handled()

    x = torch.ones(2)
    assert dynamo.compile(f, backend="eager", fullgraph=True)(x)[1:] == f(x)[1:]
