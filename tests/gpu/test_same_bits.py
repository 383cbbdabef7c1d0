"""One operation, one set of bits: each row of the scalar language alone, among others, in reductions, at other places.

A program for each way; in that of `alone` each operation has a size, and so a kernel, of its own. What is compared
are the bits of the results, any NaN for any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

import dynamo
from inductor.ir.scalar_ops import SCALAR_OPS, dtype_kind
from tests.gpu.support import DEVICE

ROWS, COLUMNS = 96, 101
N = ROWS * COLUMNS
PARTS = ((0, 1), (1, 7), (3, 33), (5, 1000))  # offsets and lengths
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32)
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
OTHERWISE: dict[str, Callable[..., torch.Tensor]] = {
    "where": lambda a, b, c: torch.where(a < b, b, c),
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    "shift_left": lambda a, b: torch.bitwise_left_shift(a, b & 7),
    "shift_right": lambda a, b: torch.bitwise_right_shift(a, b & 7),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
Results = dict[str, torch.Tensor]


def functions_of(dtype: torch.dtype) -> dict[str, Callable[..., torch.Tensor]]:
    kind = dtype_kind(dtype)
    left = {"pow"} if kind == "i" else set()  # of negative numbers: eager refuses
    return {
        row.name: OTHERWISE.get(row.name, row.reference) for row in SCALAR_OPS.values()
        if row.reference is not None and kind in row.accepts and row.name not in left
    }


def operands_of(dtype: torch.dtype) -> list[torch.Tensor]:
    """Three tensors: special numbers, any bits, and numbers of usual size.

    NaNs are positive: a conversion on the GPU may lose the sign of one, which `copysign` takes.
    """
    torch.manual_seed(7)
    if not dtype.is_floating_point:
        found = [torch.randint(-1000, 1000, (N,), dtype=dtype) for _ in range(3)]
        return [torch.where(x == 0, 3, x).to(DEVICE) for x in found]
    f = torch.finfo(dtype)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 0.5, -2.5, f.tiny, f.tiny / 4, f.max,
                            -f.max, 88.5, -103.9, math.pi, 1e4, 0.1], dtype=torch.float64).to(dtype)
    raw = BITS[dtype.itemsize]
    found = []
    for _ in range(3):
        wild = torch.randint(torch.iinfo(raw).min, torch.iinfo(raw).max, (N // 2,), dtype=raw).view(dtype)
        usual = (torch.randn(N - N // 2, dtype=torch.float64) * 2).to(dtype)
        x = torch.cat([wild, usual])[torch.randperm(N)]
        x[:500] = special[torch.randint(len(special), (500,))]
        found.append(torch.where(x.isnan(), math.nan, x).to(DEVICE))
    return found


def arity(name: str) -> int:
    return SCALAR_OPS[name].arity


def programs(functions: dict[str, Callable[..., torch.Tensor]]) -> dict[str, Callable[..., Results]]:
    """Each takes the three operands and gives results by name."""

    def together(*xs: torch.Tensor) -> Results:
        return {name: f(*xs[: arity(name)]) for name, f in functions.items()}

    def alone(*xs: torch.Tensor) -> Results:
        return {name: f(*(x[: N - n] for x in xs[: arity(name)])) for n, (name, f) in enumerate(functions.items())}

    def reduced(*xs: torch.Tensor) -> Results:
        found = {}
        for name, f in functions.items():
            v = f(*(x.view(ROWS, COLUMNS) for x in xs[: arity(name)]))
            found[name], found[f"most {name}"] = v, v.amax(1)
        return found

    def turned(*xs: torch.Tensor) -> Results:
        return {name: f(*(x.view(ROWS, COLUMNS).t() for x in xs[: arity(name)])).t().contiguous()
                for name, f in functions.items()}

    def among(*xs: torch.Tensor) -> Results:
        """With arithmetic behind it, which a compiler might contract, and with another use."""
        found = {}
        for name, f in functions.items():
            v = f(*xs[: arity(name)])
            found[name], found[f"more {name}"] = v, v * xs[1] + xs[2] if v.dtype is not torch.bool else ~v
            found[f"bent {name}"] = (v.float().cos() * 2).sin()
        return found

    return {"alone": alone, "together": together, "reduced": reduced, "turned": turned, "among": among}


def other_bits(got: torch.Tensor, want: torch.Tensor) -> int:
    """How many elements differ."""
    got, want = got.reshape(-1)[: want.numel()], want.reshape(-1)[: got.numel()]
    raw = BITS[got.dtype.itemsize]
    wrong = got.contiguous().view(raw) != want.contiguous().view(raw)
    if got.dtype.is_floating_point:
        wrong &= ~(got.isnan() & want.isnan())
    return int(wrong.sum())


def differences(dtype: torch.dtype) -> Iterator[str]:
    """A line for each operation and way with other bits than alone."""
    functions, xs = functions_of(dtype), operands_of(dtype)
    made = programs(functions)
    want = dynamo.compile(made["alone"], dynamic=False)(*xs)
    for way, program in list(made.items())[1:]:
        found = dynamo.compile(program, dynamic=False)(*xs)
        for name in functions:
            if count := other_bits(found[name], want[name]):
                yield f"{name} of {dtype}, {way}: {count} of {N}"
    anywhere = dynamo.compile(made["together"], dynamic=True)
    for start, length in PARTS:
        found = anywhere(*(x[start : start + length] for x in xs))
        for name in functions:
            part = want[name][start : start + length]
            if count := other_bits(found[name], part):
                yield f"{name} of {dtype}, {length} from {start}: {count}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_places(dtype: torch.dtype) -> None:
    found = list(differences(dtype))
    assert not found, "\n".join(found)


def test_nothing_is_contracted() -> None:
    x, y, z = operands_of(torch.float32)

    def program(x, y, z):
        return x * y, x * y + z, x * y - z, z - x * y, (x + y) * z, x / y + z, (x * y).abs() * z

    for got, want in zip(dynamo.compile(program)(x, y, z), program(x, y, z), strict=True):
        assert not other_bits(got, want)
