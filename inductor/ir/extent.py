"""`Extent`: a size, stride or offset that is a polynomial over sizes known when a graph is called.

In: symbols of a `Sizes`. Out: numbers that the compiler calculates with as with ints; what is
constant is an int again. Two extents are equal where their polynomials are, so that code which asks
"are they equal?" in order to simplify takes the general way otherwise. An order (`<`, `>=`, truth)
is proved from the lower bounds of the symbols, or else decided by the `hint` (the value at the
sizes of the compile) and recorded: `Sizes.assumptions` has to hold wherever the compiled code is
used. So has an equality wherever C code asks for the number (`__index__`).

    Extent := sum of coefficient * product of units       coefficients are ints
    unit   := symbol | (Extent) // (Extent) | (Extent) % (Extent)

Its text is the expression, in words that C++ and Python share: division is `k_floordiv_index`
and `k_mod_index`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, prod
from typing import TYPE_CHECKING, Any

Monomial = tuple[str, ...]
Terms = tuple[tuple[Monomial, int], ...]

# To the type checker an extent is an int; to C code it is none, so that nothing there takes the
# hint for the number without asking.
if TYPE_CHECKING:
    Number = int
else:
    Number = object


@dataclass(slots=True)
class Sizes:
    """The symbols of one compile and what was assumed about them.

    symbols: their names; hints and low: value and least value (None: there is none) of each unit.
    divisions: numerator and divisor of the units that are quotients by a number.
    assumptions: Python expressions over the symbols, in the order in which they were made.
    """

    symbols: list[str] = field(default_factory=list)
    hints: dict[str, int] = field(default_factory=dict)
    low: dict[str, int | None] = field(default_factory=dict)
    divisions: dict[str, tuple[Terms, int]] = field(default_factory=dict)
    assumptions: dict[str, None] = field(default_factory=dict)
    _bounds: dict[Terms, int | None] = field(default_factory=dict)

    def symbol(self, hint: int, low: int | None) -> Extent:
        """A new size, not below `low`.

        >>> rows = Sizes().symbol(hint=8, low=2)
        >>> (rows * 64 - 1) // 64, rows * 64 > 63, hint_of(rows)
        ((k0 - 1), True, 8)
        """
        name = f"k{len(self.symbols)}"
        self.symbols.append(name)
        return self.unit(name, hint, low)

    def unit(self, text: str, hint: int, low: int | None) -> Extent:
        """A symbol, or a division that does not come out even."""
        self.hints[text] = hint
        self.low[text] = low
        return Extent(self, (((text,), 1),))

    def assume(self, text: str) -> None:
        """Note what has to hold; it does at the hints."""
        self.assumptions[text] = None

    def assume_positive(self, value: Extent) -> None:
        """The same for `value > 0`; tells the least value of a unit that it holds alone."""
        self.assume(f"{value} > 0")
        terms = dict(value.terms)
        rest = terms.pop((), 0)
        [(monomial, factor), *others] = terms.items()
        if others or len(monomial) != 1 or factor < 0:
            return
        [unit] = monomial
        low, known = -rest // factor + 1, self.low[unit]
        if known is None or known < low:
            self.low[unit] = low
            self._bounds.clear()

    def number(self, terms: dict[Monomial, int]) -> int:
        """The extent with these terms; an int where it is constant."""
        nonzero = sorted(item for item in terms.items() if item[1])
        if not nonzero:
            return 0
        if len(nonzero) == 1 and not nonzero[0][0]:
            return nonzero[0][1]
        return Extent(self, tuple(nonzero))

    def lower_bound(self, terms: Terms) -> int | None:
        """The least value that follows from those of the units; None if none does.

        With each unit written as `low + rest`, it is the constant if no other term is negative.
        """
        if terms not in self._bounds:
            self._bounds[terms] = self._find_bound(terms)
        return self._bounds[terms]

    def _find_bound(self, terms: Terms) -> int | None:
        shifted: dict[Monomial, int] = {}
        for monomial, factor in terms:
            parts: dict[Monomial, int] = {(): factor}
            for unit in monomial:
                low = self.low[unit]
                if low is None:
                    return None
                grown: dict[Monomial, int] = {}
                for rest, number in parts.items():
                    _add(grown, tuple(sorted((*rest, unit))), number)
                    _add(grown, rest, number * low)
                parts = grown
            for rest, number in parts.items():
                _add(shifted, rest, number)
        constant = shifted.pop((), 0)
        if all(number >= 0 for number in shifted.values()):
            return constant
        less = self._less_quotient(terms)
        return None if less is None else self.lower_bound(less)

    def _less_quotient(self, terms: Terms) -> Terms | None:
        """Terms that are never above these: for one quotient that is subtracted,
        `divisor * quotient <= numerator`."""
        for monomial, factor in terms:
            numerator, divisor = self.divisions.get(monomial[0] if monomial else "", ((), 0))
            if divisor and len(monomial) == 1 and factor < 0 and factor % divisor == 0:
                found = dict(terms)
                del found[monomial]
                for part, number in numerator:
                    _add(found, part, number * (factor // divisor))
                return tuple(sorted(item for item in found.items() if item[1]))
        return None


class Extent(Number):
    """See the top of the file."""

    __slots__ = ("_hash", "sizes", "terms")

    def __init__(self, sizes: Sizes, terms: Terms) -> None:
        self.sizes = sizes
        self.terms = terms
        self._hash = hash(terms)

    @property
    def hint(self) -> int:
        """The value at the sizes of the compile."""
        hints = self.sizes.hints
        return sum(factor * prod(hints[u] for u in monomial) for monomial, factor in self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Extent and self._hash == other._hash and self.terms == other.terms
        )

    def __str__(self) -> str:
        text = " + ".join(_product(monomial, factor) for monomial, factor in reversed(self.terms))
        single = len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1
        return text if single else f"({text.replace('+ -', '- ')})"

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return str(self)

    # -- arithmetic -------------------------------------------------------------------------------

    def __add__(self, other: Any) -> int:
        if not isinstance(other, (Extent, int, float)):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, factor in terms_of(other):
            _add(terms, monomial, factor)
        return self.sizes.number(terms)

    __radd__ = __add__

    def __mul__(self, other: Any) -> int:
        if not isinstance(other, (Extent, int, float)):
            return NotImplemented  # a list, or an index
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in terms_of(other):
                _add(terms, tuple(sorted((*left, *right))), a * b)
        return self.sizes.number(terms)

    __rmul__ = __mul__

    def __neg__(self) -> int:
        return self * -1

    def __pos__(self) -> int:
        return self

    def __abs__(self) -> int:
        return self if self >= 0 else -self

    def __sub__(self, other: Any) -> int:
        return self + -other

    def __rsub__(self, other: Any) -> int:
        return -self + other

    def __floordiv__(self, other: Any) -> int:
        return _divide(self.sizes, self, other)[0]

    def __rfloordiv__(self, other: Any) -> int:
        return _divide(self.sizes, other, self)[0]

    def __mod__(self, other: Any) -> int:
        return _divide(self.sizes, self, other)[1]

    def __rmod__(self, other: Any) -> int:
        return _divide(self.sizes, other, self)[1]

    def __divmod__(self, other: Any) -> tuple[int, int]:
        return _divide(self.sizes, self, other)

    def __rdivmod__(self, other: Any) -> tuple[int, int]:
        return _divide(self.sizes, other, self)

    # What is no polynomial is computed from the number, which fixes it.

    def __truediv__(self, other: Any) -> float:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> float:
        return other / self.__index__()

    def __pow__(self, other: Any) -> Any:  # type: ignore[override]
        return self.__index__() ** other

    def __rpow__(self, other: Any) -> Any:  # type: ignore[override]
        return other ** self.__index__()

    # -- decisions --------------------------------------------------------------------------------

    def __lt__(self, other: Any) -> bool:
        return _is_positive(self.sizes, other - self)

    def __gt__(self, other: Any) -> bool:
        return _is_positive(self.sizes, self - other)

    def __le__(self, other: Any) -> bool:
        return not _is_positive(self.sizes, self - other)

    def __ge__(self, other: Any) -> bool:
        return not _is_positive(self.sizes, other - self)

    def __bool__(self) -> bool:
        if surely_positive(self) or surely_positive(-self):
            return True
        self.sizes.assume(f"{self} {'!=' if self.hint else '=='} 0")
        return self.hint != 0

    def __index__(self) -> int:
        self.sizes.assume(f"{self} == {self.hint}")
        return self.hint

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())


@dataclass(frozen=True, slots=True)
class Real:
    """A float that is computed from sizes when they are known; its text is as that of an extent."""

    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return self.text

    def __float__(self) -> float:
        raise TypeError(f"the float {self.text} is not known yet")

    __int__ = __bool__ = __float__  # type: ignore[assignment]


# -- questions that assume nothing ----------------------------------------------------------------


def hint_of(value: int) -> int:
    """The value at the sizes of the compile: for choices that are right either way."""
    return value.hint if type(value) is Extent else value


def terms_of(value: float) -> Terms:
    """The terms of a number."""
    if type(value) is Extent:
        return value.terms
    if value != int(value):
        raise TypeError(f"an extent meets {value}")
    return (((), int(value)),) if value else ()


def surely_positive(value: int) -> bool:
    """Whether the number is above 0 for all sizes; False where that is not known."""
    if type(value) is not Extent:
        return value > 0
    low = value.sizes.lower_bound(value.terms)
    return low is not None and low > 0


def surely_less(left: int, right: int) -> bool:
    """Whether `left < right` for all sizes; False where that is not known.

    >>> n = Sizes().symbol(hint=8, low=2)
    >>> surely_less(n, n + 1), surely_less(n, 100), surely_less(1, 2)
    (True, False, True)
    """
    return surely_positive(right - left)


def divides(divisor: int, value: int) -> bool:
    """Whether the division leaves nothing for all sizes."""
    return divide_out(value, divisor)[1] == 0


def divide_out(value: int, divisor: int) -> tuple[int, int]:
    """value = quotient * divisor + rest; the rest of extents may be anything."""
    if type(value) is type(divisor) is int:
        return divmod(value, divisor)
    known = value if type(value) is Extent else divisor
    return _divide_out(known.sizes, value, divisor)  # type: ignore[attr-defined]


def common_factor(left: int, right: int) -> int:
    """A positive number that divides both for all sizes; the greatest of ints, 0 of two zeros."""
    if type(left) is not Extent and type(right) is not Extent:
        return gcd(left, right)
    for one, other in ((left, right), (right, left)):
        if surely_positive(one) and divides(one, other):
            return one
    if 0 in (left, right):
        return 1  # of an extent whose sign is not known
    terms = [*terms_of(left), *terms_of(right)]
    number = gcd(*(factor for _, factor in terms))
    shared = list(terms[0][0])
    for monomial, _ in terms[1:]:
        rest = list(monomial)
        shared = [unit for unit in shared if unit in rest and not rest.remove(unit)]  # type: ignore
    sizes = left.sizes if type(left) is Extent else right.sizes  # type: ignore[attr-defined]
    positive = [unit for unit in shared if (sizes.low[unit] or 0) > 0]
    return sizes.number({tuple(positive): number})


def up_to_multiple(value: int, step: int) -> int:
    """How many steps reach `value`."""
    return (value + (step - 1)) // step


def power_of_two(count: int) -> int:
    """The least power of two that is not less than `count`."""
    return 1 << max(count - 1, 0).bit_length()


# -- parts ----------------------------------------------------------------------------------------


def _add(terms: dict[Monomial, int], monomial: Monomial, factor: int) -> None:
    terms[monomial] = terms.get(monomial, 0) + factor


def _product(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    text = "*".join(monomial)
    return text if factor == 1 else f"-{text}" if factor == -1 else f"{factor}*{text}"


def _is_positive(sizes: Sizes, value: int) -> bool:
    """Whether the number is above 0: proved, or assumed as the hint says."""
    if type(value) is not Extent:
        return value > 0
    if surely_positive(value):
        return True
    if surely_positive(1 - value):
        return False
    if value.hint <= 0:
        sizes.assume(f"{value} <= 0")
        return False
    sizes.assume_positive(value)
    return True


def _divide(sizes: Sizes, value: int, divisor: int) -> tuple[int, int]:
    """Floor quotient and remainder; what is known to come out even is divided out."""
    if not divisor > 0:
        raise ValueError(f"{value} divided by {divisor}, which is not positive")
    quotient, rest = _divide_out(sizes, value, divisor)
    is_even = type(rest) is int and rest == 0
    if is_even or surely_less(-1, rest) and surely_less(rest, divisor):
        return quotient, rest
    if surely_less(rest, 0) and surely_less(-1, rest + divisor):
        return quotient - 1, rest + divisor
    hints = divmod(hint_of(rest), hint_of(divisor))
    least = sizes.lower_bound(terms_of(rest))
    low = None if least is None else least // divisor if type(divisor) is int else min(least, 0)
    whole = sizes.unit(f"k_floordiv_index({rest}, {divisor})", hints[0], low)
    if type(divisor) is int:
        sizes.divisions[str(whole)] = (terms_of(rest), divisor)
    return quotient + whole, sizes.unit(f"k_mod_index({rest}, {divisor})", hints[1], 0)


def _divide_out(sizes: Sizes, value: int, divisor: int) -> tuple[int, int]:
    """See `divide_out`."""
    if type(divisor) is not Extent:
        whole: dict[Monomial, int] = {}
        for monomial, factor in terms_of(value):
            if not monomial or factor % divisor == 0:
                whole[monomial] = factor // divisor
        quotient = sizes.number(whole)
        return quotient, value - quotient * divisor
    lead, lead_factor = max(divisor.terms, key=_degree)
    quotient = 0
    rest = value
    moved = 0  # terms that can't be divided
    while type(rest) is Extent or rest:
        monomial, factor = max(terms_of(rest), key=_degree)
        left = _without(monomial, lead)
        if left is None or factor % lead_factor:
            part = sizes.number({monomial: factor})
            moved, rest = moved + part, rest - part
        else:
            part = sizes.number({left: factor // lead_factor})
            quotient, rest = quotient + part, rest - part * divisor
    return quotient, moved


def _degree(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return len(term[0]), term[0]


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """The quotient of two monomials, if it is one."""
    rest = list(monomial)
    for unit in part:
        if unit not in rest:
            return None
        rest.remove(unit)
    return tuple(rest)
