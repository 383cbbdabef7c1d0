"""Small programs of many kinds that are one graph and answer as eager does."""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

ONE = torch.arange(1.0, 5.0)


class Base:
    def method(self) -> int:
        return 1


class Derived(Base):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 2.0


def helper(x: Any) -> Any:
    return x


OBJECT = Base()
READ_ALL = {"list": list, "pairs": lambda groups: [(key, list(group)) for key, group in groups]}


def groups_halfway(x: torch.Tensor) -> Any:
    groups = itertools.groupby("aabbbc")
    first, members = next(groups)
    taken = [first, next(members)]
    second, others = next(groups)
    return x, taken, second, list(members), list(others), READ_ALL["pairs"](groups)


def groups_by_key(x: torch.Tensor) -> Any:
    by_sign = itertools.groupby(iterable=[3, 1, -4, 6], key=lambda v: v > 0)
    lost = [list(group) for _, group in list(itertools.groupby([1, 1, 2]))]
    return x * sum(len(list(group)) for _, group in by_sign), lost


def iterators(x: torch.Tensor) -> Any:
    tools = itertools
    a, b = tools.tee([1, 2, 3])
    return (
        x, next(a), list(b), list(a), list(tools.islice(tools.cycle("ab"), 5)), list(tools.cycle([])),
        list(tools.permutations([1, 2, 3])), list(tools.permutations("abc", 2)),
        list(tools.combinations(range(4), 2)), list(tools.combinations([1], 2)),
        list(tools.combinations_with_replacement("ab", 2)), list(tools.combinations([1], 0)),
        list(tools.zip_longest([1, 2, 3], [4], fillvalue=0)), list(tools.zip_longest("ab", "c")),
        list(tools.takewhile(lambda v: v < 3, [1, 3, 1])), list(tools.compress("abc", [1, 0, 1])),
        list(tools.dropwhile(lambda v: v < 3, [1, 3, 1])), list(tools.filterfalse(None, [0, 1])),
        list(tools.starmap(pow, [(2, 3)])), sum(p * q for p, q in tools.combinations([x, x + 1], 2)),
    )


def wrong_count(x: torch.Tensor) -> Any:
    return x, itertools.combinations([1], -1)


def deques(x: torch.Tensor) -> Any:
    q = collections.deque([1, 2, 3, 4], maxlen=6)
    q.rotate(1)
    q.remove(2)
    q.insert(1, 9)
    q.insert(-1, 8)
    q.extendleft([7])
    q.reverse()
    found = q.index(9), q.count(9), q.maxlen, 9 in q, 5 in q, list(reversed(q)), sum(q)
    p = q.copy()
    p.clear()
    return x, list(q), found, [i for i in q], len(p)


def full_deque(x: torch.Tensor) -> Any:
    collections.deque([1, 2], maxlen=2).insert(0, 3)
    return x


def missing_in_deque(x: torch.Tensor) -> Any:
    collections.deque([1, 2]).remove(5)
    return x


def texts(x: torch.Tensor) -> Any:
    shown = str(helper) + repr(Base.method) + f"{OBJECT.method}{math}" + "{}".format(str(OBJECT))  # noqa: UP032
    return x + ("helper" in str(helper)), shown, str(torch.sin), str(Base)


def classes(x: torch.Tensor) -> Any:
    return x + len(Base.__subclasses__()), Base.__subclasses__()[0].__name__, Derived.mro()


def named_tuples(x: torch.Tensor) -> Any:
    kind = collections.namedtuple("kind", ["a", "b", "def"], rename=True, defaults=[2])
    made = kind(x, b=1)
    return made.a * made._2, kind._fields, made._replace(b=5).b, made._asdict()["b"]


def versions(x: torch.Tensor) -> Any:
    newer = torch.__version__ >= "1.9"
    return x + newer, torch.__version__.split(".")[0], torch.__version__ > (1, 2)


def descriptors(x: torch.Tensor) -> Any:
    kind = type(x)
    return x + kind.shape.__get__(x)[0], torch.Tensor.dtype.__get__(x, torch.Tensor), kind.T.__get__(x)


def types_by_class(x: torch.Tensor) -> Any:
    return x.type(torch.HalfTensor), x.type(dtype=torch.LongTensor), x.type("torch.IntTensor")


def modes(x: torch.Tensor) -> Any:
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(not before, warn_only=True)
    y = x + torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(before, warn_only=warns)
    casts = torch.get_autocast_gpu_dtype(), torch.get_autocast_cpu_dtype()
    return y, casts, torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled


def left_in_mode(x: torch.Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    return x + 1, torch.are_deterministic_algorithms_enabled()


def gradient_of_a_made_tensor(x: torch.Tensor) -> Any:
    y, z = x.clone(), x + 1
    y.grad, z.grad = x * 2, x
    y.grad.add_(1)
    kept, y.grad = y.grad, None
    return kept, y.grad, z, z.grad


def wrong_gradient(x: torch.Tensor) -> Any:
    x.clone().grad = torch.ones(2)
    return x


def frozen(x: torch.Tensor) -> Any:
    one = Frozen(3)
    table = {Frozen(1): 2, one: operator.neg(3)}
    return x * one.a + dataclasses.replace(one, a=5).a, table[Frozen(3)], dataclasses.asdict(one), one


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    groups_halfway, groups_by_key, iterators, wrong_count, deques, full_deque, missing_in_deque, texts,
    classes, named_tuples, versions, descriptors, types_by_class, modes, left_in_mode,
    gradient_of_a_made_tensor, wrong_gradient, frozen,
]


def told(f: Callable[[torch.Tensor], Any]) -> str:
    """What a call gives, or raises, and the mode that it leaves."""
    try:
        found = f(copy.deepcopy(ONE))
        text = f"{found} {getattr(found[2], 'grad', None) if len(found) > 2 else None}"
    except (ValueError, IndexError, RuntimeError) as error:
        text = f"{type(error).__name__} {error}"
    text += str(torch.are_deterministic_algorithms_enabled())
    torch.use_deterministic_algorithms(False)
    return text


@pytest.mark.parametrize("f", PROGRAMS)
def test_one_graph(f: Callable[[torch.Tensor], Any]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        assert told(compiled) == told(f)


def test_a_new_subclass_is_seen() -> None:
    compiled = dynamo.compile(lambda x: x + len(Derived.__subclasses__()), backend="eager", fullgraph=True)
    assert compiled(ONE)[0] == 1

    class Later(Derived):
        pass

    assert compiled(ONE)[0] == 2 and Later is Derived.__subclasses__()[0]


@pytest.mark.parametrize("make", [
    lambda: itertools.groupby([1, 1, 2]), lambda: itertools.cycle([1, 2]),
    lambda: itertools.combinations([1, 2, 3], 2), lambda: itertools.permutations([1, 2, 3]),
    lambda: itertools.zip_longest([1], [2, 3], fillvalue=7), lambda: itertools.tee([1, 2])[1],
    lambda: itertools.takewhile(bool, [1, 0]), lambda: next(itertools.groupby([1, 1, 2]))[1],
    lambda: itertools.compress([1, 2], [0, 1]), lambda: iter(collections.deque([1, 2])),
    lambda: reversed(collections.deque([1, 2])),
])
def test_iterators_that_leave(make: Callable[[], Any]) -> None:
    """They are of the real classes."""
    got, want = dynamo.compile(lambda x: (make(), x + 1), backend="eager")(ONE)[0], make()
    assert type(got) is type(want)
    values = [list(itertools.islice(each, 4)) for each in (got, want)]
    if not isinstance(got, itertools.groupby):  # whose groups are iterators
        assert values[0] == values[1]
