"""Operations that eager refuses for the kinds of their arguments, and fakes let pass: the error comes
where the operation stands, inside of its `try`, and also where nobody wants the result."""

from __future__ import annotations

import random
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.shapes.fake import FakeWorld
from dynamo.shapes.trials import Trial
from dynamo.testing import CompileCounter
from tests.parametrize import rotated

aten = torch.ops.aten
Operation = Callable[[Any, Any], Any]

# By name: an operation on x (4, 3) and y (3), of float32.
BY_TYPES: dict[str, Operation] = {
    "fill_ of a complex number": lambda x, y: x.fill_(1j),
    "copy_ of a complex number": lambda x, y: x.masked_fill(x > 0, 1j),
    "batch_norm with other statistics": lambda x, y: F.batch_norm(
        x, y.double(), y.double(), training=True),
    "abs_ of booleans": lambda x, y: (x > 0).abs_(),
    "a product of two dtypes": lambda x, y: x @ x.double().T,
    "addmm of two dtypes": lambda x, y: torch.addmm(y.double(), x, torch.ones(3, 3)),
    "safe_softmax of integers": lambda x, y: aten._safe_softmax(x.long(), 0),
    "log_sigmoid of integers": lambda x, y: F.logsigmoid(x.long()),
    "polygamma of complex numbers": lambda x, y: torch.polygamma(1, x + 1j),
    "avg_pool2d of booleans": lambda x, y: F.avg_pool2d((x > 0)[None], 2),
    "one minus booleans": lambda x, y: 1 - (x > 0),
}
BY_NUMBERS: dict[str, Operation] = {
    "uniform_ of a negative range": lambda x, y: x.uniform_(3, 1),
    "batch_norm with few statistics": lambda x, y: F.batch_norm(x, y[:2], y[:2], training=True),
    "a write into its own source": lambda x, y: x.view(-1)[1:].add_(x.view(-1)[:-1]),
    "avg_pool2d with an empty window": lambda x, y: F.avg_pool2d(x[None], (0, 1)),
}


