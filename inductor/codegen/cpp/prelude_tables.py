"""Prelude parts for AVX-512: functions whose pieces have polynomials in tables of a register.

The absolute value chooses one of sixteen pieces, and with it a point near its middle and a
polynomial around that point. Points are chosen where the function is nearly a float32, so that
rounding a first coefficient costs no accuracy. In the piece at zero that is zero itself: results
near zero are as exact as others. Above `limit` results are those at the limit, 1. Tables are
interpolated here, in float64; errors are at most 0.91 (erf) and 0.78 ulp (tanh) over all float32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PIECES = 16  # as many as a register of AVX-512 holds of float32


@dataclass(frozen=True, slots=True)
class Pieces:
    """A function in pieces: 2^bits for each power of two from 2^first on, the first one from 0."""

    function: Callable[[float], float]
    first: int
    bits: int
    degree: int
    limit: float

    def edge(self, n: int) -> float:
        octave, part = divmod(n, 1 << self.bits)
        return 2.0 ** (self.first + octave) * (1 + part / (1 << self.bits)) if n else 0.0

    @property
    def slot(self) -> int:
        """Where in the tables the first piece stands: the upper bits of its numbers say so."""
        return ((127 + self.first) << self.bits) % PIECES


PIECES_OF = {"erf": Pieces(math.erf, -2, 2, 6, 3.93), "tanh": Pieces(math.tanh, -4, 1, 7, 9.1)}


def _single(value: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _point(function: Callable[[float], float], low: float, high: float) -> float:
    """A float32 near the middle where the function is within 2^-28 of a float32."""
    middle = _single((low + high) / 2)
    step = math.ulp(middle) * 2**29

    def error(x: float) -> float:
        return abs(_single(function(x)) / function(x) - 1)

    candidates = (middle + n // 2 * (step if n % 2 else -step) for n in range(1, 64))
    best = middle
    for x in candidates:
        if error(x) < error(best):
            best = x
        if error(best) < 2.0**-28:
            break
    return best


def interpolated(
    function: Callable[[float], float], low: float, high: float, degree: int, point: float
) -> list[float]:
    """Coefficients of powers of x - point of the polynomial through Chebyshev's nodes."""
    count = degree + 1
    angles = [math.pi * (2 * n + 1) / (2 * count) for n in range(count)]
    nodes = [(low + high) / 2 + (high - low) / 2 * math.cos(angle) for angle in angles]
    divided = [function(x) for x in nodes]
    for order in range(1, count):
        for n in range(count - 1, order - 1, -1):
            divided[n] = (divided[n] - divided[n - 1]) / (nodes[n] - nodes[n - order])
    found = [0.0] * count
    for n in range(count - 1, -1, -1):
        shift = point - nodes[n]
        found = [shift * a + b for a, b in zip(found, [0.0, *found], strict=False)]
        found[0] += divided[n]
    return found


def _piece(pieces: Pieces, n: int) -> list[float]:
    """The point of piece n, and its coefficients."""
    low, high = pieces.edge(n), min(pieces.edge(n + 1), pieces.limit + 0.01)
    function, degree = pieces.function, pieces.degree
    if n == 0:  # without x itself, which is added with one rounding
        ratios = interpolated(lambda x: function(x) / x - 1, low, high, degree - 1, 0.0)
        return [0.0, 0.0, *ratios]
    if low >= pieces.limit:  # is not used
        return [pieces.limit, 1.0] + [0.0] * degree
    point = _point(function, low, high)
    return [point, *interpolated(function, low, high, degree, point)]


def _list(values: Sequence[float]) -> str:
    return "{" + ", ".join(f"{_single(value).hex()}f" for value in values) + "}"


def table_form(name: str) -> str:
    """C++ text of the function over a whole vector; the sign of x is that of the result."""
    pieces = PIECES_OF[name]
    order = [(n - pieces.slot) % PIECES for n in range(PIECES)]
    rows = [_piece(pieces, n) for n in order]
    columns = [_list([row[k] for row in rows]) for k in range(pieces.degree + 2)]
    tables = ",\n    ".join(f"c{k} = {text}" for k, text in enumerate(columns[1:]))
    steps = "".join(f"  p = k_fma(p, r, K_LOOK(c{k}));\n" for k in range(pieces.degree - 1, 0, -1))
    return f"""\
K_INLINE k_f32x16 k_form_{name}_f32(k_f32x16 x) {{
  static const k_f32x16 point = {columns[0]},
    {tables};
  k_f32x16 a = (k_f32x16)((k_i32x16)x & 0x7fffffff);
  a = __builtin_ia32_minps512_mask(k_f32x16{{}} + {pieces.limit!r}f, a, a, K_ALL32);
  k_i32x16 place = (k_i32x16)__builtin_ia32_maxps512_mask(
      a, k_f32x16{{}} + {2.0**pieces.first!r}f, a, K_ALL32) >> {23 - pieces.bits};
#define K_LOOK(table) __builtin_ia32_permvarsf512_mask(table, place, table, (u16)-1)
  k_f32x16 middle = K_LOOK(point), r = a - middle;
  k_f32x16 p = K_LOOK(c{pieces.degree});
{steps}  p = k_fma(p, r, middle != 0.0f ? K_LOOK(c0) : a);
#undef K_LOOK
  return (k_f32x16)((k_i32x16)p | ((k_i32x16)x & (i32)0x80000000));
}}
"""
