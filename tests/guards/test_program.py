"""Mutation tests of the guard program: each guarded fact is changed and must be noticed, what is
not guarded is changed and must not be; the plain-Python twin must agree."""

from __future__ import annotations

import builtins
import math
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynamo import _C
from dynamo.guards.build import build_program
from dynamo.guards.explain import failures
from dynamo.guards.kinds import TensorFacts, const_equal
from dynamo.guards.records import Guard, GuardSet
from dynamo.guards.sources import (
    AttrSource,
    BuiltinSource,
    CellContentsSource,
    CellSource,
    DictKeySource,
    DictSource,
    DictValueSource,
    GlobalSource,
    GlobalsSource,
    ItemSource,
    LocalSource,
    ModuleSource,
    Scope,
    Source,
    StateSource,
    TypeSource,
    WeakRefSource,
)

X = LocalSource("x")
Y = LocalSource("y")


class Checker:
    """A program and its twin over the same guards."""

    def __init__(self, *guards: Guard, collect: tuple[Source, ...] = ()) -> None:
        self.guards = GuardSet()
        for guard in guards:
            self.guards.add(guard)
        self.program = build_program(self.guards, collect)

    def __call__(self, **values: Any) -> bool:
        return self.run(values) is not None

    def run(
        self, values: dict[str, Any], module_globals: Any = None, cells: Any = None
    ) -> tuple[Any, ...] | None:
        module_globals = {} if module_globals is None else module_globals
        scope = Scope(values, module_globals, builtins.__dict__, cells or {})
        twin = not failures(self.guards, scope)
        collected, _, held = self.program.run(
            values, module_globals, builtins.__dict__, cells or {}
        )
        assert held == twin, (held, failures(self.guards, scope))
        return collected if held else None


class Plain:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


CONSTANTS = [
    None, True, False, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, math.nan, -math.nan, math.inf, 1j, "a", "b",
    "é" * 3, b"a", (), (1,), (1.0,), (True,), ((1, 2), "x"), frozenset({1}), frozenset({1.0}),
    frozenset({1, 0.0}), frozenset({1.0, 0}), slice(1, 2), slice(1.0, 2), range(0), range(1, 1),
    range(3), torch.float32, torch.float64, torch.device("cpu"), torch.device("cuda:0"),
    torch.Size([1]), torch.strided, ..., int, "A".lower(),
]


@pytest.mark.parametrize("index", range(len(CONSTANTS)))
def test_const_tells_all_constants_apart(index: int) -> None:
    value = CONSTANTS[index]
    checker = Checker(Guard("CONST", X, value))
    for _ in range(2):
        for other in CONSTANTS:
            assert checker(x=other) == const_equal(value, other)
    assert checker(x=value)


def test_const_runs_no_user_code() -> None:
    class Loud(int):
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = int.__hash__

    checker = Checker(Guard("CONST", X, 3))
    assert not checker(x=Loud(3))


# (guards on x, good value, changes that must be seen, changes that must not be)
Change = Callable[[Any], Any]


def replace(value: Any) -> Change:
    return lambda _: value


def fact(build: Callable[[Any], list[Guard]], make: Callable[[], Any], seen: Any, unseen: Any) -> Any:
    return build, make, seen, unseen


def _set(name: str, value: Any) -> Change:
    def change(target: Any) -> Any:
        setattr(target, name, value)
        return target

    return change


def _do(action: Callable[[Any], Any]) -> Change:
    def change(target: Any) -> Any:
        action(target)
        return target

    return change


def function(a: int) -> int:
    return a


def other_function(a: int) -> int:
    return a + 1


