"""Every public method of the built-in types, and every operator between them: called inside compiled
code with arguments drawn at random, with the value, the effects and the exception of eager."""

from __future__ import annotations

import collections
import io
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import dynamo
from tests.seeds import TEST_SEED

TYPES: dict[type, list[str]] = {
    list: ["[3, 1, 2]", "[]", "['b', 'a', 'b']", "[1, [2], None]", "[1.5, True, 1]"],
    dict: ["{'a': 1, 'b': [2]}", "{}", "{1: 2, (1, 2): 3, None: 4}"],
    set: ["{1, 2, 3}", "set()", "{'a', 1, None}"],
    frozenset: ["frozenset({1, 2, 3})", "frozenset()", "frozenset('ab')"],
    str: ["'aBc a'", "''", "'12'", "' x,y\\n'", "'\u00e9\u01c6'", "'{}-{a}'"],
    bytes: ["b'aBc a'", "b''", "b'12'", "b' x,y\\n'", "b'\\xff\\x00'"],
    int: ["5", "0", "-7", "2 ** 70", "True"],
    float: ["2.5", "-0.0", "float('inf')", "float('nan')", "3.0"],
    complex: ["1 + 2j", "0j"],
    tuple: ["(1, 2, 1)", "()", "('a', (2,))"],
    range: ["range(5)", "range(9, 0, -3)", "range(0)"],
    collections.deque: ["deque([3, 1, 2])", "deque()", "deque('aba', 3)"],
    collections.OrderedDict: ["OrderedDict(b=1, a=2)", "OrderedDict()"],
    collections.Counter: ["Counter('abca')", "Counter()", "Counter({'a': -1, 'b': 2.5})"],
    collections.defaultdict: ["defaultdict(list, a=[1])", "defaultdict(None, {1: 2})",
                              "defaultdict(int)"],
    bytearray: ["bytearray(b'aBc a')", "bytearray()", "bytearray(b' x,y\\n12')"],
    memoryview: ["memoryview(b'aBc a')", "memoryview(bytearray(b'12'))", "memoryview(b'')"],
    slice: ["slice(1, 5, 2)", "slice(None)", "slice(-3, None, -1)", "slice('a')"],
    io.StringIO: ["StringIO('ab\\ncd\\n')", "StringIO()", "StringIO('x\\r\\ny', newline=None)"],
    io.BytesIO: ["BytesIO(b'ab\\ncd\\n')", "BytesIO()", "BytesIO(b'12')"],
}
ARGUMENTS = [
    "0", "1", "-1", "2", "7", "True", "None", "1.5", "2j", "'a'", "'b'", "'aB'", "''", "'ascii'",
    "b'a'", "b''", "bytearray(b'xy')", "memoryview(b'a')", "[1, 2]", "[]", "['a', 'b']", "[('a', 1), (2, 3)]", "(1,)", "('a', 'x')",
    "{1, 2}", "{'a': 5}", "{97: 'q'}", "frozenset({1})", "range(3)", "deque([1])", "iter([1, 'a'])",
    "Counter('aab')", "slice(1, 2)", "len", "int",
]
KEYWORDS = ["key=str", "reverse=True", "maxsplit=1", "sep=','", "signed=True", "default=3",
            "last=False", "a=9"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "@", "<", "<=", "==",
          "!=", "in", "is"]
SCOPE = {"deque": collections.deque, "OrderedDict": collections.OrderedDict,
         "Counter": collections.Counter, "defaultdict": collections.defaultdict,
         "StringIO": io.StringIO, "BytesIO": io.BytesIO}
NOT_MODELLED = (bytearray, memoryview, io.StringIO, io.BytesIO)  # each call is a graph break
SEED = f"{TEST_SEED + 1}"
CALLS = """
    try:
        o = {receiver}
        r = {call}
        if hasattr(type(r), '__next__') and not hasattr(r, 'seek'): r = type(r).__name__, list(r)
        out.append((r, o))
    except Exception as e: out.append((type(e).__name__, str(e), o))
"""


def told(message: str) -> str:
    """The text of an error: CPython names the class of a method or not, by how it is called."""
    return re.sub(r"\b\w+\.(\w+\(\))", r"\1", re.sub(r" at 0x\w+", "", message))


