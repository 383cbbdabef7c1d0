"""Every scalar operation of the prelude against torch in float64, over all magnitudes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kernel_support import Runner

from inductor.codegen.cpp.prelude import PARTS
from inductor.ir.body import trace_body
from inductor.ir.index import print_cpp, variable
from inductor.ir.scalar_ops import SCALAR_OPS, dtype_kind
from inductor.scheduler.schedule import Kernel

N = 20000
ULPS = {  # of float32 results; 2 where nothing else is said
    "sin": 0.602, "cos": 0.602, "tan": 4, "asin": 3, "acos": 3, "atan": 3, "sinh": 4, "cosh": 4,
    "asinh": 4, "acosh": 4, "atanh": 4, "lgamma": 8, "pow": 0.502, "atan2": 4, "hypot": 2, "sigmoid": 2.5,
}  # fmt: skip
DOUBLE_ULPS = 8
FLOAT_OPS = [
    op.name for op in SCALAR_OPS.values()
    if op.reference is not None and "f" in op.accepts and op.name != "where"
]  # fmt: skip
INTEGER_OPS = [
    op.name for op in SCALAR_OPS.values()
    if op.reference is not None and "i" in op.accepts and op.name != "where"
]  # fmt: skip
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def kernel_of(name: str, dtype: torch.dtype, count: int = N) -> Kernel:
    row = SCALAR_OPS[name]

    def body(ops, i, r):
        values = [ops.load(f"x{n}", i[0], dtype) for n in range(row.arity)]
        ops.store("out", i[0], ops.call(name, *values))

    kind = str(dtype).split(".")[1]
    return Kernel(f"apply_{name}_{kind}", (), (trace_body((count,), (), body),))


def storages_of(name: str, dtype: torch.dtype, operands: list[torch.Tensor]):
    out = torch.bool if SCALAR_OPS[name].result == "bool" else dtype
    found = {f"x{n}": x for n, x in enumerate(operands)}
    return found | {"out": torch.zeros(len(operands[0]), dtype=out)}


def float_samples(dtype: torch.dtype, count: int = N) -> torch.Tensor:
    """Bit patterns at random, numbers of usual size, and the special ones."""
    bits = torch.int32 if dtype is torch.float32 else torch.int64
    info = torch.iinfo(bits)
    wild = torch.randint(info.min, info.max, (count // 2,), dtype=bits).view(dtype)
    usual = torch.randn(count // 4, dtype=dtype) * 3
    unit = torch.rand(count - count // 2 - count // 4, dtype=dtype) * 2 - 1
    x = torch.cat([wild, usual, unit])[torch.randperm(count)]
    f = torch.finfo(dtype)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 2,
               f.tiny, -f.tiny, f.smallest_normal / 8, f.max, -f.max, 88.7, -88.7, 89, -103.9,
               -104, 127.5, 128, -149, -150, 0.93, 4.05, 10.06, 3.9, 0.6, math.pi]  # fmt: skip
    x[: len(special)] = torch.tensor(special, dtype=dtype)
    return x


def apply_reference(name: str, operands: list[torch.Tensor]) -> torch.Tensor:
    if name == "sigmoid":  # torch's own is 0 where exp overflows
        (x,) = operands
        e = torch.exp(-x.abs())
        return torch.where(x >= 0, 1, e) / (1 + e)
    want = SCALAR_OPS[name].reference(*operands)
    if name in ("fmod", "remainder", "floordiv"):  # torch's vector form gives up early
        a, b = (x.numpy() for x in operands)
        exact = {"fmod": np.fmod, "remainder": np.remainder, "floordiv": np.floor_divide}[name]
        with np.errstate(all="ignore"):
            want = torch.where(want.isnan(), torch.from_numpy(exact(a, b)), want)
    return want


def ulps(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance in units of the last place of `want`; nan and infinities have to be equal."""
    info = torch.finfo(dtype)
    got = got.double()
    rounded = want.to(dtype).double()
    exponent = torch.frexp(want.abs().clamp(min=info.smallest_normal)).exponent - 1
    unit = torch.ldexp(torch.full_like(want, info.eps, dtype=torch.float64), exponent)
    distance = ((got - want) / unit).abs()
    same = (got == rounded) | (got.isnan() & rounded.isnan())
    distance[same] = torch.clamp(distance[same], max=0.5).nan_to_num(0.0)
    close_to_limit = rounded.isinf() & ~want.isinf() & (got.abs() >= info.max * 0.999999)
    distance[close_to_limit] = 0
    return distance.nan_to_num(math.inf)


