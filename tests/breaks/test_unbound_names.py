# ruff: noqa: F821, F841, B018, E731
"""Names that are unbound behind a break: the error is the one that Python raises, message and all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


def local_deleted(x: Any) -> Any:
    value = 1
    dynamo.graph_break()
    del value
    dynamo.graph_break()
    return value


def local_never_bound(x: Any) -> Any:
    if x is None:
        value = 1
    dynamo.graph_break()
    return value


def local_deleted_twice(x: Any) -> Any:
    value = 1
    dynamo.graph_break()
    del value
    dynamo.graph_break()
    del value


def own_cell_deleted(x: Any) -> Any:
    def inner() -> Any:
        return value

    value = x
    dynamo.graph_break()
    del value
    dynamo.graph_break()
    return value


def own_cell_never_bound(x: Any) -> Any:
    dynamo.graph_break()
    if x is None:
        value = 1
    dynamo.graph_break()
    return [lambda: value, value]


def own_cell_deleted_twice(x: Any) -> Any:
    def inner() -> Any:
        return value

    value = 1
    dynamo.graph_break()
    del value
    del value


def parameter_in_a_cell(x: Any) -> Any:
    def inner() -> Any:
        return x

    dynamo.graph_break()
    del x
    dynamo.graph_break()
    return x


def free_deleted(x: Any) -> Any:
    value = x

    def inner() -> Any:
        dynamo.graph_break()
        return value

    dynamo.graph_break()
    del value
    return inner()


def free_never_bound(x: Any) -> Any:
    def inner() -> Any:
        dynamo.graph_break()
        return value

    dynamo.graph_break()
    if x is None:
        value = 1
    return inner()


def deleted_by_the_inner_function(x: Any) -> Any:
    def clear() -> None:
        nonlocal value
        dynamo.graph_break()
        del value

    value = x
    clear()
    dynamo.graph_break()
    return value


def in_an_inner_frame(x: Any) -> Any:
    def inner(value: Any) -> Any:
        dynamo.graph_break()
        del value
        dynamo.graph_break()
        return (lambda: value), value

    return inner(x)


def caught(x: Any) -> Any:
    def inner() -> Any:
        return value

    try:
        dynamo.graph_break()
        return value + inner()
    except UnboundLocalError as error:
        value = x
        return str(error), value, inner()


def free_beside_own(x: Any) -> Any:
    def middle() -> Any:
        own = x
        dynamo.graph_break()

        def inner() -> Any:
            return own, x

        found = inner()
        del own
        dynamo.graph_break()
        try:
            own
        except NameError as error:
            return found, type(error).__name__, str(error), x
        return None

    return middle()


def bound_later(x: Any) -> Any:
    dynamo.graph_break()

    def count(n: int) -> int:
        dynamo.graph_break()
        return 1 + count(n - 1) if n else 0

    dynamo.graph_break()
    return count(3), x


FUNCTIONS = [
    local_deleted, local_never_bound, local_deleted_twice, own_cell_deleted, own_cell_never_bound,
    own_cell_deleted_twice, parameter_in_a_cell, free_deleted, free_never_bound,
    deleted_by_the_inner_function, in_an_inner_frame, caught, free_beside_own, bound_later,
]  # fmt: skip


def outcome(function: Callable[[Any], Any], x: Any) -> Any:
    try:
        return repr(function(x))
    except NameError as error:
        return type(error), str(error), error.name


@pytest.mark.parametrize("given", ["tensor", "number"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_error_is_python_s(function: Callable[[Any], Any], given: str) -> None:
    dynamo.reset()
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        x = torch.ones(2) if given == "tensor" else 3
        assert outcome(compiled, x) == outcome(function, x)


def test_a_caught_error_knows_the_name() -> None:
    def f(x: torch.Tensor) -> Any:
        def inner() -> Any:
            return value

        found = []
        for run in (inner, lambda: NO_SUCH_NAME):  # type: ignore[name-defined]
            try:
                run()
            except NameError as error:
                found.append((type(error), str(error), error.name))
        value = x + 1
        return found, inner()

    dynamo.reset()
    assert dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2))[0] == f(torch.ones(2))[0]


def test_a_cell_that_is_emptied_between_two_calls() -> None:
    def make() -> tuple[Callable[..., Any], ...]:
        held: Any = 1

        def read() -> Any:
            return held

        def empty() -> None:
            nonlocal held
            del held

        def fill(value: Any) -> None:
            nonlocal held
            held = value

        return read, empty, fill

    read, empty, fill = make()
    compiled = dynamo.compile(read, backend="eager")
    for value in (6, torch.ones(1), 7):
        fill(value)
        assert compiled() is value
        empty()
        for _ in range(2):
            with pytest.raises(NameError, match="free variable 'held'"):
                compiled()
