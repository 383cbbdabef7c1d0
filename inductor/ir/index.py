"""Index expressions: where in a buffer a loop iteration reads or writes.

In: loop variables with known ranges. Out: immutable `Index` values, always in one normal form, so
that equal positions compare equal. Grammar:

    Index := offset + sum of coefficient * Atom        (ints, or extents: sizes known at a call)
    Atom  := Var(name, size)            0 <= value < size; loop variables i0 i1 .. r0 r1 ..,
                                        and indirect variables (values of an `indirect` op)
           | FloorDiv(Index, divisor)   rounds towards minus infinity, divisor > 0
           | Mod(Index, divisor)        has the sign of the divisor, divisor > 0

A variable carries its own range, so simplification needs no context: `floordiv` and `mod`
simplify when they are built, and sums recombine `n * (x // n) + x % n` into `x`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Union

from inductor.ir.extent import (
    Extent,
    common_factor,
    divide_out,
    divides,
    hint_of,
    surely_less,
)

IndexLike = Union["Index", int]
SHORTEST_RUN = 8  # steps of a variable between two turns of what is divided by, or taken modulo


class Atom:
    """One indivisible part of an index; compares and orders by its text."""

    __slots__ = ("_hash", "high", "low", "text")

    def __init__(self, text: str, low: int, high: int) -> None:
        self.text = text
        self.low = low
        self.high = high
        self._hash = hash(text)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and self._hash == other._hash  # type: ignore[attr-defined]
            and self.text == other.text  # type: ignore[attr-defined]
        )

    def __repr__(self) -> str:
        return self.text


class Var(Atom):
    """A variable `name` with values 0 .. size - 1."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, 0, max(size - 1, 0))
        self.name = name
        self.size = size


