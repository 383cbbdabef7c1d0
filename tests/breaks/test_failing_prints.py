"""A `print` that fails, or is interrupted: `try` and `with` around it do as in eager, and modes are
what they were."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import pytest
import torch

import dynamo


def cleans_up(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    try:
        y = x + 1
        print("half", file=out)
        y = y * 2
    finally:
        log.append("left")
    return y


def catches(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    y = x + 1
    try:
        print("half", file=out)
        y = y * 2
    except ValueError as error:
        log.append(str(error))
    return y


def callee_prints(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    def say(text: str) -> None:
        print(text, file=out)

    y = x + 1
    try:
        say("half")
    except ValueError as error:
        log.append(str(error))
    return y


class Block:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> None:
        self.log.append("enter")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append(str(error))
        return True


def manager_suppresses(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    y = x + 1
    with Block(log):
        print("half", file=out)
        y = y * 2
    return y


@contextlib.contextmanager
def block(log: list[Any], tidies: bool) -> Iterator[None]:
    log.append("begin")
    if not tidies:
        yield
        log.append("end")
        return
    try:
        yield
    finally:
        log.append("end")


def generator_tidies_up(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    with block(log, tidies=True):
        y = x + 1
        print("half", file=out)
    return y


def generator_does_not(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    with block(log, tidies=False):
        y = x + 1
        print("half", file=out)
    return y


def without_gradients(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    with torch.no_grad():
        y = x + 1
        print("half", file=out)
        y = y * 2
    return y


def under_autocast(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        print("half", file=out)
        y = y * 2
    return y


def behind_a_break(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    with torch.no_grad():
        y = x + 1
        dynamo.graph_break()
        log.append(torch.is_grad_enabled())
        print("half", file=out)
        y = y * 2
    return y


def default_dtype(x: torch.Tensor, out: TextIO, log: list[Any]) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    y = x + torch.ones(3)
    print("half", file=out)
    torch.set_default_dtype(torch.float32)
    return y


def outcome(program: Callable[..., Any], out: TextIO) -> Any:
    log: list[Any] = []
    x = torch.eye(3)
    try:
        found: Any = program(x, out, log).tolist()
    except (ValueError, KeyboardInterrupt) as error:
        found = type(error), str(error)
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), nesting()
    return found, log, modes


def nesting() -> int:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


PROGRAMS = [cleans_up, catches, callee_prints, manager_suppresses, generator_tidies_up,
            generator_does_not, without_gradients, under_autocast, behind_a_break]  # fmt: skip
DEFERRED = [without_gradients, under_autocast, behind_a_break]


@pytest.fixture(autouse=True)
def modes() -> Iterator[None]:
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_file_that_is_closed(program: Callable[..., Any]) -> None:
    for compiled in (program, dynamo.compile(program, backend="eager")):
        with open(os.devnull, "w") as out:
            assert outcome(compiled, out) == outcome(program, out)
            out.close()
            assert outcome(compiled, out) == outcome(program, out)


@pytest.mark.parametrize("program", DEFERRED)
def test_ctrl_c_while_it_prints(program: Callable[..., Any]) -> None:
    """The pipe is full: `print` waits, as for a slow terminal."""
    compiled = dynamo.compile(program, backend="eager")
    reader, writer = os.pipe()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open(writer, "w", buffering=1) as out:
            outcome(compiled, out)
            os.set_blocking(writer, False)
            while fill(writer):
                pass
            os.set_blocking(writer, True)
            main = threading.main_thread().ident
            assert main is not None
            done = threading.Event()
            stopper = threading.Thread(target=interrupt, args=(main, done))
            stopper.start()
            found = outcome(compiled, out)
            done.set()
            stopper.join()
            assert found[0] == (KeyboardInterrupt, "")
            assert found[2] == (True, False, 0)
            os.set_blocking(reader, False)
            while drain(reader):
                pass
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(reader)


def fill(writer: int) -> bool:
    try:
        return os.write(writer, b"x" * 4096) > 0
    except BlockingIOError:
        return False


def drain(reader: int) -> bool:
    try:
        return len(os.read(reader, 65536)) > 0
    except BlockingIOError:
        return False


def interrupt(thread: int, done: threading.Event) -> None:
    """Ctrl-C, once the other thread waits."""
    time.sleep(0.3)
    if not done.is_set():
        signal.pthread_kill(thread, signal.SIGINT)


def test_a_default_dtype_is_set_as_eager_leaves_it() -> None:
    """No `with` block has set it, so the error leaves it."""
    with open(os.devnull, "w") as out:
        compiled = dynamo.compile(default_dtype, backend="eager")
        outcome(compiled, out)
        out.close()
        for call in (default_dtype, compiled):
            outcome(call, out)
            assert torch.get_default_dtype() == torch.float64, call
            torch.set_default_dtype(torch.float32)


def test_what_is_printed_is_where_it_is_redirected_to() -> None:
    def program(x: torch.Tensor) -> Any:
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            print("a")
            x = x * 2
        return x.tolist(), written.getvalue()

    x = torch.ones(2)
    assert dynamo.compile(program, backend="eager")(x) == program(x) == ([2.0, 2.0], "a\n")


def test_prints_in_no_try_stay_in_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            print("one")
            x = x + 1
        print("two")
        return x * 2

    dynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert capsys.readouterr().out == "one\ntwo\n"