TENSOR_CHANGES = [
    replace(torch.randn(3, 3)), replace(torch.randn(2, 3, 1)), replace(torch.randn(2, 3).double()),
    replace(torch.randn(3, 2).t()), replace(torch.randn(2, 3, requires_grad=True)),
    replace(torch.nn.Parameter(torch.randn(2, 3), False)), replace(torch.randn(2, 3).to("meta")),
    replace(torch.complex(torch.randn(2, 3), torch.randn(2, 3)).conj()), replace(None),
    replace(torch.randn(2, 3).to_sparse()), _do(lambda t: t.requires_grad_()),
    _do(lambda t: t.resize_(6)), _do(lambda t: t.t_()),
    _do(lambda t: setattr(t, "data", torch.randn(4))),
]
FACTS = {
    "TENSOR": fact(lambda v: [Guard("TENSOR", X, TensorFacts.of(v))], lambda: torch.randn(2, 3),
                   TENSOR_CHANGES, [replace(torch.zeros(2, 3)), _do(lambda t: t.add_(1))]),
    "TYPE": fact(lambda v: [Guard("TYPE", X, type(v))], lambda: Plain(),
                 [replace(1), _set("__class__", type("Sub", (Plain,), {}))], [_set("a", 1)]),
    "ID": fact(lambda v: [Guard("ID", X, v)], lambda: function, [replace(other_function)], []),
    "LENGTH": fact(lambda v: [Guard("LENGTH", X, 2)], lambda: [1, 2],
                   [_do(lambda v: v.append(3)), _do(lambda v: v.pop()), replace((1,))],
                   [replace([5, 6]), replace("ab"), replace({1: 1, 2: 2}), replace({1, 2})]),
    "DICT_KEYS": fact(
        lambda v: [Guard("TYPE", X, dict), Guard("DICT_KEYS", X, tuple(v))], lambda: {"a": 1, "b": 2},
        [_do(lambda v: v.pop("a")), _do(lambda v: v.update(c=1)), replace({"b": 2, "a": 1}),
         _do(lambda v: v.update(a=v.pop("a")))], [_do(lambda v: v.update(a=5))]),
    "ORDERED_KEYS": fact(
        lambda v: [Guard("TYPE", X, OrderedDict), Guard("DICT_KEYS", X, tuple(v))],
        lambda: OrderedDict(a=1, b=2),
        [_do(lambda v: v.move_to_end("a")), _do(lambda v: v.clear())], [_do(lambda v: v.update(a=5))]),
    "DICT_HAS": fact(lambda v: [Guard("TYPE", X, dict), Guard("DICT_HAS", X, "a")], lambda: {"a": 1},
                     [_do(lambda v: v.pop("a"))], [_do(lambda v: v.update(b=1))]),
    "DICT_LACKS": fact(lambda v: [Guard("TYPE", X, dict), Guard("DICT_LACKS", X, "a")], lambda: {},
                       [_do(lambda v: v.update(a=1))], [_do(lambda v: v.update(b=1))]),
    "HAS_ATTR": fact(lambda v: [Guard("HAS_ATTR", X, "a")], lambda: Plain(a=1),
                     [_do(lambda v: delattr(v, "a"))], [_set("b", 1), _set("a", 2)]),
    "LACKS_ATTR": fact(lambda v: [Guard("LACKS_ATTR", X, "a")], lambda: Plain(), [_set("a", 1)],
                       [_set("b", 1)]),
    "SET_ITEMS": fact(lambda v: [Guard("SET_ITEMS", X, frozenset(v))], lambda: {1, "a"},
                      [_do(lambda v: v.add(2)), replace({1.0, "a"}), replace({True, "a"})],
                      [replace(frozenset({"a", 1}))]),
    "CODE": fact(lambda v: [Guard("CODE", X, function.__code__)],
                 lambda: types.FunctionType(function.__code__, {}),
                 [_set("__code__", other_function.__code__), replace(3)],
                 [replace(types.FunctionType(function.__code__, {"a": 1}))]),
    "BOOL_TRUTH": fact(lambda v: [Guard("BOOL_TRUTH", X, True)], lambda: [1],
                       [_do(lambda v: v.clear())], [replace(5)]),
    "RANGE": fact(lambda v: [Guard("RANGE", X, (2, None))], lambda: 3, [replace(1), replace("a")],
                  [replace(10**30)]),
    "SUBCLASS": fact(lambda v: [Guard("SUBCLASS", X, int)], lambda: 3, [replace("a")], [replace(True)]),
    "attribute": fact(
        lambda v: [Guard("CONST", ItemSource(DictSource(X), "a"), 1)], lambda: Plain(a=1, b=2),
        [_set("a", 2), _do(lambda v: delattr(v, "a")), _set("__dict__", {"a": 2})],
        [_set("b", 3), _set("c", 3), _set("__dict__", {"a": 1})]),
    "list in attribute": fact(
        lambda v: [Guard("CONST", ItemSource(ItemSource(DictSource(X), "a"), 1), 5)],
        lambda: Plain(a=[1, 5]), [_do(lambda v: v.a.insert(0, 0)), _do(lambda v: v.a.clear())],
        [_do(lambda v: v.a.append(1))]),
    "class of attribute": fact(
        lambda v: [Guard("TYPE", ItemSource(DictSource(X), "a"), Plain)], lambda: Plain(a=Plain()),
        [_do(lambda v: setattr(v.a, "__class__", type("Sub", (Plain,), {})))],
        [_do(lambda v: setattr(v.a, "z", 1))]),
    "parameter": fact(
        lambda v: [Guard("TENSOR", ItemSource(ItemSource(DictSource(X), "_parameters"), "weight"),
                         TensorFacts.of(v.weight))],
        lambda: torch.nn.Linear(2, 2),
        [_do(lambda v: v.requires_grad_(False)), _do(lambda v: v.double()),
         _do(lambda v: setattr(v.weight, "data", torch.randn(3, 2))), _set("weight", None)],
        [_do(lambda v: v.weight.data.zero_()), _set("bias", None),
         _do(lambda v: setattr(v, "weight", torch.nn.Parameter(torch.zeros(2, 2)))),
         _do(lambda v: setattr(v.weight, "data", torch.zeros(2, 2))), _do(lambda v: v.eval())]),
    "property": fact(lambda v: [Guard("CONST", AttrSource(X, "real"), 3)], lambda: 3, [replace(4)], []),
    "key": fact(lambda v: [Guard("CONST", DictKeySource(X, 1), "b")], lambda: {"a": 1, "b": 2},
                [_do(lambda v: v.pop("a"))], [_do(lambda v: v.update(b=7))]),
    "value": fact(lambda v: [Guard("CONST", DictValueSource(X, 1), 2)], lambda: {"a": 1, "b": 2},
                  [_do(lambda v: v.update(b=7))], [_do(lambda v: v.update(a=7))]),
    "type": fact(lambda v: [Guard("ID", TypeSource(X), int)], lambda: 1, [replace("")], [replace(2)]),
    "iterator": fact(lambda v: [Guard("CONST", ItemSource(StateSource(X), 1), 0)],
                     lambda: iter([1, 2]), [_do(next)], []),
}


