"""Every row of the scalar language at many places: what a kernel computes must not depend on them.

A `Case` is an operation on operands of certain dtypes. A way puts cases into loops: into one of
their own, or one with others, or one with wider or narrower dtypes beside them, a reduction, tiles,
steps, a loop that no compiler vectorises, a loop of unknown length, or over numbers that are known
when the kernel is compiled. `differences` tells where bits are others than in a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from kernel_support import Runner
from test_math import DTYPES, INTEGERS, float_samples, integer_operands

from inductor.ir.body import Ops, Value, trace_body
from inductor.ir.extent import Sizes
from inductor.ir.scalar_ops import SCALAR_OPS, dtype_kind
from inductor.scheduler.schedule import Kernel

ROWS, COLUMNS = 64, 69
N = ROWS * COLUMNS
LENGTHS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 100, 1000)
OFFSETS = (0, 1, 3, 16, 29)
SINGLE, DOUBLE = torch.float32, torch.float64
HALVES = (torch.float16, torch.bfloat16)
NUMBERS = (0.0, -0.0, 0.5, 1.0, 2.0, -1.0, 3.0, -2.5, 0.1, 1e-40, 1e30, float("inf"), float("nan"))
SERIAL = {"lgamma", "nextafter", "fmod", "remainder", "floordiv", "truncdiv"}
AROUND_HALVES = "add mul maximum neg abs where sqrt exp cos pow copysign".split()
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Load = Callable[[Ops, str], Value]


def short(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


@dataclass(frozen=True)
class Case:
    """operands: names of buffers; compute: the value of their elements."""

    label: str
    operands: tuple[str, ...]
    compute: Callable[..., Value]
    result: torch.dtype
    serial: bool = False

    def value(self, ops: Ops, load: Load) -> Value:
        return self.compute(ops, *(load(ops, name) for name in self.operands))


class Operands(dict[str, torch.Tensor]):
    """Buffers of N elements by name: the special numbers of each dtype, and others."""

    def of(self, name: str, dtype: torch.dtype, arity: int) -> tuple[str, ...]:
        """Names of operands that an operation may have."""
        picky = ("div" in name or name in ("remainder", "fmod", "pow") or "shift" in name)
        kind = name if dtype in INTEGERS and picky else "any"
        names = tuple(f"x{n}_{kind}_{short(dtype)}" for n in range(arity))
        if not set(names) <= self.keys():
            example = name if kind == name else "fma" if dtype_kind(dtype) == "f" else "where"
            self |= dict(zip(names, self._make(example, dtype, arity), strict=True))
        return names

    def _make(self, name: str, dtype: torch.dtype, arity: int) -> list[torch.Tensor]:
        if dtype in HALVES:
            patterns = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
            return [patterns[torch.randperm(1 << 16)[:N]].view(dtype) for _ in range(arity)]
        if dtype is torch.bool:
            return [torch.rand(N) < 0.5 for _ in range(arity)]
        if dtype in INTEGERS:
            return [x[:N].clone() for x in integer_operands(name, dtype)[:arity]]
        found = [float_samples(dtype, N) for _ in range(arity)]
        for x in found[1:]:  # special numbers meet others
            x[64:] = x[64:][torch.randperm(N - 64)]
            x[:64] = x[:64][torch.randperm(64)]
        return found


def _case(operands: Operands, name: str, dtype: torch.dtype) -> Case:
    row = SCALAR_OPS[name]
    result = torch.bool if row.result == "bool" else dtype
    names = operands.of(name, dtype, row.arity)

    def compute(ops: Ops, *values: Value) -> Value:
        if name == "where":
            return ops.where(ops.lt(*values[:2]), *values[1:])
        return ops.call(name, *values)

    return Case(f"{name}_{short(dtype)}", names, compute, result, name in SERIAL or (
        name == "pow" and dtype in INTEGERS))


def cases_of(operands: Operands, dtype: torch.dtype) -> list[Case]:
    """All rows that take the dtype; some with conversions of half precision around them."""
    if dtype in HALVES:
        return [_half(operands, _case(operands, name, SINGLE), dtype) for name in AROUND_HALVES]
    found = [
        _case(operands, row.name, dtype) for row in SCALAR_OPS.values()
        if row.reference is not None and dtype_kind(dtype) in row.accepts
    ]
    (x,) = operands.of("neg", dtype, 1)
    for goal in DTYPES:
        if goal is not dtype:
            label = f"{short(dtype)}_to_{short(goal)}"
            found.append(Case(label, (x,), lambda ops, v, g=goal: ops.to_dtype(v, g), goal))
        if dtype_kind(dtype) != "b" and dtype_kind(goal) != "b" and goal.itemsize == dtype.itemsize:
            label = f"{short(dtype)}_as_{short(goal)}"
            found.append(Case(label, (x,), lambda ops, v, g=goal: ops.bitcast(v, g), goal))
    return found


def _half(operands: Operands, case: Case, dtype: torch.dtype) -> Case:
    def compute(ops: Ops, *values: Value) -> Value:
        return ops.to_dtype(case.compute(ops, *(ops.to_dtype(v, SINGLE) for v in values)), dtype)

    names = operands.of(case.label, dtype, len(case.operands))
    label = case.label.replace("float32", short(dtype))
    return Case(label, names, compute, dtype, case.serial)


class Ways:
    """Kernels over cases; each has `out_LABEL` for what it computes."""

    def __init__(self, operands: Operands, cases: Sequence[Case], kind: str) -> None:
        self.operands, self.cases, self.kind = operands, list(cases), kind
        self.beside = {name: operands.of("neg", t, 1)[0] for name, t in
                       (("f64", DOUBLE), ("i8", torch.int8))}

    def _load(self, place) -> Load:
        return lambda ops, name: ops.load(name, place, self.operands[name].dtype)

    def _store(self, ops: Ops, case: Case, place, load: Load) -> Value:
        value = case.value(ops, load)
        ops.store(f"out_{case.label}", place, value)
        return value

    def _each(self, name: str, ranges, reduced, body, cases=None) -> Kernel:
        """A stage for each case."""
        stages = [
            trace_body(ranges, reduced, lambda ops, i, r, c=case: body(ops, c, i, r))
            for case in (self.cases if cases is None else cases)
        ]
        return Kernel(f"{name}_{self.kind}", (), tuple(stages))

    def alone(self, length=N, name: str = "alone") -> Kernel:
        return self._each(name, (length,), (), lambda ops, case, i, r: self._store(
            ops, case, i[0], self._load(i[0])))

    def of_any_length(self) -> Kernel:
        return self.alone(Sizes().symbol(hint=1000, low=1), "any")

    def with_other_widths(self) -> Kernel:
        def body(ops, case, i, r):
            self._store(ops, case, i[0], self._load(i[0]))
            wide = ops.load(self.beside["f64"], i[0], DOUBLE)
            ops.store("beside_f64", i[0], ops.log(wide))
            narrow = ops.load(self.beside["i8"], i[0], torch.int8)
            ops.store("beside_i8", i[0], ops.add(narrow, narrow))

        return self._each("widths", (N,), (), body)

    def together(self, serial: bool) -> Kernel:
        """All in one loop; serial: with operations that no compiler vectorises."""
        def body(ops, i, r):
            for case in self.cases:
                if serial or not case.serial:
                    self._store(ops, case, i[0], self._load(i[0]))
            if serial:
                wide = ops.load(self.beside["f64"], i[0], DOUBLE)
                ops.store("beside_f64", i[0], ops.lgamma(wide))

        name = "serial" if serial else "fused"
        return Kernel(f"{name}_{self.kind}", (), (trace_body((N,), (), body),))

    def reduced(self, inner: bool) -> Kernel:
        """As what a reduction reduces, along rows or columns."""
        def body(ops, case, i, r):
            place = i[0] * COLUMNS + r[0] if inner else r[0] * COLUMNS + i[0]
            value = self._store(ops, case, place, self._load(place))
            if value.dtype not in HALVES:
                most = ops.reduction("max", value)
                ops.store(f"most_{case.label}", i[0], most)

        sizes = ((ROWS,), (COLUMNS,)) if inner else ((COLUMNS,), (ROWS,))
        return self._each("rows" if inner else "columns", *sizes, body)

    def turned(self) -> Kernel:
        """Read along one loop and written along the other; `out` is transposed."""
        def body(ops, case, i, r):
            self._store(ops, case, i[0] * ROWS + i[1], self._load(i[1] * COLUMNS + i[0]))

        return self._each("turned", (COLUMNS, ROWS), (), body)

    def stepped(self) -> Kernel:
        """Every third element, from the second on."""
        return self._each("stepped", (N // 3,), (), lambda ops, case, i, r: self._store(
            ops, case, i[0], self._load(i[0] * 3 + 1)))

    def of_numbers(self, known: bool) -> Kernel:
        """The last operand is a number: for each one as many elements as there are numbers; known:
        when the kernel is compiled."""
        def body(ops, case, i, r):
            *_, last = case.operands
            dtype = self.operands[last].dtype
            for n, number in enumerate(NUMBERS):
                def load(ops, name, n=n, number=number):
                    if name != last:
                        return ops.load(name, i[0], dtype)
                    if known:
                        return ops.constant(number, dtype)
                    return ops.load(f"numbers_{short(dtype)}", i[0] * 0 + n, dtype)
                self._store(ops, case, i[0] + n * 64, load)

        floats = [c for c in self.cases if self.operands[c.operands[0]].dtype.is_floating_point
                  and c.result.is_floating_point]
        return self._each("known" if known else "numbers", (64,), (), body, floats)

    def storages(self) -> dict[str, torch.Tensor]:
        """All buffers of all kernels, outputs fresh."""
        found = dict(self.operands)
        for case in self.cases:
            found[f"out_{case.label}"] = torch.zeros(N, dtype=case.result)
            found[f"most_{case.label}"] = torch.zeros(COLUMNS, dtype=case.result)
        found |= {"beside_f64": torch.zeros(N, dtype=DOUBLE), "beside_i8": torch.zeros(N, dtype=torch.int8)}
        found |= {f"numbers_{short(t)}": torch.tensor(NUMBERS, dtype=t)
                  for t in (SINGLE, DOUBLE, *HALVES)}
        return found


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(BITS[x.dtype.itemsize])


def differ(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where the bits differ; any NaN is as good as another."""
    other = bits(got) != bits(want)
    return other & ~(got.isnan() & want.isnan()) if got.dtype.is_floating_point else other