class FloorDiv(Atom):
    """floor(base / divisor); made by `floordiv` only."""

    __slots__ = ("base", "divisor")

    def __init__(self, base: Index, divisor: int) -> None:
        super().__init__(f"({base!r})//{divisor}", base.low // divisor, base.high // divisor)
        self.base = base
        self.divisor = divisor


class Mod(Atom):
    """base modulo divisor; made by `mod` only."""

    __slots__ = ("base", "divisor")

    def __init__(self, base: Index, divisor: int) -> None:
        super().__init__(f"({base!r})%{divisor}", 0, divisor - 1)
        self.base = base
        self.divisor = divisor


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Index:
    """offset + sum of coefficient * atom; `terms` is sorted by the atoms' text.

    >>> i, j = variable("i0", 4), variable("i1", 8)
    >>> floordiv(i * 8 + j, 8), mod(i * 8 + j, 8)
    (i0, i1)
    """

    terms: tuple[tuple[Atom, int], ...]
    offset: int
    low: int
    high: int
    _hash: int = field(default=0)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Index):
            return (
                self._hash == other._hash
                and self.offset == other.offset
                and self.terms == other.terms
            )
        return isinstance(other, (int, Extent)) and not self.terms and self.offset == other

    def __repr__(self) -> str:
        return print_index(self, "{} // {}".format, "{} % {}".format)

    def __add__(self, other: IndexLike) -> Index:
        if not isinstance(other, Index):
            return _shift(self, other)
        if not other.terms:
            return _shift(self, other.offset)
        if not self.terms:
            return _shift(other, self.offset)
        total = dict(self.terms)
        for atom, factor in other.terms:
            total[atom] = total.get(atom, 0) + factor
        return _normal(total, self.offset + other.offset)

    __radd__ = __add__

    def __mul__(self, factor: IndexLike) -> Index:
        if isinstance(factor, Index):
            if factor.terms:
                if self.terms:
                    raise ValueError(f"product of two variable indices: {self} * {factor}")
                return factor * self.offset
            factor = factor.offset
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return _make(tuple((a, c * factor) for a, c in self.terms), self.offset * factor)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        return self + (other * -1)

    def __rsub__(self, other: IndexLike) -> Index:
        return self * -1 + other

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def variables(self) -> tuple[Var, ...]:
        """All variables, those inside of FloorDiv and Mod included, each once, in order."""
        found: dict[Var, None] = {}
        _collect(self, found)
        return tuple(found)

    def depends_on(self, name: str) -> bool:
        return any(var.name == name for var in self.variables())

    def stride_of(self, name: str) -> int | None:
        """How far one step of the variable moves; 0 if it does not occur, None if not affine."""
        stride = 0
        for atom, factor in self.terms:
            if isinstance(atom, Var):
                if atom.name == name:
                    stride = factor
            elif atom.base.depends_on(name):  # type: ignore[attr-defined]
                return None
        return stride

    def step_of(self, name: str) -> int | None:
        """How far most steps of the variable move, where it is also divided, or taken modulo, by
        large numbers; None if not sure.

        >>> x = variable("x", 640)
        >>> (floordiv(x, 64) * 4096 + mod(x, 64)).step_of("x")
        1
        """
        total = 0
        for atom, factor in self.terms:
            if isinstance(atom, Var):
                total += factor if atom.name == name else 0
            elif isinstance(atom, (FloorDiv, Mod)) and atom.base.depends_on(name):
                step = atom.base.step_of(name)
                if step is None or hint_of(atom.divisor) < SHORTEST_RUN * abs(hint_of(step)):
                    return None
                total += factor * step if isinstance(atom, Mod) else 0
        return total

    def substitute(self, values: Mapping[str, IndexLike]) -> Index:
        """Replace variables by name; the result is in normal form again.

        >>> (variable("i0", 4) * 3 + 1).substitute({"i0": variable("i1", 2) * 2})
        6*i1 + 1
        """
        total = constant(self.offset)
        for atom, factor in self.terms:
            total = total + _substitute_atom(atom, values) * factor
        return total

    def evaluate(self, values: Mapping[str, object]) -> object:
        """Value for given variables: ints, or anything with +, *, // and % (tensors)."""
        total: object = self.offset
        for atom, factor in self.terms:
            if isinstance(atom, Var):
                value = values[atom.name]
            elif isinstance(atom, FloorDiv):
                value = atom.base.evaluate(values) // atom.divisor  # type: ignore[operator]
            else:
                value = atom.base.evaluate(values) % atom.divisor  # type: ignore
            total = total + value * factor  # type: ignore[operator]
        return total


def constant(value: int) -> Index:
    """The index that is always `value`."""
    return Index((), value, value, value, hash(value))


ZERO = constant(0)


def variable(name: str, size: int) -> Index:
    """The index that is one variable (the constant 0 where its range has one value)."""
    if size == 1:
        return ZERO
    return _make(((Var(name, size), 1),), 0)


def as_index(value: IndexLike) -> Index:
    """An `Index` for an int or an index."""
    return value if isinstance(value, Index) else constant(value)


def _runs_below(base: Index, divisor: int) -> bool:
    """True for one variable of this size. (That it is not zero needs no proof: it has a value.)"""
    if len(base.terms) != 1 or base.offset != 0:
        return False
    atom, factor = base.terms[0]
    return isinstance(atom, Var) and factor == 1 and atom.size == divisor


