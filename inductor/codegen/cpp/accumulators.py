"""Reductions as accumulators: how each kind starts, takes in a value, and ends.

An accumulator is a few C++ variables; `cell` is "" for scalars and "[k]" for an element of a tile.
Sums of floats are added up in chunks whose sums go into a double, so that the error stays near that
of a pairwise sum. `max` and `min` of floats keep a flag beside them that a NaN was seen where
OpenMP combines them; else the greatest magnitude, as an integer: a flag of a selected value is
split by g++ into the cases of the selection, and its loop is not vectorised then. A NaN that stayed
in the variable itself would make each step wait for three instructions, not one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from inductor.codegen.cpp.types import HALF, UNSIGNED, highest, literal, lowest, value_type
from inductor.ir.body import Op


@dataclass(frozen=True, slots=True)
class Variable:
    """One C++ variable of an accumulator; `combine`: its OpenMP reduction, "" for none."""

    name: str
    type: str
    start: str
    combine: str = ""

    def clause(self) -> str:
        """`combine` as a pragma names it: a macro of the prelude for extremes of floats."""
        is_float = self.type in ("f32", "f64")
        return EXTREMES.get(self.combine, self.combine) if is_float else self.combine



@dataclass(frozen=True, slots=True)
class Accumulator:
    """Texts of one reduction; CELL stands where a tile has an index.

    update: takes in a value. merge: takes in what another thread found, where `#name#` is that
    thread's variable. chunked: of floats, to be flushed into `total` every now and then. sticky:
    (value, max or min) of floats, see `without_flag`.
    """

    position: int
    dtype: torch.dtype
    variables: tuple[Variable, ...]
    update: tuple[str, ...]
    merge: tuple[str, ...]
    result: str
    chunked: bool = False
    sticky: tuple[str, str] | None = None

    @property
    def total(self) -> Variable:
        return Variable(f"s{self.position}", "f64", "0")

    def with_total(self) -> Accumulator:
        """The accumulator whose only variable is the total."""
        name = self.total.name
        return replace(
            self,
            variables=(self.total,),
            merge=(f"{name}{CELL} += #{name}#;",),
            result=f"({value_type(self.dtype)}){name}{CELL}",
        )

    def without_flag(self) -> Accumulator:
        """The accumulator with a magnitude for the flag, for lanes that are put together here."""
        if self.sticky is None:
            return self
        value, kind = self.sticky
        best = self.variables[0]
        name, greatest, sign = best.name, f"n{self.position}", ">" if kind == "max" else "<"
        integer, bits, infinity = _BITS[self.dtype]
        seen = Variable(greatest, integer, "0", "max")
        magnitude = f"__builtin_bit_cast({integer}, {value}) & {bits}"

        def take(variable: str, sign: str, text: str) -> str:
            return f"{variable}{CELL} = {text} {sign} {variable}{CELL} ? {text} : {variable}{CELL};"

        update = (
            take(name, sign, value),
            f"const {integer} {greatest}_m = {magnitude};",
            take(greatest, ">", f"{greatest}_m"),
        )
        merge = (take(name, sign, f"#{name}#"), take(greatest, ">", f"#{greatest}#"))
        nan = literal(float("nan"), self.dtype)
        result = f"({greatest}{CELL} > {infinity} ? {nan} : {name}{CELL})"
        return replace(
            self, variables=(best, seen), update=update, merge=merge, result=result
        )

    def vectorizes(self) -> bool:
        """Whether OpenMP can combine the accumulators of the lanes."""
        return all(variable.combine for variable in self.variables)


CELL = "@"
EXTREMES = {"max": "K_MOST", "min": "K_LEAST"}
# an integer type, the mask of magnitudes in it, and infinity: NaN are above it
_BITS = {
    torch.float32: ("i32", "0x7fffffff", "0x7f800000"),
    torch.float64: ("i64", "0x7fffffffffffffffL", "0x7ff0000000000000L"),
}


def make_accumulator(position: int, op: Op, values: tuple[str, ...], source: Op) -> Accumulator:
    """The accumulator of a reduction; values: texts of its operands."""
    kind = str(op.imm)
    if source.dtype in HALF:
        raise TypeError(f"{op} in half precision")
    if kind in ("argmax", "argmin"):
        return _arg(position, op, values, source.dtype, kind)
    if op.dtype is torch.bool:
        return _logical(position, op, values[0], kind)
    if kind in ("max", "min"):
        return _extreme(position, op, values[0], kind)
    return _arithmetic(position, op, values[0], kind)


def _arithmetic(position: int, op: Op, value: str, kind: str) -> Accumulator:
    name = f"a{position}"
    sign, start = ("+", "0") if kind == "sum" else ("*", "1")
    target = value_type(op.dtype)
    wide = UNSIGNED.get(op.dtype, target)
    variables = (Variable(name, wide, start, sign),)
    cast = "" if wide == target else f"({wide})"
    update = (f"{name}{CELL} {sign}= {cast}{value};",)
    merge = (f"{name}{CELL} {sign}= #{name}#;",)
    chunked = kind == "sum" and op.dtype.is_floating_point
    result = f"{name}{CELL}" if wide == target else f"({target}){name}{CELL}"
    return Accumulator(position, op.dtype, variables, update, merge, result, chunked)


def _logical(position: int, op: Op, value: str, kind: str) -> Accumulator:
    name = f"a{position}"
    sign, start = ("&", "1") if kind in ("min", "prod") else ("|", "0")
    variables = (Variable(name, "i32", start, sign),)
    update = (f"{name}{CELL} {sign}= (i32){value};",)
    merge = (f"{name}{CELL} {sign}= #{name}#;",)
    return Accumulator(position, op.dtype, variables, update, merge, f"({name}{CELL} != 0)")


def _extreme(position: int, op: Op, value: str, kind: str) -> Accumulator:
    name, flag = f"a{position}", f"n{position}"
    sign, start = (">", lowest(op.dtype)) if kind == "max" else ("<", highest(op.dtype))
    target = value_type(op.dtype)
    variables = [Variable(name, target, start, kind)]
    update = [f"{name}{CELL} = {value} {sign} {name}{CELL} ? {value} : {name}{CELL};"]
    merge = [update[0].replace(value, f"#{name}#")]
    result = f"{name}{CELL}"
    if op.dtype.is_floating_point:
        variables.append(Variable(flag, "i32", "0", "|"))
        update.append(f"{flag}{CELL} |= {value} != {value};")
        merge.append(f"{flag}{CELL} |= #{flag}#;")
        nan = literal(float("nan"), op.dtype)
        result = f"({flag}{CELL} ? {nan} : {name}{CELL})"
    sticky = (value, kind) if op.dtype.is_floating_point else None
    return Accumulator(
        position, op.dtype, tuple(variables), tuple(update), tuple(merge), result, sticky=sticky)


def _arg(
    position: int, op: Op, values: tuple[str, ...], source: torch.dtype, kind: str
) -> Accumulator:
    best, place, seen = f"a{position}", f"p{position}", f"q{position}"
    start = lowest(source) if kind == "argmax" else highest(source)
    better = "k_greater" if kind == "argmax" else "k_less"
    variables = (
        Variable(best, value_type(source), start),
        Variable(place, "i64", "0"),
        Variable(seen, "i32", "0"),
    )
    value, where = values
    take = f"t{position}_take"
    update = (
        f"const bool {take} = {better}({value}, {best}{CELL}) | ({seen}{CELL} == 0);",
        f"{best}{CELL} = {take} ? {value} : {best}{CELL};",
        f"{place}{CELL} = {take} ? (i64){where} : {place}{CELL};",
        f"{seen}{CELL} = 1;",
    )
    found = f"#{seen}# && ({better}(#{best}#, {best}{CELL}) || !{seen}{CELL})"
    merge = (
        f"if ({found}) {best}{CELL} = #{best}#, {place}{CELL} = #{place}#, {seen}{CELL} = 1;",
    )
    return Accumulator(position, op.dtype, variables, update, merge, f"{place}{CELL}")
