"""What a traced program puts out: the same text, in the same order, as often as eager."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

LOG = logging.getLogger("test_output")


@functools.lru_cache
def once(text: str) -> None:
    LOG.warning("once: %s", text)


def deeper(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("from the caller", DeprecationWarning, stacklevel=2)
    return x + 1


def prints(x: torch.Tensor) -> Any:
    print("start", x.shape, end=";")
    x = x + 1
    for i in range(2):
        print(i, None, 2.5, sep="-")
    return x


def logs(x: torch.Tensor) -> Any:
    once("a")
    LOG.info("number %d", 3)
    print("between")
    once("a")
    LOG.error("failed", extra={"k": 1}) if x.dim() > 5 else LOG.log(logging.WARNING, "fine")
    return x * 2


def warns(x: torch.Tensor) -> Any:
    for _ in range(2):
        warnings.warn("plain")
        x = deeper(x)
    return x


def around_break(x: torch.Tensor) -> Any:
    print("a")
    x = x + 1
    dynamo.graph_break()
    print("b")
    warnings.warn("c")
    return x * 2


def redirected(x: torch.Tensor) -> Any:
    print("outside")
    with contextlib.redirect_stdout(io.StringIO()) as inside:
        print("inside")
    print("again")
    return x + 1, inside.getvalue() if dynamo.is_compiling() is None else 0


def caught(x: torch.Tensor) -> Any:
    try:
        warnings.warn("an error", RuntimeWarning)
    except RuntimeWarning:
        return x - 1
    return x + 1


def record(run: Callable[[torch.Tensor], Any], calls: int, action: str) -> list[Any]:
    seen: list[Any] = []
    once.cache_clear()
    globals().pop("__warningregistry__", None)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    LOG.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as found, contextlib.redirect_stdout(out):
            warnings.simplefilter(action)
            for call in range(calls):
                result = run(torch.full((2,), float(call)))
                seen.append((str(result), len(found)))
        given = [(str(each.message), each.category, each.filename, each.lineno) for each in found]
        return [*seen, *given, out.getvalue()]
    finally:
        LOG.removeHandler(handler)


@pytest.mark.parametrize("action", ["always", "default", "error"])
@pytest.mark.parametrize("f", [prints, logs, warns, around_break, redirected, caught])
def test_output(f: Callable[[torch.Tensor], Any], action: str) -> None:
    if action == "error" and f is not caught:
        pytest.skip("the function would stop")
    dynamo.reset()
    compiled = dynamo.compile(f, backend="eager", fullgraph=f in (prints, warns))
    assert record(compiled, 3, action) == record(f, 3, action)


class Keeps(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


KEEPS = Keeps()
CASE = unittest.TestCase()
WATCHED = logging.getLogger("test_output.watched")
WATCHED.propagate = False
WATCHED.addHandler(KEEPS)


def logged_and_read() -> Any:
    before = len(KEEPS.texts)
    WATCHED.warning("one %s", 1)
    return len(KEEPS.texts) - before


def handler_exchanged() -> Any:
    first, second = logging.StreamHandler(io.StringIO()), logging.StreamHandler(io.StringIO())
    LOG.propagate = False
    LOG.addHandler(first)
    LOG.warning("one")
    LOG.removeHandler(first)
    LOG.addHandler(second)
    LOG.warning("two")
    LOG.removeHandler(second)
    return first.stream.getvalue(), second.stream.getvalue()


def warned_behind_a_break() -> Any:
    with warnings.catch_warnings(record=True) as found:
        dynamo.graph_break()
        warnings.warn("some text")
        return [str(each.message) for each in found]


def logs_asserted() -> Any:
    try:
        with CASE.assertLogs(LOG, "INFO") as found:
            LOG.info("a")
        count = found.output
        with CASE.assertLogs(LOG, "ERROR"):
            LOG.info("b")
        return count
    except AssertionError as error:
        return count, str(error)


def captured_warnings() -> Any:
    stream = io.StringIO()
    handler, logger = logging.StreamHandler(stream), logging.getLogger("py.warnings")
    with warnings.catch_warnings():
        logging.captureWarnings(True)
        warnings.simplefilter("always")
        logger.addHandler(handler)
        warnings.warn("some text")
        logger.removeHandler(handler)
        logging.captureWarnings(False)
    return "some text" in stream.getvalue()


@pytest.mark.parametrize("function", [logs_asserted, captured_warnings, logged_and_read, handler_exchanged, warned_behind_a_break])
def test_output_that_the_program_reads(function: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, function()

    dynamo.reset()
    compiled = dynamo.compile(f, backend="eager")
    for _ in range(2):
        globals().pop("__warningregistry__", None)
        wanted = function()
        globals().pop("__warningregistry__", None)
        assert compiled(torch.ones(2))[1] == wanted
