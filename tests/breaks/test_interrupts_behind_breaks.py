"""Ctrl-C and errors of the backend behind a break: the handlers around it see them, as if they came
where the part behind the break begins."""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo
import inductor
from dynamo import hook
from dynamo.base.errors import BackendError
from dynamo.base.signals import is_of_signal

x = torch.arange(3.0)


def finally_runs(x: Any, log: Any, here: Any) -> Any:
    try:
        y = x + 1
        here()
        y = y.sin()
    finally:
        log.append("finally")
    return y


def handler_gives_a_value(x: Any, log: Any, here: Any) -> Any:
    y = x + 1
    try:
        here()
        y = y.sin()
    except BaseException as error:
        log.append(type(error).__name__)
        return y * 2
    return y


def another_error(x: Any, log: Any, here: Any) -> Any:
    try:
        y = x + 1
        here()
        return y.sin()
    except BaseException:
        raise ValueError("another") from None
    finally:
        log.append(sys.exc_info()[0])


def suppressed(x: Any, log: Any, here: Any) -> Any:
    y = x + 1
    with contextlib.suppress(BaseException), torch.no_grad():
        here()
        y = y.sin()
    log.append(torch.is_grad_enabled())
    return y


def loop(x: Any, log: Any, here: Any) -> Any:
    for turn in range(3):
        try:
            x = x + 1
            here()
            x = x.sin()
        except BaseException:
            log.append(turn)
            continue
        finally:
            log.append("turn ends")
    return x


def within_handler(x: Any, log: Any, here: Any) -> Any:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            y = x + 1
            here()
            y = y.sin()
        finally:
            log.append("left")
    except BaseException as error:
        log.append(repr(error.__context__))
        return x
    return y


def raised_again(x: Any, log: Any, here: Any) -> Any:
    """What lies behind the break begins with raising an error."""
    def fails(x: Any) -> Any:
        here()
        raise KeyError("first")

    try:
        try:
            fails(x + 1)
        finally:
            x = x.sin()
            log.append("left")
    except KeyError:
        return x
    return x + 1


def callee(x: Any, log: Any, here: Any) -> Any:
    scale = 2

    def inner(x: Any) -> Any:
        nonlocal scale
        try:
            scale = 3
            here()
            return x.sin()
        finally:
            log.append(scale)

    try:
        return inner(x + 1) + 1
    except BaseException:
        return x * scale
    finally:
        log.append("caller")


FUNCTIONS = [
    finally_runs, handler_gives_a_value, another_error, suppressed, loop, within_handler, callee,
]


def outcome(call: Callable[..., Any], here: Any) -> tuple[Any, ...]:
    log: list[Any] = []
    try:
        value = call(x, log, here)
    except BaseException as error:
        return type(error), str(error), log
    return value.tolist(), log


def raises() -> None:
    raise KeyboardInterrupt("stop")


def stops_once(gone: list[int], error: BaseException | None = None) -> None:
    if not gone:
        gone.append(1)
        raise error or KeyboardInterrupt("stop")


@pytest.mark.parametrize("when", ("compile", "run"))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_handlers_see_what_comes_behind_a_break(function: Any, when: str) -> None:
    first: list[int] = []
    wanted = outcome(function, lambda: stops_once(first))

    gone: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            stops_once(gone)
            return module(*args)

        if "sin" not in module.code:
            return module
        if when == "compile":
            stops_once(gone)
        return run

    compiled = dynamo.compile(function, backend=backend)
    assert outcome(compiled, dynamo.graph_break) == wanted
    assert gone
    kept = outcome(function, lambda: None)
    for _ in range(2):
        assert outcome(compiled, dynamo.graph_break) == kept


@pytest.fixture
def rings_once() -> Iterator[Callable[[], None]]:
    """Raises, the first time, what the handler of a signal raises, as to limit the program's time."""
    rung: list[int] = []

    def times_out(number: int, frame: Any) -> None:
        raise TimeoutError("time is up")

    def rings() -> None:
        if not rung:
            rung.append(1)
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, times_out)
    yield rings
    signal.signal(signal.SIGUSR1, before)
    assert rung


