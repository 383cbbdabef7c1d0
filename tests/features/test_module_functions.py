"""Public functions of some modules of the standard library: called inside compiled code with
arguments drawn at random, with the value and the exception of eager."""

from __future__ import annotations

import bisect
import collections
import copy
import fractions
import functools
import heapq
import itertools
import math
import operator
import random
import re
import statistics
import string
import textwrap
from types import ModuleType
from typing import Any

import pytest
import torch

import dynamo
from tests.features.harness import check
from tests.features.test_builtin_methods import CALLS, shown
from tests.seeds import TEST_SEED

MODULES: list[ModuleType] = [
    math, operator, itertools, functools, collections, heapq, bisect, string, textwrap, re, copy,
    statistics, fractions,
]
SCOPE = {module.__name__: module for module in MODULES}
ARGUMENTS = [
    "0", "1", "-1", "3", "True", "None", "1.5", "-0.5", "float('inf')", "float('nan')", "2j", "'ab c'",
    "'a'", "''", "b'a'", "[3, 1, 2]", "[1.5, 2.5, 4.0]", "[]", "[[1], [2]]", "[('a', 1), ('b', 2)]", "(1,)",
    "{1}", "{'a': 5}", "range(4)", "iter([1, 2])", "collections.deque([1])", "slice(1, 2)", "len", "int",
    "str", "lambda a, b: a + b", "lambda a: a", "abs", "operator.add", "fractions.Fraction(1, 3)", "'1/3'",
    "'[a-c]+'", "'%s x'", "' a b\\n  c\\n'", "10",
]
KEYWORDS = [
    "key=str", "start=2", "initial=0", "reverse=True", "k=2", "n=2", "r=2", "repeat=2", "width=5", "maxlen=2",
    "lo=1", "hi=2", "flags=re.I", "default=1", "a=9", "fillvalue=0", "rel_tol=0.1", "strict=True",
]
# What is no function, has no end, or gives what no text shows.
LEFT_OUT = {"count", "cycle", "repeat", "tee", "purge", "template", "cmp_to_key", "finditer", "Pattern"}
SEED = f"{TEST_SEED + 1}"
GROUP = 5
COUNT = 10  # functions of a module in one run


def names(module: ModuleType) -> list[str]:
    public = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    values = {name: getattr(module, name) for name in public if name not in LEFT_OUT}
    errors = {name for name, value in values.items()
              if isinstance(value, type) and issubclass(value, BaseException)}
    return [name for name, value in values.items() if callable(value) and name not in errors]


def works(call: str) -> bool:
    try:
        eval(call, dict(SCOPE))
    except Exception:
        return False
    return True


def draw(random_: random.Random, name: str) -> str:
    """A call: one that works, where some tries find it."""
    call = ""
    for _ in range(30):
        arguments = random_.choices(ARGUMENTS, k=random_.choice((0, 1, 1, 2, 2, 2, 3)))
        if random_.random() < 0.2:
            arguments.append(random_.choice(KEYWORDS))
        call = f"{name}({', '.join(arguments)})"
        if works(call) or random_.random() < 0.1:
            break
    return call


def outcome(f: Any) -> Any:
    y, out = f(torch.ones(2), [])
    return re.sub(r" at 0x\w+", "", repr(shown((y.tolist(), out))))


def compare(calls: list[str]) -> None:
    body = "".join(CALLS.format(receiver="0", call=call) for call in calls)
    source = "def f(x, made):\n    out, y, o = [], x + 1, 0\n" + body + "    return y * 2, out\n"
    eager, traced = dict(SCOPE), dict(SCOPE)
    exec(source, eager)
    exec(source, traced)
    compiled = dynamo.compile(traced["f"], backend="eager")
    with dynamo.config.patch(suppress_errors=False):
        assert outcome(compiled) == outcome(eager["f"]), calls


@pytest.mark.draws
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_functions(module: ModuleType) -> None:
    random_ = random.Random(SEED + module.__name__)
    found = names(module)
    chosen = random_.sample(found, min(COUNT, len(found)))
    calls = [draw(random_, f"{module.__name__}.{name}") for name in chosen]
    for start in range(0, len(calls), GROUP):
        compare(calls[start : start + GROUP])


WRONG = """
    collections.deque(1, int)                   collections.deque(None)              itertools.chain(3)
    collections.OrderedDict('ab c')             bisect.insort({1: 2}, 1)
    itertools.combinations(10, [[1], [2]])      itertools.combinations([1], -0.5)    itertools.islice('a')
    itertools.islice([1], 2, maxlen=2)          itertools.pairwise(a=9)              itertools.accumulate()
    heapq.heapify(collections.deque([1]))       heapq.heappush(3)                    heapq.heappop((1, 2))
    bisect.bisect({1}, '1')                     bisect.insort_right([1], 1, 'a')     functools.partial((1,))
    collections.defaultdict([])                 functools.cached_property(1, 2)      operator.concat({1}, (1,))
    operator.imod(1.5, slice(1, 2))             operator.iadd(2j, b'a')              len(map(str, []))
    fractions.Fraction(1, 3)                    operator.delitem(len, 0)             operator.delitem((1,), ())
    operator.delitem((1,), 0)                   re.Match(1)                          len(iter([]))
"""


def test_wrong_arguments() -> None:
    compare(re.split(r"\s{2,}", WRONG.strip()))


def test_a_fraction_is_made_in_a_handled_block() -> None:
    check("""
        try:
            a = fractions.Fraction(1, 3) - 10
        except TypeError as e:
            a = str(e)
        return x + 1, a
    """, "import fractions")


def test_arguments_that_fit_are_one_graph() -> None:
    check("""
        at = bisect.bisect_left([1, 2, 4], 3, lo=1)
        return x * at, [*itertools.islice(itertools.count(), 1, 5, 2)]
    """, "import bisect, itertools")
