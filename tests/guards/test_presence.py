"""What a program only reads, deletes or asks for must be there (or not) in later calls, too."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

MODULE = types.ModuleType("holder")
VALUE: Any = None


class Box:
    extra: Any


class Slots:
    __slots__ = ("extra",)


def ignore(value: Any) -> None:
    """Reading is all."""


def read_attribute(x: torch.Tensor, box: Any) -> Any:
    box.extra  # noqa: B018
    return x + 1


def keep_attribute(x: torch.Tensor, box: Any) -> Any:
    kept = box.extra
    ignore(kept)
    return x + 1


def read_module(x: torch.Tensor, box: Any) -> Any:
    ignore(MODULE.extra)
    return x + 1


def read_global(x: torch.Tensor, box: Any) -> Any:
    ignore(VALUE)
    return x + 1


def read_item(x: torch.Tensor, box: Any) -> Any:
    ignore(box["extra"])
    return x + 1


def delete_attribute(x: torch.Tensor, box: Any) -> Any:
    del box.extra
    return x + 1


def delete_module(x: torch.Tensor, box: Any) -> Any:
    del MODULE.extra
    return x + 1


def delete_global(x: torch.Tensor, box: Any) -> Any:
    global VALUE
    del VALUE
    return x + 1


def ask(x: torch.Tensor, box: Any) -> Any:
    return hasattr(box, "extra"), x + 1


def or_else(x: torch.Tensor, box: Any) -> Any:
    ignore(getattr(box, "extra", 5))
    return x + 1


def nothing() -> None:
    return None


class Numbers(list[int]): ...


def a_tensor() -> Any:
    return torch.ones(2)


def a_parameter() -> Any:
    return torch.nn.Parameter(torch.ones(2))


def a_module() -> Any:
    return torch.nn.Linear(1, 1)


def a_function() -> Any:
    return lambda: None


def a_class() -> Any:
    return type("Made", (), {})


def a_list() -> Any:
    return Numbers()


OBJECTS = (a_tensor, a_parameter, a_module, a_function, a_class, a_list)
CASES: list[tuple[Callable[..., Any], Callable[[], Any]]] = [
    (read_attribute, Box), (read_attribute, Slots), (keep_attribute, Box), (keep_attribute, Slots),
    (read_module, nothing), (read_global, nothing), (read_item, dict), (delete_attribute, Box),
    (delete_attribute, Slots), (delete_module, nothing), (delete_global, nothing), (ask, Box),
    (or_else, Slots),
    *((function, make) for function in (read_attribute, keep_attribute, ask, or_else) for make in OBJECTS),
]  # fmt: skip


def prepared(make: Callable[[], Any], value: Any, full: bool) -> Any:
    box = make()
    MODULE.__dict__.pop("extra", None)
    globals().pop("VALUE", None)
    if not full:
        return box
    MODULE.extra = globals()["VALUE"] = value  # type: ignore[attr-defined]
    if isinstance(box, dict):
        box["extra"] = value
    elif box is not None:
        box.extra = value
    return box


def outcome(function: Callable[..., Any], box: Any) -> str:
    try:
        return str(function(torch.ones(1), box))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("value", [1, 1.5, "s", None, [1], torch.ones(2), print], ids=str)
@pytest.mark.parametrize("function, make", CASES, ids=lambda f: f.__name__)
def test_gone_or_new(function: Callable[..., Any], make: Callable[[], Any], value: Any) -> None:
    for order in ((True, False), (False, True)):
        dynamo.reset()
        compiled = dynamo.compile(function, backend="eager")
        for full in order:
            expected = outcome(function, prepared(make, value, full))
            assert outcome(compiled, prepared(make, value, full)) == expected


def test_what_is_only_read_may_change() -> None:
    dynamo.reset()
    counting = dynamo.testing.CompileCounter()
    compiled = dynamo.compile(keep_attribute, backend=counting)
    for value in (1, 2, "s", None, [1]):
        box = Box()
        box.extra = value
        compiled(torch.ones(1), box)
    assert counting.frame_count == 1


class Filling(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        self[key] = made = {}
        return made


@pytest.mark.parametrize("make", [lambda: defaultdict(dict), Filling], ids=["defaultdict", "own"])
def test_why_an_entry_does_not_fit_is_found_without_filling(make: Callable[[], Any]) -> None:
    def fill(x: torch.Tensor, box: Any, key: str) -> Any:
        box[key]["twice"] = 2
        return x + box[key]["twice"]

    compiled = dynamo.compile(fill, backend="eager")
    for key in ("a", "b", "c"):
        box = make()
        if key == "a":
            box[key] = {"once": 1}
        compiled(torch.ones(1), box, key)
        assert list(box) == [key]
