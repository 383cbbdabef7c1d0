"""Entries whose code only calls the graph: called without a frame, and nobody can tell."""

from __future__ import annotations

import functools
import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo import hook
from tests.hook.test_hook import program, region_for


def plain(a: Any, b: Any = 2) -> Any:
    return (a, b)


def plain_new(a: Any, b: Any = 2) -> Any:
    raise AssertionError("this code is never run")


def wide(a: Any, /, b: Any, *rest: Any, k: Any, **others: Any) -> Any:
    return (a, b, rest, k, others)


def wide_new(a: Any, /, b: Any, *rest: Any, k: Any, **others: Any) -> Any:
    raise AssertionError("this code is never run")


for function in (plain_new, wide_new):  # a local that takes the inputs
    code = function.__code__
    names = (*code.co_varnames, "__graph_inputs")
    function.__code__ = code.replace(co_varnames=names, co_nlocals=len(names))


def direct(old: Any, new: Any, callee: Any, outputs: int, picks: Any) -> tuple[Any, hook.Entry]:
    """A compiled function whose entry calls `callee` with all arguments."""
    code = old.__code__
    names = code.co_varnames
    guards = program([], names, tuple(range(len(names))))
    entry = hook.Entry(new.__code__, guards, direct=(callee, outputs, picks))
    return hook.Compiled(region_for({code: entry}), old), entry


def callers(*args: Any) -> Any:
    return (sys._getframe(1).f_code, *args)


def outcome(call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    try:
        return call(*args, **keywords)
    except TypeError as error:
        return str(error)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}), ((1, 3), {}), ((), {"a": 4}), ((), {"b": 5, "a": 6}), ((1,), {"b": 7}),
    ((), {}), ((1, 2, 3), {}), ((1,), {"a": 2}), ((1,), {"c": 2}), ((), {"b": 1}),
]


