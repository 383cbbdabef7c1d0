"""Numbers that change: at most two compiles where only their type matters, and eager's results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

SCALE = 1


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.rate = 0.5
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps > 1_000:
            return x * 0
        return self.linear(x) * self.steps + self.rate


def test_step_counter_of_a_module() -> None:
    eager, x = Counter(), torch.randn(3, 4)
    compiled_model = Counter()
    compiled_model.load_state_dict(eager.state_dict())
    counter = CompileCounter()
    compiled = dynamo.compile(compiled_model, backend=counter)
    for step in range(20):
        eager.rate = compiled_model.rate = math.sqrt(step)
        assert torch.equal(compiled(x), eager(x))
        assert compiled_model.steps == eager.steps
    assert counter.frame_count <= 3  # the rate changes once, the counter once


def with_global(x: torch.Tensor, n: int) -> Any:
    return x * SCALE


def closure_of(value: list[int]) -> Callable[..., Any]:
    count = 0

    def inner(x: torch.Tensor, n: int) -> Any:
        nonlocal count
        count += 2
        return x + count, count

    return inner


def in_containers(x: torch.Tensor, n: Any) -> Any:
    first, [second, (third,)] = n
    return x * first + second - third, {"sum": first + second, "neg": -third}


# name -> (function, arguments for the i-th call)
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "int": (lambda x, n: x * n, lambda i: i),
    "from one": (lambda x, n: x * n, lambda i: i + 1),
    "negative": (lambda x, n: x * -n + abs(n), lambda i: 3 - i),
    "float": (lambda x, n: x * n, lambda i: 0.1 * i),
    "special floats": (lambda x, n: (x * n, n), lambda i: [0.0, -0.0, math.nan, math.inf][i % 4]),
    "integer tensor": (lambda x, n: (x.long() * n, x.long() + n), lambda i: 0.5 * i),
    "scalar tensor": (lambda x, n: x.sum() * n, lambda i: 0.5 * i),
    "alpha": (lambda x, n: torch.add(x, x, alpha=n).add_(x, alpha=-n), lambda i: 0.5 * i),
    "sgd": (lambda x, n: x - n * (x * 2) / (1 + n), lambda i: 0.1 / (i + 1)),
    "returned": (lambda x, n: (x + 1, n, n + 1, [n * 2, n // 2, n % 3]), lambda i: i + 2),
    "floats returned": (lambda x, n: (x + 1, n * 2.0, n / 3, float(n)), lambda i: i + 2),
    "compared": (lambda x, n: x * n if n > -1 else x, lambda i: i),
    "chain": (lambda x, n: x * n if 0 <= n < 100 and n != 50 else x, lambda i: i),
    "with none": (lambda x, n: x * n if n is not None and n != "a" else x, lambda i: i),
    "minimum": (lambda x, n: x * min(n, 1_000) + max(n, -1), lambda i: i),
    "truth": (lambda x, n: x * n if n else x, lambda i: i + 1),
    "clamp": (lambda x, n: x.clamp(min=-n, max=n), lambda i: 0.1 * i),
    "power": (lambda x, n: (x.abs() ** n, n**2), lambda i: i + 1),
    "isinstance": (lambda x, n: x * n if isinstance(n, int) else x, lambda i: i),
    "containers": (in_containers, lambda i: (i, [i + 3, (2 * i,)])),
    "where": (lambda x, n: torch.where(x > 0, x, n).masked_fill(x > 1, n), lambda i: 1.5 * i),
    "two": (lambda x, n: x * n[0] if n[0] < n[1] else x + n[1], lambda i: (i, i + 5)),
    "root": (lambda x, n: (x / n**0.5, x * math.sqrt(n), n**-0.5, math.sqrt(n + 1)), lambda i: i + 1),
    "not among": (lambda x, n: x * n if -1 not in (n, n + 1) and [n, 2 * n].count(1) == 0 else x, lambda i: i + 3),
    "floats not among": (lambda x, n: x * n if 0.0 not in (n, n + 1) else x, lambda i: i + 0.5),
    "fresh number": (lambda x, n: x.add(n).mul_(n).div(n + 1), lambda i: i + 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_compiles(name: str) -> None:
    program, argument = PROGRAMS[name]
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    x = torch.randn(3, 4)
    for call in range(12):
        n = argument(call)
        found, wanted = compiled(x.clone(), n), program(x.clone(), n)
        assert_same(found, wanted)
    assert counter.frame_count <= 2


def assert_same(found: Any, wanted: Any, tolerance: float = 0) -> None:
    """Equal bits, or tensors up to a tolerance; types included."""
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(
            found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, two in zip(found, wanted, strict=True):
            assert_same(one, two, tolerance)
    elif isinstance(wanted, dict):
        assert_same(list(found.items()), list(wanted.items()), tolerance)
    else:
        assert repr(found) == repr(wanted)


def test_globals_and_closures() -> None:
    global SCALE
    counter = CompileCounter()
    compiled = dynamo.compile(with_global, backend=counter)
    x = torch.randn(3)
    for SCALE in range(12):
        assert torch.equal(compiled(x, 0), x * SCALE)
    assert counter.frame_count <= 2
    counter.clear()
    first, second = closure_of([]), closure_of([])
    fast = dynamo.compile(first, backend=counter)
    for _ in range(12):
        assert_same(fast(x, 0), second(x, 0))
    assert counter.frame_count <= 2


# Programs that need the value: each value is compiled, and none is mistaken for another.
FIXED: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "range": (lambda x, n: [x * i for i in range(n)], lambda i: i % 4),
    "index": (lambda x, n: x * [1, 2, 3, 4][n], lambda i: i % 4),
    "text": (lambda x, n: (x + 1, f"{n:03d}"), lambda i: i % 4),
    "key": (lambda x, n: x * {0: 1, 1: 5, 2: 7, 3: 9}[n], lambda i: i % 4),
    "shift": (lambda x, n: x * (1 << n), lambda i: i % 4),
    "root": (lambda x, n: x * math.sqrt(n), lambda i: i % 4),
    "compared root": (lambda x, n: x * 2 if n**0.5 > 1.5 and math.sqrt(n) else x, lambda i: i % 6),
    "root of a negative": (lambda x, n: (x * 2, n**0.5, n**-0.5 if n else 0), lambda i: 3 - i),
    "branch": (lambda x, n: x * 2 if n > 2 else x * 3, lambda i: i % 6),
    "parity": (lambda x, n: x * 2 if n % 2 else x * 3, lambda i: i % 6),
    "sign": (lambda x, n: x / math.copysign(1.0, n), lambda i: -0.0 if i % 2 else 0.0),
    "derived": (lambda x, n: x * [1, 2, 3, 4, 5][n + 1], lambda i: i % 4),
    "divisor": (lambda x, n: (x * n, 7 // (n + 1)), lambda i: i % 4),
    "mixed types": (lambda x, n: x * n, lambda i: [1, 2, 2.5, True, 3, 0.5][i % 6]),
    "dropped": (lambda x, n: x.sum(n), lambda i: i % 2),
    "big": (lambda x, n: (x + 1, n * n), lambda i: 3 ** (i * 7)),
    "float compare": (lambda x, n: x * 2 if n > 2**53 else x * 3, lambda i: [2.0**53, 2.0**53 + 2][i % 2]),
    "big compare": (lambda x, n: x * 2 if n > 2.0**53 else x * 3, lambda i: 2**53 - 4 + i),
}


@pytest.mark.parametrize("name", FIXED)
def test_never_a_wrong_value(name: str) -> None:
    program, argument = FIXED[name]
    compiled = dynamo.compile(program, backend="eager")
    x = torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(14):
            n = argument(call)
            assert_same(compiled(x.clone(), n), program(x.clone(), n))


def test_errors_are_eagers() -> None:
    compiled = dynamo.compile(lambda x, n: (x * n, 10 // n), backend="eager")
    x = torch.randn(3)
    for n in (1, 2, 3, 0, 5, 0):
        if n:
            assert compiled(x, n)[1] == 10 // n
        else:
            with pytest.raises(ZeroDivisionError):
                compiled(x, n)


def test_switched_off() -> None:
    x = torch.randn(3)
    for options, patch in (({"dynamic": False}, {}), ({}, {"automatic_dynamic_shapes": False}),
                           ({}, {"specialize_int": True})):
        counter = CompileCounter()
        compiled = dynamo.compile(lambda x, n: x * n, backend=counter, **options)
        with dynamo.config.patch(**patch):
            for n in range(4):
                assert torch.equal(compiled(x, n), x * n)
        assert counter.frame_count == 4


def test_dynamic_from_the_start() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x, n: x * n, backend=counter, dynamic=True)
    x = torch.randn(3)
    for n in range(5):
        assert torch.equal(compiled(x, n), x * n)
    assert counter.frame_count == 1


def test_log_names_the_line(capsys: Any) -> None:
    dynamo.set_logs("dynamic")
    try:
        compiled = dynamo.compile(lambda x, n: x * math.factorial(n), backend="eager")
        for n in (2, 3):
            compiled(torch.randn(3), n)
    finally:
        dynamo.set_logs("-dynamic")
    text = capsys.readouterr().err
    assert "n is fixed to 3" in text and "test_numbers.py" in text and "factorial" in text


def test_a_number_stays_open_as_the_first_argument_of_a_function() -> None:
    def scaled(rate: float, x: torch.Tensor) -> torch.Tensor:
        return x * rate

    counter = CompileCounter("eager")
    compiled = dynamo.compile(lambda x, rate: scaled(rate, x), backend=counter)
    for step in range(6):
        assert torch.equal(compiled(torch.ones(2), 0.1 * 0.9**step), torch.ones(2) * (0.1 * 0.9**step))
    assert counter.frame_count == 2
