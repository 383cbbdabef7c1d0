"""The order of a set's items, in a graph, behind a break and returned. The keys collide in a table of eight slots, so that
each copy, each other way to fill the set and each removed item show in it."""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import enum
import io
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo._C import fill_set, set_table
from dynamo.testing import CompileCounter

KEYS = (16, 8, 0, 1, 9, 17, -1, -2, 64)
FROZEN = frozenset(KEYS[:4])


@dataclasses.dataclass(frozen=True)
class Point:
    n: int


OBJECT = argparse.Namespace(**dict.fromkeys("abcdef"))


class Color(enum.IntEnum):
    RED, GREEN, BLUE = 24, 16, 32


def without(items: Any, *gone: Any) -> set[Any]:
    made = set(items)
    for key in gone:
        made.discard(key)
    return made


# Of a set `s` that the program brings, and a key `k` that is no constant of it.
MADE = """
{16, 8, k}; {24, 16, 8, 0, 1}; {n for n in (16, 8, 0, k)}; s.copy(); set(s); {*s, 16, k}; {n for n in s}; set(FROZEN); s | {24, 8}; {16, k} | s
s - {8}; {16, 8, 0, 1, k} - s; {32, 16, 8, 0, 9} & s; s & {32, 16, 8, 0, 9, 1, 2, 3}; s ^ {16, 24}; s.union([24, 32], {k}); s.union(dict.fromkeys([24, 32]))
s.intersection([32, 16, 8]); s.symmetric_difference([32, 8]); FROZEN | s; FROZEN.union([k]); frozenset(s); frozenset(dict.fromkeys([24, 16, 8, 0, 32]))
set(dict.fromkeys([24, 16, 8, 0, 32])); dict.fromkeys([24, 16, 8]).keys() | s; s - dict.fromkeys([8]).keys(); dict.fromkeys([24, 16, 8]).keys() & s
FROZEN ^ dict.fromkeys([24, 16, 8]).keys(); set(s.copy()) - {16} | {24}; {Point(16), Point(8), Point(0)} - {Point(8)} | {Point(32)}
{(16, k), (8,), (0,)} - {(8,)} | {(1,)}; {Color.RED, 16, 8} | {Color.BLUE, 0}; {int, str, float, len} - {str}; {frozenset({8, 16}), 8} ^ {0}
set(iter(s)); set({16, 8, 0}.union(s) - s); {None, 1.5, 'a', b'a', True} - {1.5} | {2.5}; s.difference(FROZEN, [k])
copy.deepcopy(s); set(vars(OBJECT)) - {'a'}; dict.fromkeys([24, 16]).items() | s; s & collections.OrderedDict.fromkeys([32, 16, 8, 0, 1]).keys()
""".strip().replace("\n", "; ").split("; ")
# Statements that change `t`, which is the program's own set, or a new one.
CHANGED = """
t.add(k); t.discard(8), t.add(24), t.add(8); t.update([24, 32, 8]); t.update({24, 32, 8}); t.update(dict.fromkeys([24, 32])); t.update(s)
t |= s; t &= {32, 16, 0, 8}; t -= {8, 0}; t ^= {16, 24}; t.clear(), t.add(16), t.add(8); t.clear(), t.update([0, 7]), t.update([15]); t.difference_update([8, 0]); t.update(t); t.difference_update(t)
t.difference_update(n for n in (16, 8, 0, 1, 9)); t.remove(next(iter(t))), t.add(24); t.intersection_update(s, [8, 16, 1]); t.update(n for n in (24, 16))
""".strip().replace("\n", "; ").split("; ")
PLACES = {"outside": "t = given", "new": "t = {16, 8, 0, 1, k}", "copied": "t = given.copy()"}


def function(text: str) -> Any:
    space = {**globals(), "copy": copy, "collections": collections}
    exec(f"def f(x, given, s, k):\n    {text}", space)
    return space["f"]


def told(items: Any) -> Any:
    """What shows all that decides the order, now and later."""
    more = [list(made) for made in (items.copy(), items | {24, 40, 5}, items - {8, 0})]
    return type(items), list(items), list(map(type, items)), set_table(items), more


