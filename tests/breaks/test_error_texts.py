"""Errors of operations with wrong arguments: kind and text are eager's, caught or not."""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo

Action = Callable[[Any, Any, Any, Any], Any]

# By name: an operation on x (2, 3), y (4, 2, 3), the integers i (2,) and a leaf p (3, 4).
WRONG: dict[str, Action] = {
    "add_": lambda x, y, i, p: x.add_(y),
    "iadd": lambda x, y, i, p: operator.iadd(x, y),
    "add": lambda x, y, i, p: x + torch.ones(5),
    "matmul": lambda x, y, i, p: x @ x,
    "bmm": lambda x, y, i, p: torch.bmm(x, x),
    "addmm": lambda x, y, i, p: torch.addmm(x, x, x),
    "linear": lambda x, y, i, p: F.linear(x, torch.ones(4, 4)),
    "linear_dtypes": lambda x, y, i, p: F.linear(x, torch.ones(4, 3, dtype=torch.double)),
    "cat": lambda x, y, i, p: torch.cat([x, y]),
    "cat_sizes": lambda x, y, i, p: torch.cat([x, x[:, :2]]),
    "cat_of_nothing": lambda x, y, i, p: torch.cat([]),
    "stack": lambda x, y, i, p: torch.stack([x, y]),
    "view": lambda x, y, i, p: x.view(7),
    "view_strides": lambda x, y, i, p: x.t().view(6),
    "reshape": lambda x, y, i, p: x.reshape(4, -1),
    "expand": lambda x, y, i, p: x.expand(4, 4),
    "permute": lambda x, y, i, p: x.permute(0, 0),
    "transpose": lambda x, y, i, p: x.transpose(0, 5),
    "index": lambda x, y, i, p: x[5],
    "indices": lambda x, y, i, p: x[0, 0, 0],
    "index_mask": lambda x, y, i, p: x[torch.tensor([True, False, True])],
    "shape_index": lambda x, y, i, p: x.shape[5],
    "store": lambda x, y, i, p: operator.setitem(x, 0, y),
    "sum": lambda x, y, i, p: x.sum(3),
    "mean_of_integers": lambda x, y, i, p: i.mean(),
    "softmax": lambda x, y, i, p: x.softmax(4),
    "log_softmax": lambda x, y, i, p: x.log_softmax(-3),
    "gather": lambda x, y, i, p: x.gather(0, x),
    "masked_fill": lambda x, y, i, p: x.masked_fill(x, 0),
    "where": lambda x, y, i, p: torch.where(x > 0, x, torch.ones(7)),
    "out": lambda x, y, i, p: torch.add(x, x, out=torch.empty(2, 3, dtype=torch.int64)),
    "out_gradient": lambda x, y, i, p: torch.add(p, 1, out=torch.empty(3, 4)),
    "copy": lambda x, y, i, p: x.copy_(y),
    "leaf": lambda x, y, i, p: p.add_(1),
    "divide_integers": lambda x, y, i, p: i.div_(2),
    "subtract_booleans": lambda x, y, i, p: (x > 0) - (x > 0),
    "negate_booleans": lambda x, y, i, p: -(x > 0),
    "and": lambda x, y, i, p: x & x,
    "power": lambda x, y, i, p: i ** -1,
    "text": lambda x, y, i, p: x + "a",
    "keyword": lambda x, y, i, p: x.sum(foo=3),
    "attribute": lambda x, y, i, p: x.foo,
    "conv": lambda x, y, i, p: F.conv2d(y[None], torch.ones(2, 3, 3, 3)),
    "pool": lambda x, y, i, p: F.max_pool2d(y, 5),
    "layer_norm": lambda x, y, i, p: F.layer_norm(x, (4,)),
    "cross_entropy": lambda x, y, i, p: F.cross_entropy(x, i[:1]),
    "einsum": lambda x, y, i, p: torch.einsum("ij,jk->ik", x, x),
    "meshgrid": lambda x, y, i, p: torch.meshgrid(x, x, indexing="ij"),
    "topk": lambda x, y, i, p: x.topk(9),
    "zeros": lambda x, y, i, p: torch.zeros(-1),
    "backward": lambda x, y, i, p: x.sum().backward(),
}  # fmt: skip