@pytest.mark.parametrize("name", FACTS)
def test_each_change_of_a_guarded_fact_is_seen(name: str) -> None:
    build, make, seen, unseen = FACTS[name]
    for changes, expected in ((seen, False), (unseen, True)):
        for change in changes:
            value = make()
            checker = Checker(*build(value))
            for _ in range(3):
                assert checker(x=value)
            assert checker(x=change(value)) == expected, change
            fresh = make()
            if not any(guard.kind == "ID" for guard in checker.guards):
                assert checker(x=fresh)


def test_globals_builtins_modules_and_cells() -> None:
    cell = types.CellType(1)
    checker = Checker(
        Guard("CONST", GlobalSource("g"), 1), Guard("DICT_LACKS", GlobalsSource(), "absent"),
        Guard("ID", BuiltinSource("len"), len), Guard("ID", ModuleSource("math"), math),
        Guard("CONST", CellContentsSource(CellSource("c")), 1),
    )
    space = {"g": 1}
    for _ in range(3):
        assert checker.run({}, space, {"c": cell}) == ()
    space["counter"] = 1
    assert checker.run({}, space, {"c": cell}) == ()
    space["absent"] = 1
    assert checker.run({}, space, {"c": cell}) is None
    del space["absent"]
    space["g"] = 2
    assert checker.run({}, space, {"c": cell}) is None
    assert checker.run({}, {"g": 1}, {"c": cell}) == ()
    cell.cell_contents = 2
    assert checker.run({}, {"g": 1}, {"c": cell}) is None
    empty = Checker(Guard("CELL_EMPTY", CellSource("c")))
    assert empty.run({}, {}, {"c": types.CellType()}) == ()
    assert empty.run({}, {}, {"c": cell}) is None


def test_global_state() -> None:
    checker = Checker(Guard("GLOBAL_STATE", None, _C.global_state()))
    assert checker()
    contexts: list[Any] = [
        torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16),
        torch.device("meta"), torch._C.DisableTorchFunction(),
    ]
    for context in contexts:
        with context:
            assert not checker(), context
        assert checker()
    with torch.autocast("cpu", torch.bfloat16):
        inner = Checker(Guard("GLOBAL_STATE", None, _C.global_state()))
        assert inner()
        with torch.autocast("cpu", torch.float16):
            assert not inner()
    torch.set_default_dtype(torch.float64)
    assert not checker()
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    assert not checker()
    torch.use_deterministic_algorithms(False)
    assert checker()


