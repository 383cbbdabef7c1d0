"""Objects whose `__class__` says that they are classes, as proxies of classes do: taken for what they
are, and not asked more than Python asks them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

ASKED: list[str] = []


class Proxy:
    def __init__(self, value: int) -> None:
        self.value = value

    @property
    def __class__(self) -> Any:
        ASKED.append("class")
        return type

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 3

    def __call__(self) -> str:
        return "called"

    def __get__(self, *_: Any) -> str:
        return "got"


class Owner:
    at = Proxy(2)
    stored: Any = None


PROXY, OWNER = Proxy(1), Owner()
KEYS = {PROXY: 1}
ROWS: dict[str, Callable[[], Any]] = {
    "identity": lambda: PROXY is PROXY,
    "attribute of a class": lambda: (Owner.at, OWNER.at),
    "stored in an object": lambda: (setattr(OWNER, "stored", PROXY), OWNER.stored is PROXY),
    "key": lambda: KEYS[PROXY],
    "contained": lambda: (PROXY in [PROXY], PROXY in {PROXY}, PROXY in KEYS),
    "type": lambda: type(PROXY),
    "isinstance": lambda: isinstance(PROXY, type),
    "class": lambda: PROXY.__class__,
    "call": lambda: PROXY(),  # type: ignore[misc]
    "equal": lambda: PROXY == PROXY,
    "union": lambda: PROXY | int,  # type: ignore[operator]
    "issubclass": lambda: issubclass(PROXY, int),  # type: ignore[arg-type]
    "chain": lambda: [item is PROXY for item in itertools.chain([PROXY], [PROXY])],
    "partial": lambda: functools.partial(PROXY)(),  # type: ignore[arg-type]
    "itself": lambda: PROXY,
}


@pytest.mark.parametrize("row", ROWS)
def test_as_eager(row: str) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            return y, ROWS[row]()
        except TypeError as error:
            return y, str(error)

    def asked(call: Callable[..., Any]) -> Any:
        ASKED.clear()
        result = call(torch.ones(1))[1]
        return repr(result), [*ASKED]

    expected = asked(f)
    compiled = dynamo.compile(f, backend="eager")
    assert [asked(compiled) for _ in range(2)] == [expected] * 2
