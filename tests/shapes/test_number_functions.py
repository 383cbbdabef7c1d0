"""Functions of sizes and numbers that change: eager's results over ten sizes, and few compiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter
from tests.shapes.test_numbers import assert_same

SIZES = (4, 7, 9, 12, 5, 16, 33, 2, 100, 8)
Program = Callable[[torch.Tensor], Any]


def halves(x: torch.Tensor) -> Any:
    if x.shape[0] % 2 == 0:
        return x * 2
    return x * 3


def loop(x: torch.Tensor) -> Any:
    for i in range(x.shape[0]):
        x = x + i
    return x


def unpacked(x: torch.Tensor) -> Any:
    a, *rest = x.shape
    return x.reshape(-1, *rest) * a, x.view(a, 2, -1)


def padded(x: torch.Tensor) -> Any:
    count = (8 - x.shape[0] % 8) % 8
    return torch.nn.functional.pad(x, (0, 0, 0, count))


# One compile for the first size, one for all others.
TWICE: dict[str, Program] = {
    "floor": lambda x: x * math.floor(x.shape[0] / 3),
    "ceil": lambda x: x[: math.ceil(x.shape[0] / 2)],
    "trunc": lambda x: x * math.trunc(x.shape[0] / 3),
    "floor of a product": lambda x: x[: math.floor(x.shape[0] * 0.7) + 1] * 2,
    "ceil of a product": lambda x: x.new_zeros(math.ceil(x.shape[0] * 1.3)),
    "int of a float": lambda x: x.new_zeros(int(x.shape[0] * 1.5)) + 1,
    "int of a quotient": lambda x: x[: int(x.shape[0] / 2) + 1],
    "negative int of a float": lambda x: x * int(x.shape[0] * -0.3),
    "int of a root": lambda x: x * math.sqrt(x.shape[0]),
    "log": lambda x: x * math.log(x.shape[0]) + math.log2(x.shape[0]) - math.log10(x.shape[0]),
    "exp": lambda x: x * math.exp(-x.shape[0]) + math.sin(x.shape[0]),
    "round": lambda x: x * round(x.shape[0] / 4),
    "min": lambda x: x[: min(x.shape[0], 3)],
    "max": lambda x: x.new_zeros(max(x.shape[0], 8)),
    "min of three": lambda x: x * min(x.shape[0], x.shape[1], 50),
    "abs": lambda x: x * abs(4 - x.shape[0]),
    "floor division": lambda x: x[: x.shape[0] // 2],
    "ceil division": lambda x: x.new_zeros(-(-x.shape[0] // 4)),
    "remainder": lambda x: x * (x.shape[0] % 4),
    "divmod": lambda x: [x * part for part in divmod(x.shape[0], 3)],
    "power": lambda x: x * x.shape[0] ** 2 * x.shape[0] ** -0.5,
    "powers of math": lambda x: x * math.pow(0.9, x.shape[0]) + math.pow(x.shape[0], -0.5) - math.pow(x.shape[0], 2),
    "distance": lambda x: x * math.fabs(x.shape[0] - 5.5) + math.fabs(-x.shape[0]),
    "powers of constants": lambda x: x * 0.9 ** x.shape[0] + 1.5 ** -x.shape[0],
    "shifts": lambda x: x * (x.shape[0] << 1) * (x.shape[0] >> 1),
    "numel": lambda x: x / x.numel(),
    "len": lambda x: x * len(x),
    "unpacked": unpacked,
    "methods of Size": lambda x: (x * x.shape.numel(), x.shape.index(6), x.shape.count(6)),
    "parts of Size": lambda x: x.new_zeros(x.shape[1:] + x.shape[:1]),
    "Size as a value": lambda x: (x + 1, x.shape, tuple(x.shape), torch.Size([len(x), 2])),
    "comparison of Size": lambda x: x + 1 if (x * 2).shape == x.shape else x,
    "prod and sum": lambda x: x * math.prod(x.shape) + sum(x.shape),
    "view": lambda x: x.view(x.shape[0], 3, -1),
    "chained comparison": lambda x: x + 1 if 2 <= x.shape[0] < 200 else x,
    "range of a tensor": lambda x: torch.arange(0, x.shape[0], 2),
    "last row": lambda x: (x[x.shape[0] - 1], x[-x.shape[0]], x[len(x) // 2, 1]),
    "rotation": lambda x: torch.cat([x[x.shape[0] // 2:], x[: x.shape[0] // 2]]),
    "padding": padded,
    "float": lambda x: x * float(x.shape[0]) + x.shape[0] * 0.1,
    "logarithmic size": lambda x: x[: int(math.log2(x.shape[0]))],
    "membership": lambda x: x + 1 if x.shape[0] in {3: 1, 500: 2} else x * 2,
    "comparison of a curve": lambda x: x + 1 if math.cos(x.shape[0]) < 1.5 else x,
    "division by a curve": lambda x: x / (2 + math.sin(x.shape[0])) * math.isfinite(len(x) / 3),
    "isinstance": lambda x: x + 1 if isinstance(x.shape[0], int) else x,
}
# Programs with two or three ways: one compile for each way besides.
WAYS: dict[str, tuple[Program, int]] = {
    "halves": (halves, 3),
    "largest of floats": (
        lambda x: x * max(1.5, x.shape[0] / 4, 1.75) - min(0.5, x.shape[0]), 4),
    "list index": (lambda x: [10, 20, 30][x.shape[0] % 3] * x, 4),
    "float comparison": (lambda x: x + 1 if x.shape[0] / 3 > 2.5 else x * 2, 3),
    "rounded comparison": (lambda x: x + 1 if math.floor(x.shape[0] * 0.3) > 2 else x * 2, 3),
}
# Programs that need the size itself.
FIXED: dict[str, Program] = {
    "range": loop,
    "key": lambda x: x * {x.shape[0]: 3}[x.shape[0]],
    "gcd": lambda x: x * math.gcd(x.shape[0], 6) * math.isqrt(x.shape[0]),
    "digits": lambda x: x * round(x.shape[0] / 3, 2),
    "bits": lambda x: x * (x.shape[0] & 3),
    "hash": lambda x: x + hash(x.shape[0]),
}


def compiles(program: Program, dynamic: bool | None = None) -> int:
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter, dynamic=dynamic)
    for size in SIZES:
        x = torch.randn(size, 6)
        assert_same(compiled(x), program(x))
    return counter.frame_count


@pytest.mark.parametrize("name", TWICE)
def test_two_compiles(name: str) -> None:
    assert compiles(TWICE[name]) <= 2
    assert compiles(TWICE[name], dynamic=True) == 1


@pytest.mark.parametrize("name", WAYS)
def test_one_compile_for_each_way(name: str) -> None:
    program, most = WAYS[name]
    assert compiles(program) <= most


@pytest.mark.parametrize("name", FIXED)
def test_fixed(name: str) -> None:
    assert compiles(FIXED[name]) == dynamo.config.recompile_limit


def test_division_by_negative_numbers() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        sizes = (n // 2) // -2, (n >> 1) % -3, -(n // -4) % 7, divmod(n, -5), math.floor(n / -2)
        return [x.new_zeros(abs(size)) for size in sizes if type(size) is int], sizes, n // -x.shape[0]

    compiled = dynamo.compile(program, backend="eager")
    for n in (3, 8, 5, 2, 0, 1, -3, -8, 40, -7, 13):
        x = torch.randn(4)
        assert_same(compiled(x, n), program(x, n))


@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_numbers(seed: int) -> None:
    def program(x: torch.Tensor, f: float, n: int) -> Any:
        return (x * math.floor(f * n), x * math.ceil(f / 3), x + int(f * 10), x * round(f), n // 3,
                x[: int(abs(f))], divmod(n, 7), max(n, 2), int(n / 7), math.ceil(n / -3))

    compiled = dynamo.compile(program, backend="eager")
    generator = torch.Generator().manual_seed(seed)
    for step in range(12):
        f = float(torch.randn((), generator=generator)) * 10**(step % 4)
        if step % 3 == 0:
            f = math.floor(f) + 0.5
        x, n = torch.randn(5), int(torch.randint(-50, 50, (), generator=generator))
        assert_same(compiled(x, f, n), program(x, f, n))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -0.0, 2.0**53 + 2])
def test_special_floats(value: float) -> None:
    def program(x: torch.Tensor, f: float) -> Any:
        try:
            return x * math.floor(f), int(f), math.exp(f)
        except (ValueError, OverflowError) as error:
            return x, str(error)

    compiled = dynamo.compile(program, backend="eager")
    for f in (0.5, 1.7, value, 3.2):
        assert_same(compiled(torch.ones(2), f), program(torch.ones(2), f))