@pytest.mark.parametrize("when", ("compile", "run"))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_the_handler_of_a_signal_raises(
    function: Any, when: str, rings_once: Callable[[], None]
) -> None:
    gone: list[int] = []
    wanted = outcome(function, lambda: stops_once(gone, TimeoutError("time is up")))

    def backend(module: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            rings_once()
            return module(*args)

        if "sin" not in module.code:
            return module
        if when == "compile":
            rings_once()
        return run

    compiled = dynamo.compile(function, backend=backend)
    assert outcome(compiled, dynamo.graph_break) == wanted
    kept = outcome(function, lambda: None)
    for _ in range(2):
        assert outcome(compiled, dynamo.graph_break) == kept


class Limit:
    def __call__(self, number: int, frame: Any) -> None:
        raise TimeoutError("time is up")

    def ends(self, how: str, number: int, frame: Any) -> None:
        self(number, frame)


class Stricter(Limit):
    pass


@pytest.mark.parametrize("handler", [
    Limit(), Stricter(), Limit().__call__, functools.partial(Limit().ends, "at once"),
    lambda number, frame: Limit()(number, frame),
], ids=["object", "inherited", "method", "partial", "function"])  # fmt: skip
def test_kinds_of_handlers(handler: Any) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError) as found:
            interrupted()
        assert is_of_signal(found.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_of_signal(found.value) and not is_of_signal(TimeoutError())


@pytest.mark.parametrize(("place", "name"), [
    ("dynamo.frames.convert", "generate"), ("dynamo.frames.entries", "program_text"),
    ("inductor.driver.from_aten", "compile_aten"),
])  # fmt: skip
def test_a_signal_in_the_compiler(
    place: str, name: str, rings_once: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[place]
    step = getattr(module, name)

    def interrupted(*args: Any, **keywords: Any) -> Any:
        rings_once()
        return step(*args, **keywords)

    monkeypatch.setattr(module, name, interrupted)
    compiled = dynamo.compile(lambda x: x.sin() + 1, backend=inductor.compile_fx)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TimeoutError):
            compiled(x)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert len(hook.entries(compiled.function.__code__, compiled.region)) == 1


def test_an_error_meets_the_error_that_is_being_raised() -> None:
    def backend(module: Any, inputs: Any) -> Any:
        if "sin" in module.code:
            raises()
        return module

    log: list[Any] = []
    with pytest.raises(KeyboardInterrupt, match="stop") as info:
        dynamo.compile(raised_again, backend=backend)(x, log, dynamo.graph_break)
    assert isinstance(info.value.__context__, KeyError)


def test_an_error_of_the_backend() -> None:
    def backend(module: Any, inputs: Any) -> Any:
        if "sin" in module.code:
            raise RuntimeError("told the backend")
        return module

    log: list[Any] = []
    with pytest.raises(BackendError, match="told the backend"):
        dynamo.compile(finally_runs, backend=backend)(x, log, dynamo.graph_break)
    assert log == ["finally"]


def test_a_signal_as_a_part_begins() -> None:
    """The break ends in C code that looks at no signals: the part behind it is the first to do so."""
    def f(x: Any, log: Any, interrupts: Any) -> Any:
        y = x + 1
        try:
            for _ in interrupts:
                y = y.sin()
                log.append("goes on")
        except KeyboardInterrupt:
            log.append("seen")
        return y

    def interrupts(turn: int) -> Any:
        return itertools.chain(range(turn), map(_thread.interrupt_main, [signal.SIGINT]))

    def counts(x: Any, log: Any, interrupts: Any) -> Any:
        y, count = x + 1, 100
        try:
            for _ in interrupts:
                count -= 1
                y = y.sin() * count
                log.append("goes on")
        except KeyboardInterrupt:
            log.append("seen")
        return y

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored
    try:
        for function in (f, counts):
            compiled = dynamo.compile(function, backend="eager")
            for turn in (0, 0, 2, 2, 4, 4):
                assert outcome(compiled, interrupts(turn))[-1] == ["goes on"] * turn + ["seen"]
    finally:
        signal.signal(signal.SIGINT, before)