def agree(f: Any, calls: list[Callable[[], Any]], fullgraph: bool = False) -> None:
    compiled = dynamo.compile(f, backend="eager", fullgraph=fullgraph)
    for make in calls:
        results = []
        for each in (f, compiled):
            x, given, s, k = torch.zeros(()), make(), make(), 2
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                result = each(x, given, s, k)
            results.append((told(result[1]), *result[2:], told(given), told(s), printed.getvalue()))
        assert results[0] == results[1]


# Of equal items in other orders and other tables.
SETS: list[Callable[[], set[Any]]] = [
    lambda: {16, 8, 0, 1}, lambda: {8, 16, 1, 0}, lambda: without([9, 16, 8, 0, 1], 9), lambda: without(range(30), *range(2, 8), *range(9, 16), *range(17, 30)),
    lambda: without([16, 8, 0, 1, 40, 24], 40)]


@pytest.mark.parametrize("made", MADE)
def test_made(made: str) -> None:
    agree(function(f"r = {made}; return x + 1, r, list(r), repr(r), f'{{r}} {{[r]}}', ''.join(map(str, r)), max(enumerate(r), default=0)"), SETS[:3])
    agree(function(f"r = {made}; print(0); x = x + 1; return x, r, [n for n in r]"), SETS[:3])
    agree(function(f"r = {made}; return x + 1, r, list(r)"), SETS, fullgraph=True)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("changed", CHANGED)
@pytest.mark.every_combination
def test_changed(changed: str, place: str) -> None:
    for shown in ("r = list(t)", "print(t); r = list(t); t.add(24); x = x * 2", "r = t.copy(); print(0); t.add(40); x = x * 2"):
        agree(function(f"{PLACES[place]}; {changed}; x = x + 1; {shown}; return x, t, r"), SETS[1:4])


def test_changes_need_no_table() -> None:
    """A set that is only changed goes through the same steps, whatever its table: nothing is traced anew."""
    def f(x: torch.Tensor, given: set[int]) -> torch.Tensor:
        given.discard(8), given.add(24), given.discard(24), given.add(8)
        return x + 1

    counter = CompileCounter()
    compiled = dynamo.compile(f, backend=counter)
    for make in SETS[:4]:
        given, wanted = make(), make()
        for _ in range(3):
            compiled(torch.zeros(()), given), f(torch.zeros(()), wanted)
            assert set_table(given) == set_table(wanted)
    assert counter.frame_count == 1


def test_popped() -> None:
    agree(function("t = {16, 8, 0, 1, k}; t.discard(8); r = [t.pop(), t.pop()]; print(0); return x + 1, t, r, t.copy().pop()"), SETS)
    agree(function("t = {1}; t.pop(); t |= {16, 8, 0}; r = t.pop(); print(0); return x + 1, t, r, t.pop()"), SETS)


def test_subclasses_have_the_table_too() -> None:
    space = "class Own(set): pass"
    agree(function(f"{space}\n    t = Own([16, 8, 0, 1, k]); t.discard(8); t |= s; r = list(t); return x + 1, set(t), r"), SETS)


def test_of_tables() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        real: set[int] = set()
        for _ in range(draw.randrange(60)):
            (real.add if draw.random() < 0.7 else real.discard)(draw.choice(KEYS) * draw.randrange(1, 5))
        made = fill_set(set, set_table(real), list(real))
        assert (made, list(made), set_table(made)) == (real, list(real), set_table(real))
        assert hash(fill_set(frozenset, set_table(real), list(real))) == hash(frozenset(real))
        for each in (made, real):
            each.add(3), each.discard(8)
        assert set_table(made) == set_table(real) and [made.pop() for _ in list(made)] == [real.pop() for _ in list(real)]
    for target, table, items in ((set, b"short", [1]), (set, set_table({1}), [1, 2]), ((), set_table({1}), [1]), (FROZEN, set_table({1}), [1]), (set, set_table({1}), (1,))):
        with pytest.raises((TypeError, ValueError)):
            fill_set(target, table, items)  # type: ignore[arg-type]
