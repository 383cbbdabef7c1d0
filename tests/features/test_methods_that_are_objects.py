"""Special methods of classes and metaclasses that are no functions, and of operands that are classes,
exceptions and modules: they answer as a function would, and at each call."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

import dynamo
from tests.parametrize import rotated

BOUND_BY_C = type(vars(torch._C.Graph)["nodes"])  # as methods of extensions are


class Called:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, *_: Any) -> Any:
        return self.answer


KINDS: dict[str, Callable[[Any], Any]] = {
    "function": lambda answer: lambda *_: answer,
    "of an extension": lambda answer: BOUND_BY_C(lambda *_: answer),  # type: ignore[call-arg]
    "static": lambda answer: staticmethod(lambda *_: answer),
    "class method": lambda answer: classmethod(lambda *_: answer),
    "object": Called,
    "partial": lambda answer: functools.partial(lambda *_: answer),
    "partial method": lambda answer: functools.partialmethod(lambda *_: answer),
    "cached": lambda answer: functools.lru_cache(lambda *_: answer),
    "property": lambda answer: property(lambda _: lambda *_: answer),
}
BASES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "class": lambda methods: type("M", (type,), methods)("A", (), {}),
    "object": lambda methods: type("M", (), methods)(),
    "exception": lambda methods: type("M", (KeyError,), methods)(),
    "python module": lambda methods: type("M", (types.ModuleType,), methods)("m"),
    "module": lambda methods: type("M", (torch.nn.Module,), methods)(),
}
OPERATIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "__instancecheck__": (lambda a: isinstance(3, a), True),
    "__subclasscheck__": (lambda a: issubclass(int, a), True),
    "__eq__": (lambda a: a == 3, "eq"),
    "__ne__": (lambda a: a != a, "ne"),
    "__lt__": (lambda a: a < 3, "lt"),
    "__gt__": (lambda a: 3 < a, "gt"),
    "__bool__": (lambda a: 1 if a else 2, False),
    "__len__": (lambda a: (len(a), bool(a)), 0),
    "__call__": (lambda a: a(), "called"),
    "__contains__": (lambda a: 3 in a, True),
    "__getitem__": (lambda a: a[2], "item"),
    "__getattr__": (lambda a: a.missing, "attribute"),
    "__getattribute__": (lambda a: a.__name__, "attribute"),
    "__delattr__": (lambda a: delattr(a, "q"), None),
    "__repr__": (lambda a: repr(a), "repr"),
    "__str__": (lambda a: str(a), "str"),
    "__format__": (lambda a: f"{a}", "format"),
    "__hash__": (lambda a: (hash(a), {a: 1}[a]), 5),
    "__neg__": (lambda a: -a, "neg"),
    "__abs__": (lambda a: abs(a), "abs"),
    "__index__": (lambda a: [1, 2, 3][a], 2),
    "__add__": (lambda a: a + 3, "add"),
    "__radd__": (lambda a: 3 + a, "radd"),
    "__iadd__": (lambda a: operator.iadd(a, 1), "iadd"),
}


@rotated("base, kind", BASES, KINDS, each=2)
def test_answers(base: str, kind: str) -> None:
    asked, different = 0, []
    for name, (run, answer) in OPERATIONS.items():
        if (base != "class" and name.endswith("check__")) or (
            base == "module" and name in ("__call__", "__getattribute__")  # needed to compile
        ) or (kind, name) == ("cached", "__hash__"):  # asks itself
            continue
        value = BASES[base]({name: KINDS[kind](answer)})

        def f(x: torch.Tensor, run: Any = run, value: Any = value) -> Any:
            y = x + 1
            try:
                return y, run(value)
            except (TypeError, KeyError, AttributeError) as error:
                return y, str(error)

        dynamo.reset()
        compiled, expected = dynamo.compile(f, backend="eager"), f(torch.ones(1))[1]
        found = [compiled(torch.ones(1))[1] for _ in range(2)]
        asked += 1
        if found != [expected] * 2:
            different.append((name, expected, found))
    assert asked > 15 and different == []
