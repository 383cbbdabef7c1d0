"""The frame hook with hand-made entries; needs no torch."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import traceback
import tracemalloc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from dynamo import _C, hook
from tests.processes import run_python


def program(
    rows: list[Any] | None = None, names: tuple[str, ...] = (), collect: tuple[int, ...] = ()
) -> Any:
    """A program that reads each name into its register, then runs the rows."""
    reads = [(_C.OPCODES["LOCAL"], i, -1, i, None, -1) for i in range(len(names))]
    return _C.Program(reads + (rows or []), len(names), names, (), collect)


def is_int(register: int = 0) -> Any:
    return (_C.OPCODES["IS_TYPE"], -1, register, 0, int, 0)


def region_for(answers: dict[types.CodeType, Any], seen: list[Any] | None = None) -> hook.Region:
    def callback(frame: hook.FrameState) -> Any:
        if seen is not None:
            seen.append(frame)
        answer = answers.get(frame.code)
        return answer() if callable(answer) else answer

    return hook.Region(callback)


def original(a: Any, b: Any = 2) -> Any:
    return ("original", a, b)


def replacement(a: Any, b: Any = 2) -> Any:
    c = a
    d = [c, b]
    e, f, g = 1, 2, 3
    return ("new", *d, (e, f, g, c))


def test_hit_runs_the_new_code() -> None:
    entry = hook.Entry(replacement.__code__, program([is_int()], ("a",)))
    seen: list[Any] = []
    region = region_for({original.__code__: entry}, seen)
    call = hook.Compiled(region, original)
    for _ in range(3):
        assert call(1, b=5) == replacement(1, b=5)
    assert len(seen) == 1 and entry.hits == 2
    assert hook.entries(original.__code__, region) == [entry]
    frame = seen[0]
    assert frame.locals == {"a": 1, "b": 5} and frame.cells == {}
    assert frame.function is original and frame.globals is globals()


def test_miss_asks_again_and_none_runs_the_frame() -> None:
    entry = hook.Entry(replacement.__code__, program([is_int()], ("a",)))
    region = region_for({})
    region.add(original.__code__, entry)
    call = hook.Compiled(region, original)
    assert call("x") == original("x")
    assert call(1) == replacement(1)


def test_entry_whose_guards_fail_on_its_own_frame_is_reported_and_dropped() -> None:
    entry = hook.Entry(replacement.__code__, program([is_int()], ("a",)))
    region = region_for({original.__code__: entry})
    with pytest.warns(RuntimeWarning, match="guards fail"):
        assert hook.Compiled(region, original)("x") == original("x")
    assert not entry.valid and hook.entries(original.__code__, region) == []


def test_most_recent_hit_comes_first() -> None:
    for_int = hook.Entry(replacement.__code__, program([is_int()], ("a",)))
    row = (_C.OPCODES["IS_TYPE"], -1, 0, 0, str, 0)
    for_str = hook.Entry(original.__code__.replace(co_name="s"), program([row], ("a",)))
    region = region_for({})
    region.add(original.__code__, for_int)
    region.add(original.__code__, for_str)
    call = hook.Compiled(region, original)
    call(1)
    assert hook.entries(original.__code__, region) == [for_int, for_str]
    call("")
    assert hook.entries(original.__code__, region) == [for_str, for_int]
    for_int.invalidate()
    assert hook.entries(original.__code__, region) == [for_str]


def collecting(a: Any, *rest: Any, k: Any = 1, **others: Any) -> Any:
    return (a, rest, k, others)


def collecting_new(a: Any, *rest: Any, k: Any = 1, **others: Any) -> Any:
    if not a:
        __graph_inputs = None
    x, y = __graph_inputs
    return ("new", x, y, rest, k, others)


def test_collected_inputs_arrive_in_a_local() -> None:
    entry = hook.Entry(collecting_new.__code__, program([], ("a", "k"), (1, 0)))
    call = hook.Compiled(region_for({collecting.__code__: entry}), collecting)
    for _ in range(3):
        assert call(7, 8, 9, k=3, z=4) == ("new", 3, 7, (8, 9), 3, {"z": 4})


def test_fallback_call_when_the_frame_cannot_grow() -> None:
    big = collecting_new.__code__.replace(co_stacksize=200_000)
    entry = hook.Entry(big, program([], ("a", "k"), (1, 0)))
    call = hook.Compiled(region_for({collecting.__code__: entry}), collecting)
    before = hook.counters()["fallback_calls"]
    for _ in range(3):
        assert call(7, 8, 9, k=3, z=4) == ("new", 3, 7, (8, 9), 3, {"z": 4})
    assert hook.counters()["fallback_calls"] == before + 3
    with pytest.raises(TypeError):
        hook.Compiled(region_for({}), collecting)()


def counting(left: int) -> int:
    return left


def counting_new(left: int) -> int:
    if not left:
        __graph_inputs = None
    (at,) = __graph_inputs
    return 1 + COUNTED[0](at - 1)


COUNTED: list[Callable[[int], int]] = []


def test_fallback_calls_where_the_stack_ends() -> None:
    big = counting_new.__code__.replace(co_stacksize=20_000)
    entry = hook.Entry(big, program([], ("left",), (0,)))
    COUNTED[:] = [hook.Compiled(region_for({counting.__code__: entry}), counting)]
    found: list[int | Exception] = []

    def run() -> None:
        try:
            found.append(COUNTED[0](1000))
        except Exception as error:
            found.append(error)

    for pages in range(64, 96):
        before = threading.stack_size(pages * 4096)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        threading.stack_size(before)
    assert found == [1000] * 32


def test_program_that_collects_needs_the_local() -> None:
    with pytest.raises(ValueError, match="__graph_inputs"):
        hook.Entry(replacement.__code__, program([], ("a",), (0,)))


def test_closures_and_cell_arguments() -> None:
    n = 10
    seen: list[Any] = []

    def f(a: int) -> Any:
        return [lambda: a + n, a]

    def g(a: int) -> Any:
        t = a * 100
        return [lambda: t + a + n, t]

    entry = hook.Entry(g.__code__, program([is_int()], ("a",)))
    call = hook.Compiled(region_for({f.__code__: entry}, seen), f)
    for _ in range(3):
        first, second = call(2)
        assert (first(), second) == (212, 200)
    assert seen[0].locals == {"a": 2} and seen[0].cells["n"].cell_contents == 10


def test_entry_must_keep_the_signature() -> None:
    entry = hook.Entry((lambda z: z).__code__, program())
    with pytest.raises(ValueError, match="must keep arguments"):
        hook.Compiled(region_for({original.__code__: entry}), original)(1)


def test_exceptions_of_the_callback_and_of_new_code() -> None:
    def broken(a: Any, b: Any = 2) -> Any:
        return a / 0

    def fail() -> Any:
        raise KeyError("compiler")

    with pytest.raises(KeyError, match="compiler"):
        hook.Compiled(region_for({original.__code__: fail}), original)(1)
    entry = hook.Entry(broken.__code__, program())
    call = hook.Compiled(region_for({original.__code__: entry}), original)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as error:
            call(1)
        last = traceback.extract_tb(error.value.__traceback__)[-1]
        assert last.line == "return a / 0"
    assert hook.active_region() is None and hook.counters()["threads_inside"] == 0


def test_skip_marks() -> None:
    def inner() -> int:
        return 1

    def outer() -> int:
        return inner()

    for mark, expected in ((hook.SKIP, 4), (hook.SKIP_RECURSIVE, 2)):
        seen: list[Any] = []
        region = region_for({outer.__code__: mark}, seen)
        call = hook.Compiled(region, outer)
        assert [call() for _ in range(3)] == [1, 1, 1]
        names = [frame.code.co_name for frame in seen]
        assert names.count("outer") == 1
        assert names.count("inner") == (3 if mark is hook.SKIP else 0)
        assert expected
        region.reset()
        call()
        assert [frame.code.co_name for frame in seen].count("outer") == 2


def test_disabled_inside_and_regions_nest() -> None:
    seen: list[Any] = []

    def inner() -> Any:
        return hook.active_region()

    region, other = region_for({}, seen), region_for({})
    with region:
        assert inner() is region
        with hook.disabled():
            assert inner() is None
        assert hook.Disabled(inner)() is None
        assert hook.Compiled(None, inner)() is None
        with other:
            assert hook.active_region() is other
        with region:
            assert hook.active_region() is region
        assert hook.active_region() is region
    assert hook.active_region() is None and hook.counters()["threads_inside"] == 0
    assert [frame.code.co_name for frame in seen].count("inner") == 1
    assert region.run(inner, ()) is region
    with pytest.raises(RuntimeError):
        hook.leave()


def test_generators_coroutines_and_classes_are_left_alone() -> None:
    seen: list[Any] = []

    def called(x: int) -> int:
        return x

    def generator() -> Any:
        for i in range(3):
            yield called(i)

    async def coroutine() -> int:
        return called(7)

    def drive() -> Any:
        class Body:
            attribute = called(1)

        return list(generator()), asyncio.new_event_loop().run_until_complete(coroutine()), Body

    assert hook.Compiled(region_for({}, seen), drive)()[:2] == ([0, 1, 2], 7)
    names = [frame.code.co_name for frame in seen]
    assert names.count("called") == 5
    assert not {"generator", "coroutine", "Body"} & set(names)


def test_tracing_runs_the_original() -> None:
    entry = hook.Entry(replacement.__code__, program())
    call = hook.Compiled(region_for({original.__code__: entry}), original)
    call(1)
    lines: list[int] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        lines.append(frame.f_lineno)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        result = call(1)
    finally:
        sys.settrace(before)
    assert result == original(1)
    assert original.__code__.co_firstlineno + 1 in lines
    assert call(1) == replacement(1)


def test_profiler_sees_new_code() -> None:
    entry = hook.Entry(replacement.__code__, program())
    call = hook.Compiled(region_for({original.__code__: entry}), original)
    names: list[str] = []
    sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name))
    try:
        result = call(1)
    finally:
        sys.setprofile(None)
    assert result == replacement(1) and "replacement" in names


def test_wrapper_is_like_its_function() -> None:
    class A:
        def method(self, x: int = 3) -> tuple[Any, int]:
            """Doc."""
            return self, x

    A.method.tag = 1  # type: ignore[attr-defined]
    A.fast = hook.Compiled(region_for({}), A.method)  # type: ignore[attr-defined]
    a: Any = A()
    assert a.fast() == (a, 3) and a.fast(x=4) == (a, 4)
    wrapper = A.__dict__["fast"]
    assert (wrapper.__name__, wrapper.__doc__, wrapper.tag) == ("method", "Doc.", 1)
    assert wrapper.__wrapped__ is A.method and wrapper.__code__ is A.method.__code__
    assert str(inspect.signature(wrapper)) == str(inspect.signature(A.method))
    assert weakref.ref(wrapper)() is wrapper
    wrapper.note = 5
    assert wrapper.__dict__["note"] == 5
    with pytest.raises(TypeError):
        hook.Compiled(region_for({}), 3)
    with pytest.raises(TypeError):
        hook.Compiled(3, original)




def test_threads() -> None:
    entry = hook.Entry(replacement.__code__, program([is_int()], ("a",)))
    region = region_for({original.__code__: entry})
    call = hook.Compiled(region, original)
    wrong: list[Any] = []

    def work(fn: Callable[..., Any], expected: Any) -> None:
        for _ in range(3000):
            if fn(1) != expected:
                wrong.append(fn)

    threads = [threading.Thread(target=work, args=(call, replacement(1))) for _ in range(3)]
    threads += [threading.Thread(target=work, args=(original, original(1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and hook.counters()["threads_inside"] == 0


def test_recursion_limit_is_an_error_not_a_crash() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    call = hook.Compiled(region_for({down.__code__: None}), down)
    assert call(600) == 600
    with pytest.raises(RecursionError):
        call(10**6)
    assert call(5) == 5


def test_entries_die_with_code_and_with_region() -> None:
    class Token:
        pass

    def build() -> tuple[Any, Any]:
        space: dict[str, Any] = {}
        exec("def f(a, b=2):\n    return a", space)
        return space.pop("f"), Token()

    function, token = build()
    region = region_for({})
    region.add(function.__code__, hook.Entry(replacement.__code__, program(), token))
    dead = weakref.ref(token)
    del token
    assert dead() is not None
    del function
    gc.collect()
    assert dead() is None and region.codes() == []
    token = Token()
    dead = weakref.ref(token)
    region.add(original.__code__, hook.Entry(replacement.__code__, program(), token))
    del token, region
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize(("stacksize", "calls"), [(50, 1_000_000), (200_000, 100_000)])
def test_no_reference_is_lost(stacksize: int, calls: int) -> None:
    code = collecting_new.__code__.replace(co_stacksize=stacksize)
    entry = hook.Entry(code, program([], ("a", "k"), (1, 0)))
    call = hook.Compiled(region_for({collecting.__code__: entry}), collecting)
    value, key = object(), object()
    call(value, k=key)
    objects = (value, key, code, entry, collecting.__code__, collecting, entry.program)
    before = [sys.getrefcount(item) for item in objects]
    blocks = sys.getallocatedblocks()
    for _ in range(calls):
        call(value, k=key)
    assert [sys.getrefcount(item) for item in objects] == before
    assert abs(sys.getallocatedblocks() - blocks) < 200


def self_holding(region: hook.Region) -> types.CodeType:
    """A code object that nothing but its own entry keeps alive."""
    scope: dict[str, Any] = {}
    exec(compile("def own(a):\n    return a", "<made>", "exec"), scope)
    code = scope["own"].__code__
    region.add(code, hook.Entry(code.replace(co_name="new"), program([is_int()], ("a",)), code))
    return code


@pytest.mark.parametrize("forget", [lambda r, code: r.reset(), lambda r, code: hook.forget(code)])
def test_entries_that_hold_their_own_code_are_forgotten(forget: Callable[..., Any]) -> None:
    region = hook.Region(lambda frame: None)
    codes = [weakref.ref(self_holding(region)) for _ in range(20)]
    for code in list(region.codes()):
        forget(region, code)
    del code
    gc.collect()
    assert region.codes() == [] and all(code() is None for code in codes)


def test_a_thread_that_was_in_a_region_leaves_no_memory() -> None:
    region = hook.Region(lambda frame: None)

    def work() -> None:
        with region, region:
            pass

    def memory_after(threads: int) -> int:
        for _ in range(threads):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = memory_after(20)
        assert memory_after(300) - before < 300 * 32
    finally:
        tracemalloc.stop()


def test_a_code_that_dies_is_given_to_nobody() -> None:
    found: list[Any] = []

    class Asks:
        def __del__(self) -> None:
            found.extend(region.codes() for region in regions)

    def build() -> Any:
        space: dict[str, Any] = {}
        exec("def f(a, b=2):\n    return a", space)
        return space.pop("f")

    function = build()
    regions = [region_for({}) for _ in range(3)]
    for region in regions:
        region.add(function.__code__, hook.Entry(replacement.__code__, program(), Asks()))
    del function
    assert found == [[]] * 9


def test_moving_no_arguments_leaves_nothing_behind() -> None:
    def nothing() -> tuple[Any, ...]:
        return ()

    entry = hook.Entry(replacement.__code__, program([is_int()], ("a",)))
    call = hook.Compiled(region_for({original.__code__: entry}), original)
    for function in (nothing, tuple):
        assert hook.call_moving(function) == ()
        assert call(1) == replacement(1)
    with pytest.raises(TypeError):
        hook.call_moving(original)
    assert call(1) == replacement(1)


AUDITED = """
import sys, torch, dynamo
from dynamo import hook

seen = set()

def note(event):
    seen.add(event)

def audited(event, args):
    note(event)

def f(x):
    sys.audit("told", x.sum().item())
    return x + 1

sys.addaudithook(audited)
compiled = dynamo.compile(f)
x = torch.rand(3)
assert torch.equal(compiled(x), f(x)) and "told" in seen
region = compiled._policy.region
print([len(hook.entries(each.__code__, region)) for each in (f, audited, note)])
"""


def test_audit_hooks_are_not_the_program() -> None:
    """Such as libraries add for good, filelock for one: nothing of them is compiled."""
    done = run_python("-c", AUDITED, quiet=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[1,", "0,", "0]"]