def floordiv(base: IndexLike, divisor: int) -> Index:
    """base // divisor, simplified with the ranges of the variables."""
    base = as_index(base)
    if divisor == 1:
        return base
    if _runs_below(base, divisor):
        return ZERO
    if base.is_constant:
        return constant(base.offset // divisor)
    if base.low // divisor == base.high // divisor:
        return constant(base.low // divisor)
    whole, rest = _split(base, divisor)
    if whole.terms or whole.offset != 0:
        return whole + floordiv(rest, divisor)
    common = divisor
    for _, factor in base.terms:
        both = type(factor) is type(common) is int
        common = gcd(common, factor) if both else common_factor(common, factor)
    if common != 1:
        terms = tuple((a, c // common) for a, c in base.terms)
        return floordiv(_make(terms, base.offset // common), divisor // common)
    digits = _digits(base, divisor)
    if digits is not None:
        step, high, _ = digits
        return floordiv(high, divisor // step)
    if len(base.terms) == 1 and base.offset == 0 and base.terms[0][1] == 1:
        atom = base.terms[0][0]
        if isinstance(atom, FloorDiv):
            return floordiv(atom.base, atom.divisor * divisor)
        if isinstance(atom, Mod) and divides(divisor, atom.divisor):
            return mod(floordiv(atom.base, divisor), atom.divisor // divisor)
    return _make(((FloorDiv(base, divisor), 1),), 0)


def mod(base: IndexLike, divisor: int) -> Index:
    """base % divisor (never negative), simplified with the ranges of the variables."""
    base = as_index(base)
    if divisor == 1:
        return ZERO
    if _runs_below(base, divisor):
        return base
    if base.is_constant:
        return constant(base.offset % divisor)
    quotient = base.low // divisor
    if quotient == base.high // divisor:
        return base + (-quotient * divisor)
    whole, rest = _split(base, divisor)
    if whole.terms or whole.offset != 0:
        return mod(rest, divisor)
    common = divisor
    for _, factor in base.terms:
        both = type(factor) is type(common) is int
        common = gcd(common, factor) if both else common_factor(common, factor)
    if common != 1:
        terms = tuple((a, c // common) for a, c in base.terms)
        inner = mod(_make(terms, base.offset // common), divisor // common)
        return inner * common + base.offset % common
    digits = _digits(base, divisor)
    if digits is not None:
        step, high, rest = digits
        return mod(high, divisor // step) * step + rest
    if len(base.terms) == 1 and base.offset == 0 and base.terms[0][1] == 1:
        atom = base.terms[0][0]
        if isinstance(atom, Mod) and divides(divisor, atom.divisor):
            return mod(atom.base, divisor)
    return _make(((Mod(base, divisor), 1),), 0)


def values_in_period(index: Index, name: str, period: int) -> tuple[int, ...] | None:
    """What an index is where the variable is n * period, n * period + 1 .., for any n; None where
    that differs, or other variables do.

    >>> x = variable("x", 640)
    >>> values_in_period(mod(x, 2) * 16 + mod(floordiv(x, 2), 2) * 4, "x", 4)
    (0, 16, 4, 20)
    """
    size = max((var.size for var in index.variables() if var.name == name), default=period)
    begin = variable(name, max(size // period, 1)) * period
    found = [index.substitute({name: begin + n}) for n in range(period)]
    if not all(each.is_constant and type(each.offset) is int for each in found):
        return None
    return tuple(each.offset for each in found)


def print_index(
    index: Index, divide: Callable[[str, str], str], modulo: Callable[[str, str], str]
) -> str:
    """Text of an index; the callers say how a floor division and a modulo are spelled.

    The operands that `divide` and `modulo` get are parenthesised where needed.
    """
    parts = []
    for atom, factor in index.terms:
        if isinstance(atom, Var):
            text = atom.name
        else:
            base = print_index(atom.base, divide, modulo)  # type: ignore[attr-defined]
            spell = divide if isinstance(atom, FloorDiv) else modulo
            text = f"({spell(f'({base})', str(atom.divisor))})"  # type: ignore[attr-defined]
        parts.append(text if factor == 1 else f"{factor}*{text}")
    if not parts or index.offset != 0:
        parts.append(str(index.offset))
    return " + ".join(parts)


def print_cpp(index: Index) -> str:
    """C++ text; plain / and % where nothing is negative, else the prelude's floor versions."""
    parts = []
    for atom, factor in index.terms:
        if isinstance(atom, Var):
            text = atom.name
        else:
            base: Index = atom.base  # type: ignore[attr-defined]
            divisor: int = atom.divisor  # type: ignore[attr-defined]
            sign = "/" if isinstance(atom, FloorDiv) else "%"
            if surely_less(-1, base.low):
                text = f"(({print_cpp(base)}) {sign} {divisor})"
            else:
                name = "k_floordiv_index" if sign == "/" else "k_mod_index"
                text = f"{name}({print_cpp(base)}, {divisor})"
        parts.append(text if factor == 1 else f"{factor}*{text}")
    if not parts or index.offset != 0:
        parts.append(str(index.offset))
    return " + ".join(parts)


def flatten(indices: tuple[Index, ...], strides: tuple[int, ...], offset: int = 0) -> Index:
    """Position in a strided buffer: offset + sum of index * stride."""
    total = constant(offset)
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def _shift(index: Index, step: int) -> Index:
    if step == 0:
        return index
    offset = index.offset + step
    return Index(
        index.terms, offset, index.low + step, index.high + step, hash((index.terms, offset))
    )


def _make(terms: tuple[tuple[Atom, int], ...], offset: int) -> Index:
    if not terms:
        return constant(offset)
    low = high = offset
    for atom, factor in terms:
        if factor > 0:
            low += atom.low * factor
            high += atom.high * factor
        else:
            low += atom.high * factor
            high += atom.low * factor
    return Index(terms, offset, low, high, hash((terms, offset)))


def _text_of(term: tuple[Atom, int]) -> str:
    return term[0].text


def _normal(total: dict[Atom, int], offset: int) -> Index:
    if any(type(atom) is Mod for atom in total):
        recombined = _recombine(total, offset)
        if recombined is not None:
            return recombined
    terms = sorted([item for item in total.items() if item[1] != 0], key=_text_of)
    return _make(tuple(terms), offset)


def _recombine(total: dict[Atom, int], offset: int) -> Index | None:
    """n*(x//n) + x%n is x, and n*((x//n)%m) + x%n is x%(n*m)."""
    for low_atom, factor in total.items():
        if type(low_atom) is not Mod or factor == 0:
            continue
        size = low_atom.divisor
        quotient = floordiv(low_atom.base, size)
        if len(quotient.terms) != 1 or quotient.offset != 0 or quotient.terms[0][1] != 1:
            continue
        high_atom = quotient.terms[0][0]
        for atom, other in total.items():
            if other != factor * size:
                continue
            whole = None
            if atom == high_atom:
                whole = low_atom.base
            elif type(atom) is Mod and atom.base == quotient:
                whole = mod(low_atom.base, size * atom.divisor)
            if whole is not None:
                rest = {a: c for a, c in total.items() if a is not low_atom and a is not atom}
                return _normal(rest, offset) + whole * factor
    return None


def _split(base: Index, divisor: int) -> tuple[Index, Index]:
    """base = whole * divisor + rest, with what is divisible in `whole`."""
    whole = []
    rest = []
    for atom, factor in base.terms:
        part, left = divide_out(factor, divisor)
        if left == 0:
            whole.append((atom, part))
        else:
            rest.append((atom, factor))
    part, left = divide_out(base.offset, divisor)
    return _make(tuple(whole), part), _make(tuple(rest), left)


def _digits(base: Index, divisor: int) -> tuple[int, Index, Index] | None:
    """base = step * high + rest with 0 <= rest < step and step a divisor of `divisor`."""
    for step in sorted({abs(factor) for _, factor in base.terms}, key=hint_of):
        if step == 1 or not divides(step, divisor):
            continue
        high, rest = _split(base, step)
        if high.terms and surely_less(-1, rest.low) and surely_less(rest.high, step):
            return step, high, rest
    return None


def _collect(index: Index, variables: dict[Var, None]) -> None:
    for atom, _ in index.terms:
        if isinstance(atom, Var):
            variables[atom] = None
        else:
            _collect(atom.base, variables)  # type: ignore[attr-defined]


def _substitute_atom(atom: Atom, values: Mapping[str, IndexLike]) -> Index:
    if isinstance(atom, Var):
        if atom.name in values:
            return as_index(values[atom.name])
    elif isinstance(atom, FloorDiv):
        return floordiv(atom.base.substitute(values), atom.divisor)
    elif isinstance(atom, Mod):
        return mod(atom.base.substitute(values), atom.divisor)
    return _make(((atom, 1),), 0)