@pytest.fixture(scope="module")
def compiled(runner: Runner):
    """All operations for floats, in one library."""
    keys = [(name, dtype) for name in FLOAT_OPS for dtype in (torch.float32, torch.float64)]
    pairs = []
    for name, dtype in keys:
        operands = [torch.zeros(N, dtype=dtype)] * SCALAR_OPS[name].arity
        pairs.append((kernel_of(name, dtype), storages_of(name, dtype, operands)))
    return dict(zip(keys, runner.compile_all(pairs)))


@pytest.mark.parametrize("name", FLOAT_OPS)
def test_float32(compiled, name: str) -> None:
    operands = [float_samples(torch.float32) for _ in range(SCALAR_OPS[name].arity)]
    storages = storages_of(name, torch.float32, operands)
    compiled[name, torch.float32](storages)
    got = storages["out"]
    if got.dtype is torch.bool or name in ("nextafter", "floordiv", "remainder", "fmod"):
        want = apply_reference(name, operands)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        return
    want = apply_reference(name, [x.double() for x in operands])
    distance = ulps(got, want, torch.float32)
    worst = int(distance.argmax())
    values = [float(x[worst]) for x in operands]
    assert distance[worst] <= ULPS.get(name, 2), (
        f"{name}{values}: got {float(got[worst])!r}, want {float(want[worst])!r}, "
        f"{float(distance[worst])} ulp"
    )
    if name in ("neg", "abs", "trunc", "round", "tanh", "erf", "expm1", "log1p", "sqrt", "sin"):
        zeros = got[:2]
        assert torch.equal(zeros.signbit(), apply_reference(name, [operands[0][:2]]).signbit())


@pytest.mark.parametrize("name", FLOAT_OPS)
def test_float64(compiled, name: str) -> None:
    operands = [float_samples(torch.float64) for _ in range(SCALAR_OPS[name].arity)]
    storages = storages_of(name, torch.float64, operands)
    compiled[name, torch.float64](storages)
    got = storages["out"]
    want = apply_reference(name, operands)
    if got.dtype is torch.bool or name in ("nextafter", "floordiv", "remainder", "fmod"):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        return
    distance = ulps(got, want, torch.float64)
    worst = int(distance.argmax())
    values = [float(x[worst]) for x in operands]
    assert distance[worst] <= (300 if name == "lgamma" else DOUBLE_ULPS), (
        f"{name}{values}: got {float(got[worst])!r}, want {float(want[worst])!r}"
    )


