"""Numbers that are known at a call, as parameters of a Triton function.

In: extents and reals that a function uses. Out: their spelling in it, and the parameters that the
spelling needs, each with the Python expression of its value. A symbol, or a division that does not
come out even, is one parameter; polynomials over them are computed in the function, so that Triton
sees by which powers of two they divide. Parameters are called `n0`, `n1`, .. in the order of their
first use, so that functions which differ in their symbols only have the same text.

Threads move 16 bytes at a time only where strides and the lengths of rows are known to be even
numbers of those, so each function exists for numbers that are multiples of `EVEN`, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from inductor.ir.extent import Extent, Real, Sizes, hint_of

EVEN = 16  # what Triton asks of a number, to make accesses of whole words with it
KINDS = {"i32": "q", "i64": "q", "fp64": "d"}  # codes of `struct`; each takes eight bytes
MOST_INT32 = (1 << 31) - (1 << 16)  # the last block may reach over the end


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number among the parameters of a function; value: Python text over the symbols."""

    name: str
    kind: str
    value: str

    @property
    def is_constant(self) -> bool:
        """Whether it is the same in all calls; other calls of the function have other numbers."""
        return self.value.isdigit()


class Numbers:
    """Spells numbers of one function and collects its parameters. wide: indices are int64.

    aligned: the parameters whose being multiples of `EVEN` matters, and their values at the hints.
    """

    def __init__(self, wide: bool) -> None:
        self.wide = wide
        self.parameters: dict[tuple[str, str], Parameter] = {}
        self.aligned: dict[str, int] = {}

    def spell(self, value: int, aligns: bool = True) -> str:
        """A size, stride or offset; in parentheses where it is a sum or a product."""
        if type(value) is not Extent:
            return str(value)
        parts = []
        for monomial, factor in reversed(value.terms):
            names = [self._unit(value.sizes, unit) for unit in monomial]
            if aligns and factor % EVEN:
                hints = (value.sizes.hints[unit] for unit in monomial)
                self.aligned.update(zip(names, hints, strict=True))
            parts.append("*".join(([str(factor)] if factor != 1 or not names else []) + names))
        text = " + ".join(parts)
        return text if text.isidentifier() else f"({text})"

    def exact(self, value: int | Real) -> str:
        """A number to calculate with: a parameter of its own that holds every value."""
        return self._parameter(str(value), "fp64" if isinstance(value, Real) else "i64")

    def _unit(self, sizes: Sizes, unit: str) -> str:
        if self.wide or abs(sizes.hints[unit]) >= MOST_INT32:
            return self._parameter(unit, "i64")
        sizes.assume(f"{-MOST_INT32} < {unit} < {MOST_INT32}")
        return self._parameter(unit, "i32")

    def _parameter(self, value: str, kind: str) -> str:
        known = self.parameters.get((value, kind))
        if known is None:
            known = Parameter(f"n{len(self.parameters)}", kind, value)
            self.parameters[value, kind] = known
        return known.name


def reaches(value: int, limit: int) -> bool:
    """Whether the number is `limit` or more: at the hint, or else assumed not to be anywhere."""
    return hint_of(value) >= limit or value >= limit


def is_one(value: int) -> bool:
    """Whether the number is 1 (or nothing) for all sizes."""
    return type(value) is not Extent and value <= 1
