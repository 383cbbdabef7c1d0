"""Subclasses of tuple written in Python, as libraries name kinds of things with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo


class Plain(tuple):  # type: ignore[type-arg]
    pass


class Kind(tuple):  # type: ignore[type-arg]
    """An order and a parity, from a text or from another one."""

    def __new__(cls, order: Any, parity: int = 1) -> Kind:
        if isinstance(order, Kind):
            return order
        if isinstance(order, str):
            parity = {"e": 1, "o": -1}[order[-1]]
            order = int(order[:-1])
        return super().__new__(cls, (order, parity))

    @property
    def order(self) -> int:
        return self[0]  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        return 2 * self.order + 1

    def __mul__(self, other: Any) -> Iterator[Kind]:  # type: ignore[override]
        for order in range(abs(self.order - other[0]), self.order + other[0] + 1):
            yield Kind(order, self[1] * other[1])


class Kinds(tuple):  # type: ignore[type-arg]
    def __new__(cls, text: Any) -> Kinds:
        if isinstance(text, Kinds):
            return super().__new__(cls, text)
        parts = [part.split("x") for part in text.split("+")]
        return super().__new__(cls, [Plain((int(n), Kind(kind))) for n, kind in parts])

    @property
    def width(self) -> int:
        return sum(count * kind.width for count, kind in self)

    def slices(self) -> list[slice]:
        found, start = [], 0
        for count, kind in self:
            found.append(slice(start, start + count * kind.width))
            start = found[-1].stop
        return found

    def joined(self) -> list[Any]:
        found: list[Any] = []
        for count, kind in self:
            if found and found[-1][1] == kind:
                found[-1] = (found[-1][0] + count, kind)
            else:
                found.append((count, kind))
        return found


class Odd(tuple):  # type: ignore[type-arg]
    """What it says of its items is not what it holds."""

    def __iter__(self) -> Any:
        return iter((7, 8))

    def __len__(self) -> int:
        return 5

    def __add__(self, other: Any) -> Any:
        return "joined"


class Named(tuple):  # type: ignore[type-arg]
    name: str

    def __new__(cls, *items: Any) -> Named:
        made = super().__new__(cls, items)
        made.name = "named"
        return made

    def __getitem__(self, index: Any) -> Any:
        return 100 + index


def kinds(x: torch.Tensor) -> Any:
    made = Kinds("2x0e+1x0e+2x1o")
    parts = [x[:, part] * kind.width for part, (_, kind) in zip(made.slices(), made, strict=True)]
    return parts, made.width, made.joined(), Kinds(made) == made, [k[0] for k in Kind("1o") * Kind(2)]


def compared(x: torch.Tensor) -> Any:
    one, two = Plain((1, 2)), Plain((1, 3))
    return x + 1, [
        one == (1, 2), (1, 2) == one, one != two, one < two, two <= (1, 2), one == [1, 2],
        one in [two, one], one is one, Plain(one) is one, sorted([two, one])]


def joined(x: torch.Tensor) -> Any:
    one = Plain((1, x))
    parts = one + (2,), (0, *one), one * 2, one[:], one[1:], tuple(one)
    return x + one[0], parts, [type(part).__name__ for part in parts]


def unpacked(x: torch.Tensor) -> Any:
    a, *rest = Plain((x, x + 1, x + 2))
    return a, rest, torch.cat([*Plain((x, x))]), Plain((4, 5)).index(5), max(Plain((4, 5)))


def odd(x: torch.Tensor) -> Any:
    made = Odd((1, 2))
    return x + made[0], len(made), list(made), tuple(made), sum(made), made + made, bool(Odd())


def named(x: torch.Tensor) -> Any:
    made = Named(1, 2)
    return x + made[0], made.name, tuple(made), len(made), made


def as_keys(x: torch.Tensor) -> Any:
    counts: dict[Any, int] = {}
    for key in (Plain((1,)), Plain((1,)), (1,), Kind(1)):
        counts[key] = counts.get(key, 0) + 1
    return x + counts[1,], counts


def refused(x: torch.Tensor) -> Any:
    said = []
    try:
        Plain((1,))[3]
    except IndexError as error:
        said.append(str(error))
    try:
        Plain((1,))[0] = 2  # type: ignore[index]
    except TypeError:
        said.append("fixed")
    return x + 1, said


GIVEN = Named(3, 4), Odd((5, 6)), Kinds("1x0e+1x1o")


def given(x: torch.Tensor) -> Any:
    one, two, three = GIVEN
    return x[:, : three.width] + one[0] + two[1], one.name, tuple(one), sum(two), three, one is GIVEN[0]


def equal(ours: Any, eagers: Any) -> None:
    assert type(ours) is type(eagers)
    if isinstance(eagers, torch.Tensor):
        torch.testing.assert_close(ours, eagers)
    elif isinstance(eagers, list | tuple):
        one, two = (list.__iter__ if isinstance(eagers, list) else tuple.__iter__,) * 2
        for a, b in zip(one(ours), two(eagers), strict=True):
            equal(a, b)
        assert vars(ours) == vars(eagers) if hasattr(eagers, "__dict__") else True
    else:
        assert ours == eagers


@pytest.mark.parametrize("f", [
    kinds, compared, joined, unpacked, odd, named, as_keys, refused, given])
def test_in_one_graph(f: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(2, 9)
    equal(dynamo.compile(f, backend="eager", fullgraph=True)(x), f(x))


def test_other_items_are_noticed() -> None:
    def f(x: torch.Tensor, made: Any) -> Any:
        return x * made[0] + len(made)

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    x = torch.randn(3)
    for made in (
        Plain((1, 2)), Plain((1, 2)), Plain((3, 2)), Plain((3, 2, 1)), (3, 2, 1), Named(3, 2),
        Odd((3, 2)),
    ):
        torch.testing.assert_close(compiled(x, made), f(x, made))


def test_a_method_that_changes_is_noticed() -> None:
    class Changing(tuple):  # type: ignore[type-arg]
        pass

    def f(x: torch.Tensor, made: Any) -> Any:
        return x + len(made)

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    x, made = torch.randn(3), Changing((1, 2))
    torch.testing.assert_close(compiled(x, made), x + 2)
    Changing.__len__ = lambda self: 9  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x, made), x + 9)


def test_a_module_keeps_one() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds = Kinds("2x0e+2x1o")
            self.weights = torch.nn.Parameter(torch.randn(len(self.kinds)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = [x[:, part] * w for part, w in zip(self.kinds.slices(), self.weights, strict=True)]
            return torch.cat(parts, 1)

    net, x = Net(), torch.randn(3, 8)
    torch.testing.assert_close(dynamo.compile(net, fullgraph=True)(x), net(x))
