"""Graph breaks in the descriptor that binds a special method, and in properties that give what is
called: what the descriptor returns is not what the operation gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Bound:
    """Gives a function that tells what it was bound to and called with."""

    def __init__(self, answer: Any = "answer") -> None:
        self.answer = answer

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        dynamo.graph_break()
        answer = self.answer
        if answer != "answer":
            return lambda *_: answer
        return lambda *args: (type(instance).__name__, [arg for arg in args if arg is not instance])


class Meta(type):
    __call__ = Bound()
    __getitem__ = Bound()


class Made(metaclass=Meta):
    pass


class Base:
    method = Bound()


class Object(Base):
    __call__ = Bound()
    __getitem__ = Bound()
    __setitem__ = Bound()
    __add__ = Bound()
    __radd__ = Bound()
    __neg__ = Bound()
    __lt__ = Bound()
    __contains__ = Bound(True)
    __len__ = Bound(3)
    __iter__ = Bound(iter(()))
    __enter__ = Bound()
    __exit__ = Bound(False)
    __getattr__ = Bound()
    __hash__ = Bound(5)
    __repr__ = Bound("repr")
    __eq__ = Bound()

    @property
    def given(self) -> Callable[..., Any]:
        dynamo.graph_break()
        return lambda *args: args

    def above(self) -> Any:
        return super().method(1)


class WithInit:
    __init__ = Bound(None)


class Module(torch.nn.Module):
    @property
    def forward(self) -> Callable[..., Any]:
        dynamo.graph_break()
        return lambda x: ("forward", float(x.sum()))


class Hidden(list):
    @property
    def append(self) -> Any:
        dynamo.graph_break()
        return lambda value: ("appended", value)


def entered(value: Any) -> Any:
    with value as found:
        return found


OBJECT, MODULE, HIDDEN = Object(), Module(), Hidden()
ROWS: dict[str, Callable[[], Any]] = {
    "call": lambda: OBJECT(1),
    "call with many": lambda: OBJECT(*[1, 2]),
    "item": lambda: OBJECT[1],
    "store": lambda: OBJECT.__setitem__(1, 2),
    "add": lambda: (OBJECT + 1, 1 + OBJECT),
    "negative": lambda: -OBJECT,
    "less": lambda: (OBJECT < 1, 1 > OBJECT),
    "equal": lambda: OBJECT == 1,
    "contains": lambda: 1 in OBJECT,
    "length": lambda: len(OBJECT),
    "iterate": lambda: list(OBJECT),
    "with": lambda: entered(OBJECT),
    "missing": lambda: OBJECT.missing,
    "hash": lambda: hash(OBJECT),
    "text": lambda: repr(OBJECT),
    "method": lambda: OBJECT.method(1),
    "method, kept": lambda: [OBJECT.method][0](1),
    "of the class": lambda: Object.method(1),
    "super": lambda: OBJECT.above(),
    "property": lambda: (OBJECT.given(1), OBJECT.given(2)),
    "class is called": lambda: Made(1),
    "item of a class": lambda: Made[1],
    "made": lambda: type(WithInit(1)).__name__,
    "forward": lambda: MODULE(torch.ones(2)),
    "of a list": lambda: HIDDEN.append(1),
}


@pytest.mark.parametrize("row", ROWS)
def test_as_eager(row: str) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        return y, (ROWS[row](), "behind")

    expected = f(torch.ones(1))[1]
    dynamo.reset()
    compiled = dynamo.compile(f, backend="eager")
    assert [compiled(torch.ones(1))[1] for _ in range(2)] == [expected] * 2