class Comparison:
    """Runs kernels and notes which cases differ."""

    def __init__(self, ways: Ways, runner: Runner, names: Sequence[str]) -> None:
        self.ways = ways
        self.kernels = {name: MAKERS[name](ways) for name in names}
        self.kernels = {name: k for name, k in self.kernels.items() if k.stages}
        storages = ways.storages()
        runs = runner.compile_all([(k, storages) for k in self.kernels.values()], threads=1)
        self.runs = dict(zip(self.kernels, runs, strict=True))
        self.found: list[str] = []

    def differences(self) -> list[str]:
        """One line for each case and way with other bits."""
        want = self._outputs("alone")
        if "numbers" in self.runs:
            self._compare("known", self._outputs("known"), self._outputs("numbers"))
        for name in self.runs.keys() - {"alone", "any", "known", "numbers"}:
            got = self._outputs(name)
            if name == "turned":
                got = {k: v.view(COLUMNS, ROWS).t().reshape(-1) for k, v in got.items()}
            expected = {k: v[1::3] for k, v in want.items()} if name == "stepped" else want
            self._compare(name, got, expected)
        if "any" in self.runs:
            for offset in OFFSETS:
                for length in LENGTHS:
                    self._compare_part(want, offset, length)
        return self.found

    def _outputs(self, name: str, offset: int = 0, *sizes: int) -> dict[str, torch.Tensor]:
        storages = self.ways.storages()
        self.runs[name]({k: v[offset:] for k, v in storages.items()}, *sizes)
        written = set(self.kernels[name].writes())
        return {k: v[offset:] for k, v in storages.items() if k in written and k[:4] == "out_"}

    def _compare_part(self, want: dict[str, torch.Tensor], offset: int, length: int) -> None:
        got = self._outputs("any", offset, length)
        part = {k: v[offset : offset + length] for k, v in want.items()}
        self._compare(f"any length, {length} from {offset}", {k: v[:length] for k, v in got.items()}, part)

    def _compare(self, name: str, got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
        operands = self.ways.operands
        for case in self.ways.cases:
            key = f"out_{case.label}"
            if key not in got:
                continue
            expected = want[key][: len(got[key])]
            wrong = differ(got[key][: len(expected)], expected).nonzero().flatten()
            if len(wrong):
                at = int(wrong[0])
                values = [operands[n][at].item() for n in case.operands]
                self.found.append(f"{case.label}, {name}: {len(wrong)} of {len(expected)}, first at "
                                  f"{at} {values}: {got[key][at]!r} for {expected[at]!r}")


MAKERS: dict[str, Callable[[Ways], Kernel]] = {
    "alone": Ways.alone,
    "any": Ways.of_any_length,
    "widths": Ways.with_other_widths,
    "serial": lambda ways: ways.together(serial=True),
    "fused": lambda ways: ways.together(serial=False),
    "rows": lambda ways: ways.reduced(inner=True),
    "columns": lambda ways: ways.reduced(inner=False),
    "turned": Ways.turned,
    "stepped": Ways.stepped,
    "known": lambda ways: ways.of_numbers(known=True),
    "numbers": lambda ways: ways.of_numbers(known=False),
}