def shown(value: Any) -> Any:
    """A value as text: types, order (where there is one) and NaN included."""
    kind = type(value)
    if kind in (set, frozenset) or kind.__name__ == "dict_keys":
        return kind.__name__, sorted(map(repr, map(shown, value)))
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return kind.__name__, factory, [(shown(k), shown(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return kind.__name__, getattr(value, "maxlen", None), [*map(shown, value)]
    if isinstance(value, io.StringIO | io.BytesIO):
        return kind.__name__, "closed" if value.closed else (value.getvalue(), value.tell())
    if kind is memoryview:
        try:
            return value.format, value.shape, value.readonly, value.tolist()
        except ValueError as error:
            return str(error)
    if kind.__name__.startswith(("dict_", "odict_")):
        return kind.__name__, [*map(shown, value)]
    text = value if kind is str else getattr(value, "__name__", repr(value)) if callable(value) else repr(value)
    return kind.__name__, told(text)


def outcome(f: Callable[..., Any], made: list[Any]) -> Any:
    x = torch.ones(2)
    y, out = f(x, made)
    return shown((y.tolist(), out, made))


def compare(cases: list[tuple[str, str]], group: int = 10) -> None:
    """Each call of `o` and its receiver; a few in one function, for each wrong use is a break."""
    for start in range(0, len(cases), group):
        calls, receivers = zip(*cases[start : start + group], strict=True)
        compare_in_one(calls, receivers)


def compare_in_one(calls: Sequence[str], receivers: Sequence[str]) -> None:
    """With the receivers made in the program, and once more given as arguments."""
    body = "".join(CALLS.format(receiver=r, call=c) for r, c in zip(receivers, calls, strict=True))
    given = "".join(
        CALLS.format(receiver=f"made[{i}]", call=c) for i, c in enumerate(calls))
    for text in (body, given):
        source = "def f(x, made):\n    out, y, o = [], x + 1, 0\n" + text + "    return y * 2, out\n"
        dynamo.reset()
        eager, traced = dict(SCOPE), dict(SCOPE)
        exec(source, eager)
        exec(source, traced)
        compiled = dynamo.compile(traced["f"], backend="eager")
        for _ in range(2):
            made = [[eval(r, dict(SCOPE)) for r in receivers] for _ in range(2)]
            want, got = outcome(eager["f"], made[0]), outcome(compiled, made[1])
            if want != got:
                pairs = zip(calls, receivers, want[2][1][2], got[2][1][2], strict=True)
                wrong = [pair for pair in pairs if pair[2] != pair[3]]
                assert not wrong, wrong
                raise AssertionError(("receivers", want, got))


def methods(kind: type) -> list[str]:
    return [name for name in dir(kind)
            if not name.startswith("_") and callable(getattr(kind, name))]


def works(call: str, receiver: str) -> bool:
    try:
        eval(call, {**SCOPE, "o": eval(receiver, dict(SCOPE))})
    except Exception:
        return False
    return True


def draw_call(random_: random.Random, name: str) -> str:
    count = random_.choice((0, 1, 1, 1, 2, 2, 3))
    args = [random_.choice(ARGUMENTS) for _ in range(count)]
    if random_.random() < 0.15:
        args.append(random_.choice(KEYWORDS))
    return f"o.{name}({', '.join(args)})"


def draw_calls(random_: random.Random, kind: type, name: str, count: int) -> list[tuple[str, str]]:
    """Calls and receivers: most draws are a wrong use, and a few of those are enough."""
    found: list[tuple[str, str]] = []
    tries = 0
    while len(found) < count:
        call, receiver, tries = draw_call(random_, name), random_.choice(TYPES[kind]), tries + 1
        if tries > 100 or works(call, receiver) or random_.random() < 0.1:
            found.append((call, receiver))
    return found


@pytest.mark.draws
@pytest.mark.every_combination
@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long if kind in NOT_MODELLED[1:] else ()) for kind in TYPES],
    ids=lambda kind: kind.__name__)
def test_methods(kind: type, count: int) -> None:
    random_ = random.Random(SEED)
    cases = [case for name in methods(kind) for case in draw_calls(random_, kind, name, count)]
    random_.shuffle(cases)
    compare(cases, 2 if kind in NOT_MODELLED else 10)


@pytest.mark.draws
@pytest.mark.parametrize("symbol", BINARY)
def test_operator(symbol: str) -> None:
    random_ = random.Random(SEED)
    values = [text for texts in TYPES.values() for text in texts]
    cases = []
    for texts in TYPES.values():
        # One of its own kind, and another.
        for right in (random_.choice(texts), random_.choice(values)):
            if symbol == "is":
                right = f"o if {random_.random() < 0.5} else {right}"
            call, receiver = f"o {symbol} {right}", random_.choice(texts)
            # As above: of the wrong uses, which are graph breaks, a few are enough.
            if not (symbol in ("**", "<<", "*") and "70" in right) and (
                works(call, receiver) or random_.random() < 0.1):
                cases.append((call, receiver))
    compare(cases, 4)


def test_a_key_sorts_a_set_of_what_has_no_order() -> None:
    def f(x: torch.Tensor, found: list[Any]) -> torch.Tensor:
        y = x + 1
        try:
            found.append(sorted({1, 2, "early"}, key=repr))
        except TypeError:
            found.append("error")
        return y

    found: list[Any] = []
    dynamo.compile(f, backend="eager")(torch.rand(2), found)
    assert found == [["early", 1, 2]]