def test_identities_between_values() -> None:
    a, b = torch.randn(3), torch.randn(3)
    assert Checker(Guard("SAME", X, Y))(x=a, y=a) and not Checker(Guard("SAME", X, Y))(x=a, y=b)
    assert Checker(Guard("NOT_SAME", X, Y))(x=a, y=b)
    assert not Checker(Guard("NOT_SAME", X, Y))(x=a, y=a)
    many = [LocalSource(f"t{i}") for i in range(300)]
    values = {f"t{i}": torch.randn(2) for i in range(300)}
    for kind in ("NO_TENSOR_ALIAS", "NO_STORAGE_ALIAS"):
        program = build_program([Guard(kind, None, tuple(many))])
        assert program.run(values, {}, {})[2]
        assert not program.run({**values, "t7": values["t299"]}, {}, {})[2]
        view = program.run({**values, "t7": values["t299"][:1]}, {}, {})[2]
        assert view == (kind == "NO_TENSOR_ALIAS")


def test_weak_references() -> None:
    import weakref

    target = Plain()
    reference = weakref.ref(target)
    alive = Checker(Guard("WEAKREF_ALIVE", X, True))
    through = Checker(Guard("ID", WeakRefSource(X), target))
    assert alive(x=reference) and through(x=reference)
    by_id = build_program([Guard("ID", X, target)])
    assert by_id.run({"x": target}, {}, {})[2]
    through.guards.guards.clear()
    del target
    assert reference() is None
    assert not alive(x=reference)
    assert not by_id.run({"x": Plain()}, {}, {})[2]


def test_attributes_that_run_python() -> None:
    class Odd:
        calls = 0

        @property
        def p(self) -> Any:
            Odd.calls += 1
            program.run({"x": self, "y": 1}, {}, {}) if Odd.calls < 5 else None
            return [1, 2]

        def __getattr__(self, name: str) -> Any:
            if name == "dynamic":
                return 7
            raise AttributeError(name)

    guards = [Guard("LENGTH", AttrSource(X, "p"), 2), Guard("CONST", AttrSource(X, "dynamic"), 7),
              Guard("LACKS_ATTR", X, "absent"), Guard("CONST", Y, 1)]
    program = build_program(guards, [AttrSource(X, "p"), Y])
    for _ in range(3):
        assert program.run({"x": Odd(), "y": 1}, {}, {})[0] == ([1, 2], 1)
    assert program.runs_python
    assert not program.run({"x": Odd(), "y": 2}, {}, {})[2]


def test_collected_values_follow_the_dicts() -> None:
    layer = torch.nn.Linear(2, 2)
    weight = ItemSource(ItemSource(DictSource(X), "_parameters"), "weight")
    guards = [Guard("TENSOR", weight, TensorFacts.of(layer.weight))]
    program = build_program(guards, [weight, X])
    for _ in range(3):
        assert program.run({"x": layer}, {}, {})[0][0] is layer.weight
    layer.weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert program.run({"x": layer}, {}, {})[0][0] is layer.weight
    other = torch.nn.Linear(2, 2)
    assert program.run({"x": other}, {}, {})[0] == (other.weight, other)


def test_implied_guards_are_dropped() -> None:
    program = build_program([
        Guard("TYPE", X, int), Guard("CONST", X, 3), Guard("TYPE", Y, dict),
        Guard("DICT_KEYS", Y, ("a",)), Guard("LENGTH", Y, 1), Guard("DICT_HAS", Y, "a"),
        Guard("DICT_LACKS", Y, "b"),
    ])
    checks = [row[0] for row in program.dump() if row[0] not in ("LOCAL", "TAG_TEST", "TAG_SEAL")]
    assert checks == ["EQUAL", "IS_TYPE", "DICT_KEYS"]


def test_dynamic_sizes() -> None:
    facts = TensorFacts.of(torch.randn(2, 3), frozenset({0}))
    checker = Checker(Guard("TENSOR", X, facts))
    assert checker(x=torch.randn(7, 3)) and not checker(x=torch.randn(7, 4))


def test_large_sets_are_compared_in_linear_time() -> None:
    """In any order, and type by type; quadratic would take minutes."""
    items = frozenset(range(20_000)) | {f"k{n}" for n in range(20_000)}
    guard = Guard("SET_ITEMS", LocalSource("s"), items)
    program = build_program([guard])
    for value, holds in ((set(items), True), (set(items) - {1} | {True}, False),
                         (set(items) - {1} | {1.0}, False), (set(items) - {"k3"} | {"q"}, False)):
        assert program.run({"s": value}, {}, {})[2] == holds
        assert (not failures([guard], Scope({"s": value}, {}, {}))) == holds
