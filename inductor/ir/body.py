"""`LoopBody`: the inside of a loop nest as a flat list of scalar operations.

In: a Python function of loop indices (see `trace_body`). Out: a frozen record which printers,
analyses and the interpreter read. Grammar:

    LoopBody := ranges reduction_ranges Op*
    Op       := name args dtype [buffer] [index] [imm]     args are positions of earlier ops

Loop variables: i0 .. over `ranges`, r0 .. over `reduction_ranges`; a range of 1 has no variable
(its index is the constant 0). There are no regions: `masked` becomes loads with a mask operand,
which read nothing where the mask is false, and a `where`. An op that depends on an r variable
(through its index or its operands) is inside of the reduction loops; the result of a `reduction` op
does not depend on r variables, and what is computed from it runs after the reduction loops; that of
a `scan` or a `sort` does. Equal
operations occur once (loads too: nothing in one body reads what it writes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import gcd

import torch

from inductor.ir.extent import Extent, Real
from inductor.ir.index import Index, IndexLike, Var, as_index, floordiv, variable
from inductor.ir.philox import Draw
from inductor.ir.scalar_ops import BOOL, GIVEN, SCALAR_OPS


class IndexFault(IntEnum):
    """Errors of eager for an index out of range; the numbers are those of `csrc/module.cpp`."""

    POSITION = 1  # IndexError of x[index]
    ROW = 2  # IndexError of embedding, and of index_select along the first axis
    ELEMENT = 3  # RuntimeError of gather, scatter_add, index_add
    PLACE = 4  # RuntimeError of index_select along other axes


@dataclass(frozen=True, slots=True)
class IndirectVar:
    """Immediate of an `indirect` op: the variable it defines, and how the value is treated.

    error: which error a bad value raises.
    """

    var: Var
    wrap: bool
    check: bool
    error: IndexFault = IndexFault.POSITION


# The immediate of a conversion to half precision of a value that something is decided by.
DECIDES = "decides"

# Of which an element's result depends on the others of its row, which is one tile; elements of a
# row, 32 for each thread of a warp.
OF_ROWS, LONGEST_SCAN = frozenset(("scan", "sort")), 1024
HALVES = (torch.float16, torch.bfloat16)
HELD = (0.0, 1.0, -1.0, math.inf, -math.inf)  # numbers that masks put in, which both halves have
# Whose result is one of their operands, but for a sign.
CHOOSING = frozenset(("where", "maximum", "minimum", "neg", "abs"))
NARROW = (torch.bool, torch.uint8, torch.int8)  # integers of which half precision loses none


def is_small(dtype: torch.dtype) -> bool:
    """Whether it is one of the floats of 8 bits."""
    return dtype.itemsize == 1 and dtype.is_floating_point


Immediate = bool | int | float | complex | str | IndirectVar | Draw | None


@dataclass(frozen=True, slots=True)
class Op:
    """One scalar operation; `args` are positions of earlier ops of the same body."""

    name: str
    args: tuple[int, ...]
    dtype: torch.dtype
    buffer: str = ""
    index: Index | None = None
    imm: Immediate = None

    def __str__(self) -> str:
        parts = [f"%{arg}" for arg in self.args]
        if self.index is not None:
            parts.insert(0, f"{self.buffer}[{self.index!r}]" if self.buffer else f"{self.index!r}")
        if isinstance(self.imm, IndirectVar):
            flags = [name for name in ("wrap", "check") if getattr(self.imm, name)]
            flags += [self.imm.error.name.lower()] if self.imm.check else []
            parts.append(f"{self.imm.var.name} < {self.imm.var.size} {' '.join(flags)}".strip())
        elif self.imm is not None:
            parts.append(repr(self.imm))
        return f"{self.name}({', '.join(parts)}) {short_dtype(self.dtype)}"


@dataclass(frozen=True, slots=True)
class LoopBody:
    """Loops and the operations inside of them. `str(body)` is readable text."""

    ranges: tuple[int, ...]
    reduction_ranges: tuple[int, ...]
    ops: tuple[Op, ...]

    def loads(self) -> Iterator[Op]:
        return (op for op in self.ops if op.name == "load")

    def stores(self) -> Iterator[Op]:
        return (op for op in self.ops if op.name == "store")

    def buffers_read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op.buffer for op in self.loads()))

    def is_of_rows(self) -> bool:
        """Whether some operation is a `scan` or a `sort`."""
        return any(op.name in OF_ROWS for op in self.ops)

    def __str__(self) -> str:
        loops = [f"i{n} < {size}" for n, size in enumerate(self.ranges)]
        loops += [f"r{n} < {size}" for n, size in enumerate(self.reduction_ranges)]
        lines = [f"for {', '.join(loops)}:" if loops else "once:"]
        for position, op in enumerate(self.ops):
            lines.append(f"  {op}" if op.name == "store" else f"  %{position} = {op}")
        return "\n".join(lines)


def short_dtype(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar inside of a body that is being traced: position and dtype."""

    position: int
    dtype: torch.dtype