def arguments() -> list[torch.Tensor]:
    x = torch.arange(6.0).view(2, 3)
    leaf = torch.ones(3, 4, requires_grad=True)
    return [x, torch.arange(24.0).view(4, 2, 3), torch.tensor([1, 5]), leaf]


def outcome(f: Any) -> Any:
    given = arguments()
    try:
        told = f(*given)
    except Exception as error:
        told = type(error), str(error)
    return told, [tensor.tolist() for tensor in given]


def catching(action: Action) -> Any:
    def f(x: Any, y: Any, i: Any, p: Any) -> Any:
        z = x * 2
        try:
            z = action(x, y, i, p)
        except Exception as error:
            return type(error), str(error)
        return z

    return f


def escaping(action: Action) -> Any:
    def f(x: Any, y: Any, i: Any, p: Any) -> Any:
        z = x * 2
        return z, action(x, y, i, p)

    return f


@pytest.mark.parametrize("dynamic", (None, True), ids=("static", "dynamic"))
@pytest.mark.parametrize("name", WRONG)
def test_error_of_an_operation(name: str, dynamic: bool | None) -> None:
    for make in (catching, escaping):
        f = make(WRONG[name])
        dynamo.reset()
        compiled = dynamo.compile(f, backend="eager", dynamic=dynamic)
        expected = outcome(f)
        assert issubclass(expected[0][0], Exception)
        assert outcome(compiled) == expected


@pytest.mark.parametrize("name", ("softmax", "subtract_booleans", "iadd", "power"))
def test_generated_code_has_no_result_where_eager_has_an_error(name: str) -> None:
    f = escaping(WRONG[name])
    for dynamic in (None, True):
        dynamo.reset()
        assert outcome(dynamo.compile(f, dynamic=dynamic)) == outcome(f)


def test_integers_are_not_scaled_by_a_fraction_in_place() -> None:
    def f(x: Any, y: Any, i: Any, p: Any) -> Any:
        return i.mul_(2.5)

    for dynamic in (None, True):
        dynamo.reset()
        assert outcome(dynamo.compile(f, dynamic=dynamic)) == outcome(f)


def test_a_with_block_sees_the_error_of_an_operation() -> None:
    seen: list[str] = []

    class Manager:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
            seen.append(str(value))
            return True

    def f(x: Any, y: Any) -> Any:
        z = x * 2
        with Manager():
            x.add_(y)
        with contextlib.suppress(RuntimeError):
            x.add_(y)
        return z + 1

    x, y, *_ = arguments()
    assert torch.equal(dynamo.compile(f, backend="eager")(x, y), f(x, y))
    assert seen[0] == seen[1] and "[2, 3]" in seen[0]


def test_the_fallback_of_a_failing_view_runs() -> None:
    def f(x: Any) -> Any:
        x = x.t() * 1
        try:
            x = x.t().view(-1)
        except RuntimeError:
            x = x.t().reshape(-1)
        return x + 1

    x = torch.arange(6.0).view(2, 3)
    for value in (x, x.t()):
        assert torch.equal(dynamo.compile(f, backend="eager")(value), f(value))


class Whole(int):
    pass


class Fraction(float):
    pass


class Word(str):
    pass


class Row(list):  # type: ignore[type-arg]
    pass


class Pair(tuple):  # type: ignore[type-arg]
    pass


class Octets(bytes):
    pass


OWN = (Whole(2), Fraction(2.5), Word("a"), Row([1]), Pair((1,)), Octets(b"a"))
OTHERS = (*OWN, 2, 2.5, "a", [1], (1,), b"a", {1: 2}, None)
BETWEEN = {name: getattr(operator, name) for name in (
    "sub", "mul", "truediv", "pow", "lshift", "and_", "lt", "ge", "isub", "imul", "ilshift")}


@pytest.mark.parametrize("name", BETWEEN)
def test_errors_of_operators_name_the_classes_of_both_operands(name: str) -> None:
    operation = BETWEEN[name]

    def answer(one: Any, other: Any) -> str:
        try:
            return repr(operation(one, other))
        except TypeError as error:
            return str(error)

    pairs = [*itertools.product(OWN, OTHERS), *itertools.product(OTHERS, OWN)]
    for a, b in pairs[list(BETWEEN).index(name) % 3 :: 3]:
        compiled = dynamo.compile(answer, backend="eager")
        assert compiled(copy.copy(a), b) == answer(copy.copy(a), b)
