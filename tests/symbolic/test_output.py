"""What a traced program puts out: the same text, in the same order, as often as eager."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
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


class Handler(logging.Handler):
    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.levelname, record.getMessage()))


def record(run: Callable[[torch.Tensor], Any], calls: int, action: str) -> list[Any]:
    seen: list[Any] = []
    once.cache_clear()
    globals().pop("__warningregistry__", None)
    handler = Handler(seen)
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as out:
            warnings.simplefilter(action)
            warnings.showwarning = lambda message, category, filename, lineno, *rest: seen.append(
                (str(message), category, filename, lineno))
            for call in range(calls):
                result = run(torch.full((2,), float(call)))
                seen.append(str(result))
        return [*seen, out.getvalue()]
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
