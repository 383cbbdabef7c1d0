"""A number that changes is an argument of the kernels: whatever it does, it is compiled twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional

import dynamo
from inductor import metrics

Program = Callable[[torch.Tensor, torch.Tensor, Any], Any]
VALUES = [0.1 + 0.029 * step for step in range(30)]
EXACT: dict[str, Program] = {
    "mul": lambda x, y, s: s * x,
    "add": lambda x, y, s: x + s,
    "sub": lambda x, y, s: s - x,
    "div": lambda x, y, s: x / s,
    "reciprocal": lambda x, y, s: s / x,
    "add alpha": lambda x, y, s: torch.add(x, y, alpha=s),
    "sub alpha": lambda x, y, s: (x + 1).sub_(y, alpha=s),
    "addcdiv": lambda x, y, s: torch.addcdiv(x, y, y.abs() + 3, value=s),
    "addcmul": lambda x, y, s: torch.addcmul(x, y, y, value=s),
    "clamp": lambda x, y, s: x.clamp(-s, s),
    "clamp at one end": lambda x, y, s: torch.clamp(x, max=s),
    "full": lambda x, y, s: torch.full((4,), s) + x[0, 0],
    "full like": lambda x, y, s: torch.full_like(x, s) + y,
    "fill": lambda x, y, s: (x + 1).fill_(s) + y,
    "lerp": lambda x, y, s: torch.lerp(x, y, s),
    "where": lambda x, y, s: torch.where(x > 0, x, s),
    "where of numbers": lambda x, y, s: torch.where(x > 0, s, 0.0),
    "compare": lambda x, y, s: x > s,
    "dropout": lambda x, y, s: functional.dropout(x, s) + y,
    "dropout alone": lambda x, y, s: functional.dropout(x, s),
    "leaky relu": lambda x, y, s: functional.leaky_relu(x, s),
    "hardtanh": lambda x, y, s: functional.hardtanh(x, -s, s),
    "threshold": lambda x, y, s: functional.threshold(x, s, 0.5),
    "tensor": lambda x, y, s: x * torch.tensor(s),
    "foreach": lambda x, y, s: torch._foreach_mul([x, y], s),
    "foreach add": lambda x, y, s: torch._foreach_add([x, y], [y, x], alpha=s),
    "int": lambda x, y, s: x * int(s * 10),
    "sqrt": lambda x, y, s: x * math.sqrt(s),
    "masked fill": lambda x, y, s: x.masked_fill(x > 0, s),
    "fmod": lambda x, y, s: torch.fmod(x, s),
    "remainder": lambda x, y, s: x % s,
    "integers": lambda x, y, s: torch.arange(24) * s + x,
    "item": lambda x, y, s: (x[0] + s) * y.sum(),
}
CLOSE: dict[str, Program] = {
    "pow": lambda x, y, s: x.abs() ** s,
    "power of": lambda x, y, s: s**x,
    "elu": lambda x, y, s: functional.elu(x, s),
    "celu": lambda x, y, s: functional.celu(x, s),
    "softplus": lambda x, y, s: functional.softplus(x, s),
    "cross entropy": lambda x, y, s: functional.cross_entropy(x, y, label_smoothing=s),
    "normalize": lambda x, y, s: functional.normalize(x, eps=s) + y,
}
IN_HALF = ("mul", "add", "sub", "add alpha", "addcmul", "clamp", "lerp", "where", "leaky relu", "tensor",
           "foreach")  # fmt: skip


def results_of(program: Program, x: torch.Tensor, y: torch.Tensor, s: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    result = program(x, y, s)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def run(program: Program, dtype: torch.dtype, values: list[Any], rtol: float) -> None:
    """Compares all values with eager; at most two compiles, and nothing runs as captured."""
    compiled, before = dynamo.compile(program), metrics.snapshot()
    dynamo.counters.clear()
    x, y = torch.randn(2, 8, 24).to(dtype)
    for value in values:
        found = results_of(compiled, x, y, value)
        wanted = results_of(program, x, y, value)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
    after = metrics.snapshot()
    assert after["graphs"] - before["graphs"] <= 3  # the second in up to two pieces
    assert after["sizes_compiled"] == before["sizes_compiled"]
    assert dynamo.counters["stats"]["frames"] <= 2
    assert not dynamo.counters["inductor"] and not sum(dynamo.counters["not_compiled"].values())


@pytest.mark.parametrize("name", EXACT)
def test_equal_to_eager(name: str) -> None:
    run(EXACT[name], torch.float32, VALUES, 0 if name != "item" else 1e-5)


@pytest.mark.parametrize("name", CLOSE)
def test_close_to_eager(name: str) -> None:
    run(CLOSE[name], torch.float32, VALUES, 2e-6)


@pytest.mark.parametrize("name", IN_HALF)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    """The first value is a constant, whose kernels do not round it before they add it."""
    values = VALUES[::4]
    run(EXACT[name], dtype, values, 0 if dtype is torch.float64 else 2e-2)


@pytest.mark.parametrize("name", ["mul", "add alpha", "addcdiv", "clamp", "lerp", "leaky relu", "where", "elu",
                                  "pow", "softplus"])  # fmt: skip
def test_gradients(name: str) -> None:
    program = (EXACT | CLOSE)[name]
    compiled, before = dynamo.compile(program), metrics.snapshot()["graphs"]
    y = torch.randn(8, 24)
    for value in VALUES[::5]:
        given = torch.randn(8, 24)
        x, other = given.clone().requires_grad_(), given.clone().requires_grad_()
        found, wanted = compiled(x, y, value), program(other, y, value)
        found.sin().sum().backward()
        wanted.sin().sum().backward()
        torch.testing.assert_close(x.grad, other.grad, rtol=1e-5, atol=1e-6)
    assert metrics.snapshot()["graphs"] - before == 4  # forward and backward


def test_special_powers() -> None:
    values = [1.7, 0.5, 2.0, -1.0, 3.0, 0.0, 1.0, -0.5, -2.0]
    x = torch.tensor([-math.inf, -2.0, -0.0, 0.0, 0.3, 2.0, math.inf, math.nan])
    program = lambda x, y, s: x**s  # noqa: E731
    compiled = dynamo.compile(program)
    for value in [1.1, *values]:
        torch.testing.assert_close(
            compiled(x, x, value), program(x, x, value), rtol=2e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["clamp", "full", "mul"])
def test_beyond_the_dtype(name: str) -> None:
    """Some operators of eager raise there."""
    compiled = dynamo.compile(EXACT[name])
    x, y = torch.randn(2, 8, 24)
    for value in (0.3, 0.4, 1e300, 0.5):
        found: list[Any] = []
        for function in (compiled, EXACT[name]):
            try:
                found.append(function(x, y, value))
            except RuntimeError as error:
                found.append(str(error).splitlines()[0])
        if isinstance(found[1], str):
            assert found[0] == found[1]
        else:
            torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, -0.0])
def test_special_numbers(special: float) -> None:
    for program in (EXACT["clamp"], EXACT["where"], EXACT["add"], EXACT["full"]):
        compiled = dynamo.compile(program)
        x, y = torch.randn(2, 8, 24)
        for value in (0.3, 0.4, special, 0.5):
            torch.testing.assert_close(
                compiled(x, y, value), program(x, y, value), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("program", [
    lambda x, y, n: x * n + n, lambda x, y, n: x.abs() ** n, lambda x, y, n: (x * 10).long() * n + n,
    lambda x, y, n: torch.full((3,), n) + x[:1, :1].long(), lambda x, y, n: x[:, :n] * n,
    lambda x, y, n: (x * 10).long().clamp(-n, n), lambda x, y, n: (x * 10).long() * (n * 0.5),
])  # fmt: skip
def test_ints(program: Program) -> None:
    run(program, torch.float32, list(range(2, 16)), 3e-7)


@pytest.mark.parametrize("kind", [numpy.float32, numpy.float64, numpy.int64])
def test_numpy_numbers(kind: Any) -> None:
    for name in ("mul", "clamp at one end", "full", "add alpha"):
        run(EXACT[name], torch.float32, [kind(1 + n * 2.5) for n in range(12)], 0)
    run(lambda x, y, s: x * float(s) + s.item(), torch.float32, [kind(n + 2) for n in range(12)], 0)


def test_tensors_without_dimensions() -> None:
    run(lambda x, y, s: x * s + y.clamp(max=s), torch.float32,
        [torch.tensor(value) for value in VALUES], 0)


def test_a_branch_guards() -> None:
    program = lambda x, y, s: x * s if s > 0.5 else x - s  # noqa: E731
    compiled = dynamo.compile(program)
    x = torch.randn(5)
    frames = dynamo.counters["stats"]["frames"]
    for value in (0.1, 0.2, 0.7, 0.3, 0.9, 0.8, 0.4):
        torch.testing.assert_close(compiled(x, x, value), program(x, x, value), rtol=0, atol=0)
    assert dynamo.counters["stats"]["frames"] - frames == 3