class Ops:
    """The `ops` that a traced function calls: `ops.load(...)`, `ops.add(a, b)`, ...

    Each method appends an operation, or returns the earlier one that is equal.
    Every row of SCALAR_OPS with plain operands is reachable through `call`, and as a method.
    """

    def __init__(self) -> None:
        self.recorded: list[Op] = []
        self._known: dict[tuple[object, ...], Value] = {}
        self._mask: Value | None = None
        self._bounded: dict[str, IndexLike] = {}  # what variables of `within` stand for
        self.indirect_count = 0

    def _append(
        self,
        name: str,
        args: tuple[Value, ...],
        dtype: torch.dtype,
        buffer: str = "",
        index: Index | None = None,
        imm: Immediate = None,
    ) -> Value:
        # repr tells 1 from True and 1.0, and 0.0 from -0.0
        positions = tuple(arg.position for arg in args)
        key = (name, positions, dtype, buffer, index, repr(imm))
        known = self._known.get(key)
        if known is not None:
            return known
        value = Value(len(self.recorded), dtype)
        self.recorded.append(Op(name, positions, dtype, buffer, index, imm))
        self._known[key] = value
        return value

    def call(self, name: str, *args: Value) -> Value:
        """Any operation with plain operands and a dtype that follows from them."""
        row = SCALAR_OPS[name]
        if len(args) != row.arity or row.result == GIVEN:
            raise ValueError(f"{name} takes {row.arity} operands, got {len(args)}")
        if row.arity > 1 and args[-1].dtype is not args[-2].dtype:
            raise ValueError(f"{name}: dtypes differ: {[a.dtype for a in args]}")
        if name in ("lt", "ge"):
            args = self._of_fewer_variables(*args)
        dtype = torch.bool if row.result == BOOL else args[-1].dtype
        return self._append(name, args, dtype)

    def _of_fewer_variables(self, position: Value, bound: Value) -> tuple[Value, Value]:
        """What to compare with `<` or `>=` instead of a position and a number: digits of it that
        have no say are left out, as `64 * i + r < 640` where r < 64 is `i < 10`."""
        index, end = (self.recorded[each.position] for each in (position, bound))
        if index.name != "index_expr" or end.name != "constant" or type(end.imm) is not int:
            return position, bound
        assert index.index is not None
        steps = [step for _, step in index.index.terms if type(step) is int]
        for unit in sorted({gcd(step, end.imm) for step in steps}, reverse=True):
            digits = floordiv(index.index, unit) if unit > 1 else index.index
            if len(digits.variables()) < len(index.index.variables()):
                return (self.index_expr(digits, position.dtype),
                        self.constant(end.imm // unit, bound.dtype))  # fmt: skip
        return position, bound

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name not in SCALAR_OPS:
            raise AttributeError(name)
        return lambda *args: self.call(name, *args)

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Value:
        """A number; converted to the kind of the dtype."""
        number: bool | int | float = value
        if isinstance(value, (Extent, Real)) and dtype is not torch.bool:
            number = value  # converted where it is known
        elif dtype is torch.bool:
            number = bool(value)
        elif dtype.is_floating_point:
            number = float(value)
        else:
            number = int(value)
        return self._append("constant", (), dtype, imm=number)

    def index_expr(self, index: IndexLike, dtype: torch.dtype = torch.int64) -> Value:
        """The value of an index."""
        index = self._whole(as_index(index))
        if index.is_constant:
            return self.constant(index.offset, dtype)
        return self._append("index_expr", (), dtype, index=index)

    def to_dtype(self, value: Value, dtype: torch.dtype) -> Value:
        """Conversion as Tensor.to does it. What half precision holds of a narrow integer is the
        integer, and what float32 holds of a small float is that."""
        op = self.recorded[value.position]
        if op.name == "to_dtype" and op.imm is None:
            given = Value(op.args[0], self.recorded[op.args[0]].dtype)
            if dtype is torch.float32 and value.dtype in HALVES and self._is_narrow(given):
                return self.to_dtype(given, dtype)
            if dtype is given.dtype and is_small(dtype) and value.dtype is torch.float32:
                return given
        return value if value.dtype is dtype else self._append("to_dtype", (value,), dtype)

    def _is_narrow(self, value: Value) -> bool:
        """Whether half precision has each value that it may be."""
        op = self.recorded[value.position]
        if op.name == "to_dtype" and value.dtype is torch.float32:
            return self._is_narrow(Value(op.args[0], self.recorded[op.args[0]].dtype))
        return value.dtype in NARROW or is_small(value.dtype)

    def rounded(self, value: Value, dtype: torch.dtype) -> Value:
        """The value of float32 that half precision holds of it, because something is decided by
        it: what leads to it is computed exactly (`inductor/ir/loop_repeats.py`)."""
        half = self._append("to_dtype", (value,), dtype, imm=DECIDES)
        return self.to_dtype(half, value.dtype)

    def as_held(self, value: Value, dtype: torch.dtype) -> Value:
        """The value of float32 as a tensor of half precision holds it; what leads to it need not be
        exact."""
        if self._is_held(value, dtype):
            return value
        return self.to_dtype(self.to_dtype(value, dtype), value.dtype)

    def _is_held(self, value: Value, dtype: torch.dtype, depth: int = 8) -> bool:
        """Whether half precision surely has this value. depth: of operations that are looked
        through, which may share operands: each doubles the work."""
        op = self.recorded[value.position]
        args = [Value(arg, self.recorded[arg].dtype) for arg in op.args]
        if op.name == "to_dtype":
            return args[0].dtype is dtype or self._is_narrow(value)
        if op.name == "constant":
            return op.imm in HELD
        chosen = args[1:] if op.name == "where" else args
        return depth > 0 and op.name in CHOOSING and all(
            self._is_held(arg, dtype, depth - 1) for arg in chosen)

    def bitcast(self, value: Value, dtype: torch.dtype) -> Value:
        """The same bits as another dtype."""
        return self._append("bitcast", (value,), dtype)

    def above_one(self, word: Value, at: int) -> Value:
        """1 in float32 whose mantissa has the four bits of an int32 from bit `at` on."""
        mask = self.constant(15 << at, torch.int32)
        return self._append("above_one", (word, mask), torch.float32)

    def nibble(self, word: Value, distance: Value) -> Value:
        """The number, in float32, that four bits of an int32 count from a bit on that is one of
        its first 29."""
        return self._append("nibble", (word, distance), torch.float32)

    def nibbles_dot(self, word: Value, numbers: Sequence[Value]) -> Value:
        """The sum of eight numbers in float32, each times four bits of an int32, from the lowest
        on."""
        return self._append("nibbles_dot", (word, *numbers), torch.float32)

    def load(self, buffer: str, index: IndexLike, dtype: torch.dtype) -> Value:
        """An element of a buffer; 0, unread, where the surrounding mask is false."""
        mask = () if self._mask is None else (self._mask,)
        return self._append("load", mask, dtype, buffer, self._whole(as_index(index)))

    def store(self, buffer: str, index: IndexLike, value: Value, mode: str = "set") -> None:
        """Write an element; mode "add" accumulates."""
        self.recorded.append(
            Op("store", (value.position,), value.dtype, buffer, self._whole(as_index(index)), mode)
        )

    def indirect(
        self, value: Value, size: int, wrap: bool = True, check: bool = True,
        error: IndexFault = IndexFault.POSITION,
    ) -> Index:
        """Use an integer value as an index of a dimension with `size` elements. What was limited to
        these, as the places of repeated edges are, is neither wrapped nor checked; the value of an
        index is that index."""
        low, high = self._limits(value)
        if type(size) is int and 0 <= low and high < size:
            index = self.recorded[value.position].index
            if index is not None and self.recorded[value.position].name == "index_expr":
                return index
            wrap = check = False
        mask = () if self._mask is None else (self._mask,)
        args = (value, *mask)
        value = args[0]
        key = ("indirect", tuple(a.position for a in args), size, wrap, check, error)
        known = self._known.get(key)
        if known is not None:
            imm = self.recorded[known.position].imm
            assert isinstance(imm, IndirectVar)
            return as_index(0) + _index_of(imm.var)
        var = Var(f"t{self.indirect_count}", size)
        self.indirect_count += 1
        imm = IndirectVar(var, wrap, check, error)
        added = self._append("indirect", args, torch.int64, imm=imm)
        self._known[key] = added
        return _index_of(var)

    def within(self, index: Index, extent: int, inside: Callable[[Index], Value]) -> Value:
        """`inside` of an index that lies in 0 .. extent - 1 wherever the value is used, as a
        condition says: what is divided by `extent`, or taken modulo, is simpler then."""
        if type(extent) is not int or index.is_constant:
            return inside(index)
        name = f"within{len(self._bounded)}"
        self._bounded[name] = self._whole(index)
        return inside(variable(name, extent))

    def _whole(self, index: Index) -> Index:
        """An index without variables of `within`."""
        return index.substitute(self._bounded) if self._bounded else index

    def masked(self, mask: Value, inside: Callable[[], Value], other: bool | int | float) -> Value:
        """`inside()` where mask is true, else `other`; memory is only read where it is true."""
        outer = self._mask
        self._mask = mask if outer is None else self.call("bitwise_and", outer, mask)
        try:
            value = inside()
        finally:
            self._mask = outer
        return self.call("where", mask, value, self.constant(other, value.dtype))

    def read_within(self, mask: Value | None, load: Callable[[], Value]) -> Value:
        """`load()`, an element of a buffer and nothing else; where mask is false 0, unread."""
        outer = self._mask
        if mask is not None:
            self._mask = mask if outer is None else self.call("bitwise_and", outer, mask)
        try:
            return load()
        finally:
            self._mask = outer

    def _limits(self, value: Value, depth: int = 3) -> tuple[float, float]:
        """Between which an integer surely lies, by what was done to it last."""
        op = self.recorded[value.position]
        if op.name == "constant" and type(op.imm) is int:
            return op.imm, op.imm
        if op.name == "index_expr" and op.index is not None:
            low, high = op.index.low, op.index.high
            return (low, high) if type(low) is type(high) is int else (-math.inf, math.inf)
        if op.name not in ("maximum", "minimum", "bitwise_and") or not depth:
            return -math.inf, math.inf
        given = [Value(arg, self.recorded[arg].dtype) for arg in op.args]
        limits = [self._limits(each, depth - 1) for each in given]
        if op.name == "bitwise_and":  # of which one that is not negative has all that is set
            most = [high for low, high in limits if low >= 0]
            return (0, min(most)) if most else (-math.inf, math.inf)
        choose = max if op.name == "maximum" else min
        return choose(low for low, _ in limits), choose(high for _, high in limits)

    def keep(self, seed: Value, offset: Value, position: Value, draw: Draw) -> Value:
        """Whether dropout keeps an element; position: where it lies in the tensor's memory."""
        return self._append("keep", (seed, offset, position), torch.bool, imm=draw)

    def reduction(self, kind: str, value: Value, position: Value | None = None) -> Value:
        """Reduce over all r variables; argmax and argmin give the `position` that was found."""
        if position is not None:
            return self._append("reduction", (value, position), torch.int64, imm=kind)
        return self._append("reduction", (value,), value.dtype, imm=kind)

    def scan(self, kind: str, value: Value) -> Value:
        """Reduce what stands at or before this iteration over the r variables: "sum", "prod",
        "logaddexp"."""
        return self._append("scan", (value,), value.dtype, imm=kind)

    def sort(self, key: Value) -> Value:
        """The place in its row, as an int32, of the element that comes at this one where keys
        (int32 or int64) are in order, the first of equal ones first."""
        return self._append("sort", (key,), torch.int32)


def _index_of(var: Var) -> Index:
    return variable(var.name, var.size) if var.size != 1 else as_index(0)


def loop_variables(ranges: tuple[int, ...], prefix: str = "i") -> tuple[Index, ...]:
    """The index of each loop: `i0`, `i1`, ... (constant 0 for a range of 1)."""
    return tuple(variable(f"{prefix}{n}", size) for n, size in enumerate(ranges))


def trace_body(
    ranges: tuple[int, ...],
    reduction_ranges: tuple[int, ...],
    function: Callable[[Ops, tuple[Index, ...], tuple[Index, ...]], None],
) -> LoopBody:
    """Run `function(ops, indices, reduction_indices)` once and keep what it did.

    >>> def double(ops, i, r):
    ...     x = ops.load("a", i[0], torch.float32)
    ...     ops.store("b", i[0], ops.add(x, x))
    >>> print(trace_body((8,), (), double))
    for i0 < 8:
      %0 = load(a[i0]) float32
      %1 = add(%0, %0) float32
      store(b[i0], %1, 'set') float32
    """
    ops = Ops()
    function(ops, loop_variables(ranges), loop_variables(reduction_ranges, "r"))
    return LoopBody(ranges, reduction_ranges, _drop_dead(ops.recorded))


def _drop_dead(recorded: list[Op]) -> tuple[Op, ...]:
    """Keep what a store or an index needs; a checked `indirect` stays (it may raise)."""
    needed = [False] * len(recorded)
    used_vars: set[str] = set()
    for position in range(len(recorded) - 1, -1, -1):
        op = recorded[position]
        if op.name == "store" or needed[position]:
            needed[position] = True
        elif isinstance(op.imm, IndirectVar) and (op.imm.check or op.imm.var.name in used_vars):
            needed[position] = True
        else:
            continue
        for arg in op.args:
            needed[arg] = True
        if op.index is not None:
            used_vars.update(var.name for var in op.index.variables())
    new_position: dict[int, int] = {}
    live: list[Op] = []
    for position, op in enumerate(recorded):
        if needed[position]:
            new_position[position] = len(live)
            args = tuple(new_position[arg] for arg in op.args)
            live.append(op if args == op.args else
                        Op(op.name, args, op.dtype, op.buffer, op.index, op.imm))
    return tuple(live)