def in_try(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        x.add_(1)
        try:
            log.append(2)
            action(x, y)
            log.append(3)
        except (RuntimeError, NotImplementedError) as error:
            log.append(type(error))
            x.sub_(5)
        return x.mul_(2) + y

    return f


def in_finally(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        x.add_(1)
        try:
            action(x, y)
        finally:
            log.append(x.shape)
            x.sub_(5)

    return f


def unused(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        x.add_(1)
        action(x * 1, y)
        x.add_(1)
        return x + y

    return f


def outcome(f: Any) -> Any:
    x, y, log = torch.ones(4, 3), torch.ones(3), list[Any]()
    torch.manual_seed(3)
    try:
        result = f(x, y, log).tolist()
    except Exception as error:
        result = type(error), str(error).partition("\n")[0]
    return result, log, x.tolist(), y.tolist(), torch.rand(2).tolist()


@rotated("name, program, backend, dynamic", [*BY_TYPES, *BY_NUMBERS], (in_try, in_finally), ("eager", "inductor"),
         (None, True), each=2, ids=lambda value: getattr(value, "__name__", None))
def test_handlers_see_the_error(name: str, program: Any, backend: str, dynamic: Any) -> None:
    dynamo.reset()
    f = program({**BY_TYPES, **BY_NUMBERS}[name])
    compiled = dynamo.compile(f, backend=backend, dynamic=dynamic)
    assert outcome(f) == outcome(compiled) == outcome(compiled)


@pytest.mark.parametrize("backend", ("eager", "inductor"))
@pytest.mark.parametrize("name", BY_TYPES)
def test_the_error_of_what_nobody_wants(name: str, backend: str) -> None:
    dynamo.reset()
    f = unused(BY_TYPES[name])
    assert outcome(dynamo.compile(f, backend=backend)) == outcome(f)


def test_a_trial_leaves_nothing() -> None:
    """Neither numbers drawn, nor warnings, nor that torch has given one that it gives once."""

    def f(x: Any, y: Any) -> Any:
        try:
            x.copy_(y)
            return x + torch.rand(3)
        except ValueError:
            return x

    compiled = dynamo.compile(f, backend="eager")
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = compiled(torch.ones(3), torch.ones(3) * 1j)
    torch.manual_seed(0)
    assert torch.equal(result, 1 - 1 + torch.rand(3)) and len(told) < 2


@pytest.mark.parametrize(("function", "sizes"), [
    (torch.outer, [(1 << 15,), (1 << 15,)]), (torch.add, [(1 << 20,), (1 << 20,)]),
    (F.l1_loss, [(1 << 14, 1), (1, 1 << 14)]),
], ids=("outer", "add", "l1_loss"))  # fmt: skip
def test_what_is_large_is_not_tried(function: Any, sizes: Any) -> None:
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        raise ValueError

    world = FakeWorld()
    args = [world.from_real(torch.empty(1).expand(size).clone()) for size in sizes]
    trial = Trial(args, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = world.run(function, *args)
    assert not trial.refuses(counted, result) and not calls
    few = [world.from_real(torch.empty(2, 2)) for _ in sizes]
    assert Trial(few, {}).refuses(counted, few[0]) and len(calls) == 2


def test_arguments_share_memory_as_in_the_program() -> None:
    world, x = FakeWorld(), torch.ones(8)
    one, other = world.from_real(x[1:]), world.from_real(x[:-1])
    trial = Trial((one, other), {})
    assert trial.refuses(torch.Tensor.add_, world.run(torch.Tensor.add_, one, other))
    apart = world.from_real(torch.ones(7))
    trial = Trial((one, apart), {})
    assert not trial.refuses(torch.Tensor.add_, world.run(torch.Tensor.add_, one, apart))


def by_assertion(target: torch.Tensor, mask: torch.Tensor, value: float) -> str:
    with unittest.TestCase().assertRaises(RuntimeError):
        target.masked_fill_(mask, value)
    return "caught"


def by_try(target: torch.Tensor, mask: torch.Tensor, value: float) -> str:
    try:
        target.masked_fill_(mask, value)
    except RuntimeError:
        return "caught"
    finally:
        target.add_(1)
    return "not caught"


@pytest.mark.parametrize("size", [10, 1 << 17], ids=("small", "large"))
@pytest.mark.parametrize("handle", [by_assertion, by_try])
def test_errors_beside_random_numbers_reach_their_handlers(handle: Any, size: int) -> None:
    """The graph draws, so that it can't simply run again; the number is not known either."""
    def f(target: torch.Tensor) -> Any:
        mask = torch.randint(2, (len(target),), dtype=torch.uint8)
        return handle(target, mask, random.random()), random.random(), torch.rand(2)

    results = []
    for call in (f, dynamo.compile(f, backend="eager")):
        random.seed(0), torch.manual_seed(0)
        target = torch.zeros(size)
        results.append([*call(target), target])
    assert results[0][0] == "caught" and results[0][:2] == results[1][:2]
    assert all(map(torch.equal, results[0][2:], results[1][2:]))


def test_numbers_of_a_few_bits_are_not_tried() -> None:
    world = FakeWorld()
    bits = world.from_real(torch.empty(3, dtype=torch.uint4))
    assert not Trial((bits,), {}).refuses(torch.neg, bits)


def test_known_values_are_tried_as_they_are() -> None:
    world = FakeWorld()
    x = world.from_real(torch.ones(6))
    size = world.run(torch.tensor, 3)
    trial = Trial((x, 2, size), {}, world.constant_of)
    assert not trial.refuses(torch.Tensor.view, world.run(torch.Tensor.view, x, 2, size))


SIZES_IN: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "a slice": lambda x, n: x[:, 1:n],
    "slices of a tuple": lambda x, n: x[1 : n - 1, 2:n:2],
    "a write into a slice": lambda x, n: x.clone().__setitem__((slice(None), slice(1, n)), 0),
    "a list": lambda x, n: x.reshape([n * 3, -1]),
    "a keyword": lambda x, n: x.new_zeros(size=(n, 2)),
}


@pytest.mark.parametrize("name", SIZES_IN)
def test_trials_fix_no_sizes(name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return SIZES_IN[name](x, x.shape[1] - 1)
        except RuntimeError as error:
            return str(error)

    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter, dynamic=True)
    for size in (6, 9, 12, 15):
        x = torch.randn(2 * (size - 1) * 3, size)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0)
    assert counter.frame_count == 1