@pytest.mark.parametrize(("args", "keywords"), CALLS)
def test_arguments_reach_the_graph(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    call, entry = direct(plain, plain_new, lambda *given: given, 2, (0, 1))
    assert outcome(call, 1) == (1, 2)  # now the entry is known
    assert outcome(call, *args, **keywords) == outcome(plain, *args, **keywords)


WIDE: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1, 2), {"k": 3}), ((1, 2, 3, 4), {"k": 5}), ((1,), {"b": 2, "k": 3, "z": 4, "y": 5}),
    ((1, 2), {"a": 3, "k": 4}), ((1, 2), {}), ((1,), {"k": 1}), ((1, 2), {"b": 3, "k": 4}),
    (tuple(range(40)), {"k": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("args", "keywords"), WIDE)
def test_all_kinds_of_arguments(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    def callee(a: Any, b: Any, k: Any, rest: Any, others: Any) -> Any:
        return [a, b, rest, k, others]

    call, entry = direct(wide, wide_new, callee, 5, (0, 1, 2, 3, 4))
    assert outcome(call, 1, 2, k=3) == (1, 2, (), 3, {})
    assert outcome(call, *args, **keywords) == outcome(wide, *args, **keywords)
    built = "".join(["p", "q"])  # a name that is not interned
    assert outcome(call, 1, 2, k=3, **{built: 1}) == (1, 2, (), 3, {"pq": 1})


def test_what_is_returned() -> None:
    for picks, expected in ((0, 1), (1, 2), ((1, 0), (2, 1)), ((), ()), ((1,), (2,))):
        call, entry = direct(plain, plain_new, lambda a, b: (a, b), 2, picks)
        assert [call(1), call(1)] == [expected] * 2
    call, entry = direct(plain, plain_new, lambda a, b: (a,), 2, 0)
    for _ in range(2):
        with pytest.raises(ValueError, match="returned 1 values"):
            call(1)
    with pytest.raises(ValueError, match="items of its result"):
        direct(plain, plain_new, lambda a, b: (a,), 1, 1)


def test_no_frame_is_made_and_the_hook_is_off_inside() -> None:
    def callee(*args: Any) -> Any:
        return sys._getframe(1).f_code, hook.active_region()

    call, entry = direct(plain, plain_new, callee, 2, (0, 1))
    here = sys._getframe().f_code
    assert [call(1), call(1)] == [(here, None)] * 2
    other = hook.Region(lambda frame: hook.SKIP)
    with other:
        assert call(1) == (here, None)
        assert hook.active_region() is other
    assert entry.hits == 2 and entry.callee is callee


def test_methods() -> None:
    class Box:
        __call__ = direct(plain, plain_new, lambda a, b: (a, b), 2, (0, 1))[0]
        method = __call__

    box = Box()
    bound = hook.Compiled(type(box).method.region, functools.partial(plain, 3))
    for _ in range(2):
        assert box(5) == box.method(5) == (box, 5)
        assert bound() == (3, 2)
    in_place = hook.Compiled(Box.method.region, plain.__get__(box))
    assert in_place(7) == (box, 7)


def test_a_traceback_shows_the_function() -> None:
    def callee(a: Any, b: Any) -> Any:
        raise KeyError(a)

    call, entry = direct(plain, plain_new, callee, 1, 0)
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            call("x", b=9)
        frames = list(traceback.walk_tb(caught.value.__traceback__))
        names = [frame.f_code.co_name for frame, line in frames]
        assert names[-2:] == ["plain_new", "callee"]
        assert frames[-2][0].f_locals["a"] == "x" and frames[-2][0].f_locals["b"] == 9
        assert "plain_new" in "".join(traceback.format_exception(caught.value))


def test_a_traceback_shows_what_the_function_closes_over() -> None:
    limit, offset = [3], torch.ones(3)

    def fails(gm: Any, inputs: Any) -> Any:
        def graph(*args: Any) -> Any:
            if not limit:
                raise KeyError("a graph")
            return gm(*args)

        return graph

    def shifted(x: Any) -> Any:
        return x + offset

    def unused(x: Any, y: Any = 2) -> Any:
        return x * y if limit is not None else offset

    for function in (shifted, unused):
        compiled = dynamo.compile(function, backend=fails)
        limit.append(3)
        compiled(torch.ones(3))
        (entry,) = entries_of(function, compiled)
        assert entry.callee is not None
        limit.clear()
        with pytest.raises(KeyError) as caught:
            compiled(torch.ones(3))
        frames = [frame for frame, line in traceback.walk_tb(caught.value.__traceback__)]
        (seen,) = [frame.f_locals for frame in frames if frame.f_code.co_name == function.__name__]
        assert seen["offset"] is offset and seen["x"].shape == (3,)


def test_watchers_see_the_frame() -> None:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled, seen = dynamo.compile(scale, backend="eager"), []
    x = torch.randn(3)
    compiled(x)
    compiled(x)

    def note(frame: Any, event: str, arg: Any) -> None:
        seen.append((event, frame.f_code.co_name))

    sys.setprofile(note)
    compiled(x)
    sys.setprofile(None)
    assert ("call", "scale") in seen


def test_nothing_is_kept() -> None:
    class Thing:
        pass

    call, entry = direct(wide, wide_new, lambda *args: args, 5, 0)
    thing = Thing()
    alive = weakref.ref(thing)
    gc.disable()
    try:
        for _ in range(3):
            assert call(thing, thing, thing, k=thing, z=thing) is thing
        del thing
        assert alive() is None
    finally:
        gc.enable()


def test_the_entry_may_go_while_it_runs() -> None:
    def callee(a: Any, b: Any) -> Any:
        call.region.reset()
        plain.__defaults__ = (8,)
        gc.collect()
        return (b,)

    call, entry = direct(plain, plain_new, callee, 1, 0)
    try:
        for _ in range(3):
            plain.__defaults__ = (2,)
            del entry
            assert call(1) == 2
            call, entry = direct(plain, plain_new, callee, 1, 0)
    finally:
        plain.__defaults__ = (2,)


def entries_of(function: Any, compiled: Any) -> list[hook.Entry]:
    return hook.entries(function.__code__, compiled.region)


def test_which_functions_are_direct() -> None:
    offset = torch.randn(3)
    log: list[int] = []

    def one(x: Any) -> Any:
        return x + offset

    def both(x: Any, y: Any = 2) -> Any:
        return x * y, x - y

    def swapped(x: Any) -> Any:
        a, b = x + 1, x + 2
        return b, a

    def same(x: Any) -> Any:
        return x, x + 1

    def noted(x: Any) -> Any:
        log.append(1)
        return x + 1

    def listed(x: Any) -> Any:
        return [x + 1]

    x = torch.randn(3)
    for function, expected in ((one, True), (both, True), (swapped, True), (same, False),
                               (noted, False), (listed, False)):  # fmt: skip
        compiled = dynamo.compile(function, backend="eager")
        for _ in range(3):
            assert str(compiled(x)) == str(function(x))
        (entry,) = entries_of(function, compiled)
        assert (entry.callee is not None) == expected, function
    assert len(log) == 6


def test_guards_are_checked() -> None:
    def scale(x: Any, flag: bool = True) -> Any:
        return x * 2 if flag else x * 3

    compiled = dynamo.compile(scale, backend="eager", dynamic=False)
    for size in (2, 3, 2, 3):
        for flag in (True, False, True):
            x = torch.randn(size, requires_grad=size == 3)
            assert torch.equal(compiled(x, flag=flag), scale(x, flag))
            assert torch.equal(compiled(x), scale(x))
    assert len(entries_of(scale, compiled)) == 4
    scale.__defaults__ = (False,)
    assert torch.equal(compiled(x), scale(x))
    with torch.no_grad():
        assert not compiled(x).requires_grad
