"""Which handlers of the program may end an operation's error: the others do not cut its graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.testing import CompileCounter

TABLE = torch.arange(6.0).reshape(3, 2)
MINE = (KeyError, TypeError)


class Odd(Exception):
    pass


def step(buffer: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    buffer.add_(1)
    return F.embedding(index, TABLE) * 2


def with_finally(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        return step(buffer, index)
    finally:
        if len(log) < 9:
            log.append(index.shape[0])


def of_another_class(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        return step(buffer, index)
    except TypeError:
        log.append("type")
    except NotImplementedError as error:
        log.append(str(error))
    return None


def of_two_classes(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        return step(buffer, index)
    except (KeyError, IndexError) as error:
        log.append(str(error))
    return None


def of_classes_by_name(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        return step(buffer, index)
    except MINE:
        log.append("mine")
    except LookupError as error:
        log.append(type(error).__name__)
    return None


def bare(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        return step(buffer, index)
    except:  # noqa: E722
        log.append("all")
    return None


def finally_that_returns(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        step(buffer, index)
    finally:
        log.append("end")
        return buffer * 3  # noqa: B012


def raised_from(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        return step(buffer, index)
    except TypeError:
        return None
    except IndexError as error:
        raise Odd(str(error)) from error
    finally:
        log.append("end")


def hidden_name(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    try:
        return step(buffer, index)
    except OSError:
        log.append("hidden")
    return None


@contextlib.contextmanager
def logged(log: list[Any]) -> Iterator[None]:
    log.append("enter")
    yield
    log.append("leave")


@contextlib.contextmanager
def tidied(log: list[Any]) -> Iterator[None]:
    try:
        with logged(log):
            yield
    finally:
        log.append("tidied")


@contextlib.contextmanager
def swallowed(log: list[Any]) -> Iterator[None]:
    try:
        yield
    except IndexError as error:
        log.append(str(error))


@contextlib.contextmanager
def swallowed_inside(log: list[Any]) -> Iterator[None]:
    with swallowed(log):
        yield


def in_a_manager(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    with logged(log):
        return step(buffer, index)


def in_nested_managers(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    with tidied(log):
        return step(buffer, index)


def in_a_manager_that_ends_it(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    with swallowed(log):
        return step(buffer, index)
    return buffer * 3


def in_one_inside_of_another(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    with swallowed_inside(log):
        return step(buffer, index)
    return buffer * 3


def in_a_comprehension(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    return [step(buffer, each) for each in (index,)][0]


def solved(buffer: torch.Tensor, index: torch.Tensor, log: list[Any]) -> Any:
    with tidied(log):
        return torch.linalg.solve(torch.eye(2)[index], buffer + 1)


CATCHING: list[Callable[..., Any]] = [
    of_two_classes, of_classes_by_name, bare, finally_that_returns, raised_from,
    in_a_manager_that_ends_it, in_one_inside_of_another,
]  # fmt: skip
PASSING: list[Callable[..., Any]] = [
    with_finally, of_another_class, in_a_manager, in_nested_managers, in_a_comprehension, solved,
]  # fmt: skip


def outcome(f: Callable[..., Any], index: list[int]) -> tuple[Any, ...]:
    buffer, log = torch.zeros(2), list[Any]()
    try:
        result = f(buffer, torch.tensor(index), log)
    except Exception as error:
        result = (type(error), str(error), type(error.__cause__))
    if isinstance(result, torch.Tensor):
        result = result.tolist()
    return result, buffer.tolist(), log


@pytest.mark.parametrize("f", CATCHING)
def test_a_handler_sees_what_eager_leaves(f: Callable[..., Any]) -> None:
    compiled = dynamo.compile(f, backend="eager")
    for index in ([0, 1], [0, 7], [2, 2], [9, 1]):
        assert outcome(compiled, index) == outcome(f, index)


def test_a_name_that_hides_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OSError", IndexError)
    compiled = dynamo.compile(hidden_name, backend="eager")
    for index in ([0, 1], [0, 7]):
        assert outcome(compiled, index) == outcome(hidden_name, index)


@pytest.mark.parametrize("f", PASSING)
def test_other_handlers_leave_one_graph(f: Callable[..., Any]) -> None:
    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter)
    assert outcome(compiled, [0, 1]) == outcome(f, [0, 1])
    assert counter.frame_count == 1
    want, got = outcome(f, [0, 7]), outcome(compiled, [0, 7])
    assert got[:2] == want[:2] and got[0][0] is IndexError