def integer_operands(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    info = torch.iinfo(dtype)
    operands = []
    for n in range(SCALAR_OPS[name].arity):
        wild = torch.randint(info.min, info.max, (N,), dtype=torch.int64).to(dtype)
        small = torch.randint(-9 if info.min else 0, 10, (N,), dtype=dtype)
        x = torch.where(torch.rand(N) < 0.5, wild, small)
        x[0], x[1] = info.min, info.max
        if n == 1 and ("div" in name or name in ("remainder", "fmod")):
            x[x == 0] = 3
            # torch itself traps or differs there
            operands[0][(x == -1) & (operands[0] == info.min)] = 7
        if n == 1 and "shift" in name:
            x = torch.randint(0, 70, (N,), dtype=dtype) if "left" in name else x.abs() % 64
        operands.append(x)
    if name == "pow":
        base, power = operands[0], torch.randint(-3 if info.min else 0, 9, (N,), dtype=dtype)
        base[power < 0] = base[power < 0].clamp(-3, 3)
        base[(power < 0) & (base == 0)] = 2
        operands[1] = power
    return operands


def integer_power(base: torch.Tensor, power: torch.Tensor) -> torch.Tensor:
    info, span = torch.iinfo(base.dtype), 1 << torch.iinfo(base.dtype).bits
    exact = [
        b**p if p >= 0 else {1: 1, -1: (-1) ** (p % 2)}.get(b, 0)
        for b, p in zip(base.tolist(), power.tolist())
    ]
    return torch.tensor([(e - info.min) % span + info.min for e in exact], dtype=base.dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("slow", [False, True])
def test_integers(runner: Runner, dtype: torch.dtype, slow: bool) -> None:
    """All operations in one loop; those that are not vectorised apart from the others."""
    scalar = ("floordiv", "truncdiv", "remainder", "fmod", "pow", "shift_left", "shift_right")
    names = [name for name in INTEGER_OPS if (name in scalar) == slow]
    storages, want = {}, {}
    for name in names:
        operands = integer_operands(name, dtype)
        storages.update({f"{name}{n}": x for n, x in enumerate(operands)})
        want[name] = integer_power(*operands) if name == "pow" else apply_reference(name, operands)
        storages[f"{name}_out"] = torch.zeros_like(want[name])

    def body(ops, i, r):
        for name in names:
            values = [ops.load(f"{name}{n}", i[0], dtype) for n in range(SCALAR_OPS[name].arity)]
            ops.store(f"{name}_out", i[0], ops.call(name, *values))

    runner.compile(Kernel("integers", (), (trace_body((N,), (), body),)), storages)(storages)
    for name in names:
        wrong = (storages[f"{name}_out"] != want[name]).nonzero().flatten()[:1]
        operands = [storages[f"{name}{n}"][wrong] for n in range(SCALAR_OPS[name].arity)]
        assert not len(wrong), f"{name}({operands}): {storages[f'{name}_out'][wrong]}"


DTYPES = (*INTEGERS, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions(runner: Runner, source: torch.dtype) -> None:
    """To all dtypes, all bit patterns of half precision, values that have a meaning."""
    x = _samples_to_convert(source)
    targets = {str(t).split(".")[1]: t for t in DTYPES if t is not source}
    storages = {}
    for name, target in targets.items():
        storages[f"from_{name}"] = _inside(x, target)
        storages[f"to_{name}"] = torch.zeros(len(x), dtype=target)

    def body(ops, i, r):
        for name, target in targets.items():
            value = ops.to_dtype(ops.load(f"from_{name}", i[0], source), target)
            ops.store(f"to_{name}", i[0], value)

    runner.compile(Kernel("convert", (), (trace_body((len(x),), (), body),)), storages)(storages)
    for name, target in targets.items():
        given, got = storages[f"from_{name}"], storages[f"to_{name}"]
        want = given.to(target)
        same = (got == want) | ((got != got) & (want != want))
        wrong = (~same).nonzero().flatten()[:3]
        assert not len(wrong), (name, given[wrong], got[wrong], want[wrong])


def _inside(x: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Floats that fit into an integer type."""
    if not x.dtype.is_floating_point or target.is_floating_point or target is torch.bool:
        return x
    info = torch.iinfo(target)
    low, high = max(info.min, -(2**24)), min(info.max, 2**24)
    inside = x.double().nan_to_num(1, 2, 3).clamp(low, high).to(x.dtype)
    return torch.where(inside.double() > info.max, torch.ones_like(inside), inside)


def _samples_to_convert(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(1 << 10) < 0.5
    if dtype in (torch.float16, torch.bfloat16):
        return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    if dtype.is_floating_point:
        x = float_samples(dtype)
        x[: N // 4] *= 1e-6  # small ones for float16
        halves = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16).to(dtype)
        between = (halves[1:] + halves[:-1]) / 2  # ties
        return torch.cat([x, between])
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (5000,), dtype=dtype)
    x[0], x[1] = info.min, info.max
    return x


def test_bitcast(runner: Runner) -> None:
    def body(ops, i, r):
        ops.store("out", i[0], ops.bitcast(ops.load("x", i[0], torch.float32), torch.int32))
        half = ops.bitcast(ops.load("h", i[0], torch.bfloat16), torch.int16)
        ops.store("out2", i[0], half)

    x, h = float_samples(torch.float32, 1000), torch.randn(1000).bfloat16()
    storages = {"x": x, "h": h, "out": torch.zeros(1000, dtype=torch.int32)}
    storages["out2"] = torch.zeros(1000, dtype=torch.int16)
    runner.compile(Kernel("cast", (), (trace_body((1000,), (), body),)), storages)(storages)
    assert torch.equal(storages["out"], x.view(torch.int32))
    assert torch.equal(storages["out2"], h.view(torch.int16))


def test_every_spelled_function_exists() -> None:
    spelled = " ".join(op.cpp for op in SCALAR_OPS.values())
    index = variable("i0", 9) - 4
    spelled += print_cpp(index) + " k_floordiv_index k_mod_index"
    names = {word.split("(")[0].split("<")[0] for word in spelled.split() if word.startswith("k_")}
    assert names and all(name in PARTS for name in names), names - PARTS.keys()
    assert all("f" in dtype_kind(t) for t in (torch.float32, torch.bfloat16))
