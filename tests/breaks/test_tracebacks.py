"""Tracebacks read like eager's: of exceptions that are caught in inlined calls, and of those that pass
graph breaks."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo

LOG = logging.getLogger(__name__)
LOG.propagate = False


def innermost(x: torch.Tensor, n: int) -> torch.Tensor:
    x = x * 2
    raise ValueError(f"bad {n}")


def inner(x: torch.Tensor, n: int) -> torch.Tensor:
    return innermost(x + 1, n) + 1


class Model:
    def method(self) -> Any:
        return {}["key"]  # type: ignore[var-annotated]

    @property
    def wrong(self) -> Any:
        return self.missing  # type: ignore[attr-defined]

    def __add__(self, other: torch.Tensor) -> torch.Tensor:
        return inner(other, 9)


class Shows:
    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.found = value, tb
        return True

    def __enter__(self) -> Shows:
        return self


@contextlib.contextmanager
def managed(x: torch.Tensor) -> Iterator[torch.Tensor]:
    try:
        yield x + 1
    finally:
        x = x + 2


def numbers(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x
    yield inner(x, 7)


# -- all in one graph ------------------------------------------------------------------------------


def kept(x: torch.Tensor) -> Any:
    model: Any = Model()
    try:
        inner(x, 1)
    except ValueError as error:
        model.error = error
    return x + 1, model.error


def several(x: torch.Tensor) -> Any:
    errors = []
    for program in (lambda: Model().method(), lambda: Model().wrong, lambda: Model() + x,
                    lambda: [inner(x, i) for i in range(2)], lambda: sum(numbers(x)),
                    lambda: list(map(lambda i: inner(x, i), [3])), lambda: inner(x)):  # type: ignore[call-arg]
        try:
            program()
        except Exception as error:
            errors.append(error)
    return x + 1, errors


def from_another(x: torch.Tensor) -> Any:
    try:
        try:
            inner(x, 2)
        except ValueError as error:
            raise RuntimeError("outer") from error
        finally:
            x = x + 1
    except RuntimeError as error:
        found = error
    try:
        try:
            inner(x, 2)
        finally:
            Model().method()
    except KeyError as error:
        return x + 1, found, error


def raised_again(x: torch.Tensor) -> Any:
    errors = []
    for bare in (True, False):
        try:
            try:
                inner(x, 3)
            except ValueError as error:
                if bare:
                    raise
                raise error
        except ValueError as error:
            errors.append(error)
    for _ in range(2):
        with contextlib.suppress(ValueError):
            raise errors[0]
    return x + 1, errors


def in_blocks(x: torch.Tensor) -> Any:
    shows = Shows()
    with shows:
        inner(x, 4)
    try:
        with managed(x) as y:
            inner(y, 4)
    except ValueError as error:
        return x + 1, shows.found, error


def groups(x: torch.Tensor) -> Any:
    errors: list[Exception] = [TypeError("never raised")]
    for i in range(2):
        try:
            inner(x, i)
        except ValueError as error:
            errors.append(error)
    try:
        try:
            raise ExceptionGroup("outer", [errors[0], ExceptionGroup("inner", errors[1:])])
        except* ValueError:
            x = x + 1
    except ExceptionGroup as error:
        return x + 1, error, error.split(ValueError), errors


def thrown(x: torch.Tensor) -> Any:
    def changed() -> Any:
        try:
            yield x
        except ValueError as error:
            raise KeyError(1) from error

    errors = []
    for started in (True, False):
        generator = changed()
        if started:
            next(generator)
        try:
            generator.throw(ValueError("thrown"))
        except Exception as error:
            errors.append(error)
    return x + 1, errors


def exchanged(x: torch.Tensor) -> Any:
    fresh = ValueError("never raised")
    nothing = fresh.__traceback__
    try:
        inner(x, 5)
    except ValueError as error:
        other = RuntimeError("other").with_traceback(error.__traceback__)
        third = RuntimeError("third").with_traceback(error.__traceback__.tb_next)  # type: ignore[union-attr]
        same = sys.exc_info()[2] is error.__traceback__
        error.__traceback__ = None
        return x + 1, nothing, other, third, same, error


def recursive(x: torch.Tensor) -> Any:
    def count(n: int) -> int:
        if not n:
            raise ValueError("deep")
        return count(n - 1)

    try:
        count(6)
    except ValueError as error:
        return x + 1, error


# -- with graph breaks -----------------------------------------------------------------------------


def told(x: torch.Tensor) -> Any:
    x = x + 1
    try:
        inner(x, 1)
    except ValueError:
        LOG.exception("told")
        text = traceback.format_exc()
        traceback.print_exc(file=sys.stdout)
    return x + 1, text


def broken(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    dynamo.graph_break()
    raise ValueError("broken")


def through_handler(x: torch.Tensor) -> torch.Tensor:
    try:
        return broken(x) + 1
    except ValueError:
        dynamo.graph_break()
        raise


def through_another(x: torch.Tensor) -> torch.Tensor:
    try:
        return through_handler(x) + 1
    except ValueError as error:
        dynamo.graph_break()
        raise RuntimeError("again") from error
    finally:
        x = x + 1


def over_breaks(x: torch.Tensor) -> Any:
    x = x + 1
    try:
        through_another(x)
    except RuntimeError as error:
        dynamo.graph_break()
        found = error
    return x + 1, found, traceback.format_exception(found)


def ends_with_it(x: torch.Tensor) -> Any:
    return through_another(x + 1)


def called_behind(x: torch.Tensor) -> torch.Tensor:
    def goes_on() -> None:
        dynamo.graph_break()

    goes_on()
    raise ValueError("behind")


def ends_behind(x: torch.Tensor) -> Any:
    return called_behind(x + 1) * 2


def ends_at_once(x: torch.Tensor) -> Any:
    return inner(x, 6) * 2


def in_a_loop(x: torch.Tensor) -> Any:
    errors = []
    for i in range(3):
        try:
            y = x + i
            dynamo.graph_break()
            inner(y, i)
        except ValueError as error:
            errors.append(error)
            dynamo.graph_break()
    return x + 1, errors


def raise_it(error: Exception) -> None:
    raise error


def from_outside(x: torch.Tensor) -> Any:
    x = x + 1
    error = dynamo.disable(ValueError)("from outside")
    for _ in range(2):
        try:
            raise_it(error)
        except ValueError:
            x = x + 1
    return x, error


@dynamo.disable
def disabled(x: torch.Tensor) -> torch.Tensor:
    return inner(x, 8)


def from_a_disabled_function(x: torch.Tensor) -> Any:
    x = x + 1
    try:
        called = lambda: disabled(x)  # noqa: E731
        called()
    except ValueError as error:
        return x + 1, error


ONE_GRAPH = [kept, from_another, raised_again, in_blocks, thrown, exchanged, recursive]
BREAKS = [told, over_breaks, ends_with_it, ends_behind, ends_at_once, in_a_loop, from_outside,
          from_a_disabled_function, several, groups]


def shown(value: Any) -> str:
    if isinstance(value, BaseException):
        return "".join(traceback.format_exception(value))
    if isinstance(value, types.TracebackType):
        return "".join(traceback.format_tb(value))
    if isinstance(value, tuple | list):
        return "\n".join(map(shown, value))
    return "" if isinstance(value, torch.Tensor) else str(value)


def outcome(function: Callable[[torch.Tensor], Any]) -> str:
    text = io.StringIO()
    LOG.handlers[:] = [logging.StreamHandler(text)]
    with contextlib.redirect_stdout(text):
        try:
            result = shown(function(torch.ones(2, 3)))
        except Exception as error:
            entry = error.__traceback__
            while entry is not None and entry.tb_frame.f_code.co_filename != __file__:
                entry = entry.tb_next
            assert entry is not None
            result = "escaped\n" + shown(error.with_traceback(entry.tb_next))
    return text.getvalue() + result


@pytest.mark.parametrize("program", ONE_GRAPH)
def test_in_one_graph(program: Callable[[torch.Tensor], Any]) -> None:
    expected = outcome(program)
    compiled = dynamo.compile(program, backend="eager", fullgraph=True)
    assert [outcome(compiled) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("program", BREAKS)
def test_with_breaks(program: Callable[[torch.Tensor], Any]) -> None:
    expected = outcome(program)
    compiled = dynamo.compile(program, backend="eager")
    assert [outcome(compiled) for _ in range(2)] == [expected] * 2


def test_frames_have_the_functions_code_and_globals_and_no_locals() -> None:
    def makes(n: int) -> Callable[[torch.Tensor], Any]:
        return lambda x: inner(x, n)

    calls = makes(1)

    def f(x: torch.Tensor) -> Any:
        try:
            calls(x)
        except ValueError as error:
            return x + 1, error

    found = dynamo.compile(f, backend="eager")(torch.ones(2, 3))[1].__traceback__
    frames = [frame for frame, _ in traceback.walk_tb(found)]
    assert [frame.f_code for frame in frames] == [
        f.__code__, calls.__code__, inner.__code__, innermost.__code__]
    assert [line for _, line in traceback.walk_tb(found)] == [frame.f_lineno for frame in frames]
    for frame in frames:
        assert frame.f_globals is globals() and frame.f_back is None and not frame.f_locals
    traceback.clear_frames(found)


class Item:
    def __init__(self, made: list[int]) -> None:
        made.append(1)


def test_a_kept_exception_keeps_no_locals_alive() -> None:
    made: list[int] = []

    def holds(x: torch.Tensor) -> None:
        item = Item(made)
        inner(x, 1)
        del item

    def f(x: torch.Tensor) -> Any:
        try:
            holds(x)
        except ValueError as error:
            return x + 1, error

    kept = dynamo.compile(f, backend="eager")(torch.ones(2, 3))[1]
    assert kept.__traceback__ is not None and made
    assert not any(type(one) is Item for one in gc.get_objects())


@pytest.mark.parametrize("program", [kept, in_blocks, over_breaks])
def test_many_calls_leave_nothing(program: Callable[[torch.Tensor], Any]) -> None:
    compiled, x = dynamo.compile(program, backend="eager"), torch.ones(2, 3)
    found = []
    for count in (20, 20, 320):
        for _ in range(count):
            compiled(x)
        gc.collect()
        found.append(sys.getallocatedblocks())
    assert found[2] - found[1] < 200, found
