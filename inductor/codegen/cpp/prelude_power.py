"""Prelude parts for powers of float32.

2^(b * log2(a)) in double, where it has digits enough for one rounding at the end (0.501 ulp). Whole
vectors and single elements are one template, so that all have the same bits. Both the logarithm and
the power of two look up one of sixteen factors, which leaves short polynomials; on AVX-512 the
tables are registers. Zeros, infinities, NaN and negative bases are mended afterwards, where there
are any.
"""

from __future__ import annotations

import math
import struct

from inductor.codegen.cpp.prelude_tables import interpolated
from inductor.codegen.cpp.prelude_vector import NEAR

_NEAR = [n / 32 for n in NEAR]
_LOG2 = interpolated(lambda r: math.log1p(r) / r / math.log(2), -0.0401, 0.0626, 6, 0.0)
_EXP2 = interpolated(lambda r: math.expm1(r * math.log(2)) / r, -1 / 32, 1 / 32 + 1e-9, 3, 0.0)


def _root(n: int) -> float:
    """2^(n / 16) by its bits less those that n sixteenths of an exponent add."""
    (bits,) = struct.unpack("q", struct.pack("d", 2 ** (n / 16)))
    return float(*struct.unpack("d", struct.pack("q", bits - (n << 48))))


def _list(values: list[float]) -> str:
    return ", ".join(value.hex() for value in values)


def _polynomial(coefficients: list[float]) -> str:
    *rest, last = coefficients
    text = f"D{{}} + {last!r}"
    for value in reversed(rest):
        text = f"k_fused({text}, r, D{{}} + {value!r})"
    return text


# Sums of an exponent, as a float32 has it, and a logarithm from the table are exact where they are
# near zero: both are integers there.
_CORE = f"""\
alignas(64) static const f64 k_factors[] = {{
    {_list(_NEAR)},
    {_list([-math.log2(x) - 127 for x in _NEAR])},
    {_list([_root(n) for n in range(16)])}}};
K_INLINE f64 k_looked(u64 row, u64 place) {{ return k_factors[row * 16 + (place & 15)]; }}
#ifdef K_CALLS
K_INLINE k_doubles k_looked(u64 row, k_longs place) {{
  const f64* table = k_factors + row * 16;
#ifdef __AVX512F__
  const k_doubles* halves = (const k_doubles*)table;
  return __builtin_ia32_vpermt2varpd512_mask((k_i64s)place, halves[0], halves[1], (u8)-1);
#else
  k_doubles found;
  for (u64 n = 0; n < sizeof(found) / sizeof(f64); ++n) found[n] = table[place[n] & 15];
  return found;
#endif
}}
#endif
template <class D, class I> K_INLINE D k_log2_of(D m, D e, I place) {{
  D r = k_fused(m, k_looked(0, place), D{{}} - 1.0);
  return k_fused({_polynomial(_LOG2)}, r, e + k_looked(1, place));
}}
template <class D, class I> K_INLINE D k_exp2_of(D t) {{
  D w = t + 0x1.8p48, r = t - (w - 0x1.8p48);
  I n = __builtin_bit_cast(I, w);
  D s = __builtin_bit_cast(D, __builtin_bit_cast(I, k_looked(2, n)) + (n << 48));
  return k_fused({_polynomial(_EXP2)} * r, s, s);
}}
template <class D, class I> K_INLINE D k_power_of(D x, D b) {{
  I bits = __builtin_bit_cast(I, x);
  D m = __builtin_bit_cast(D, (bits & 0xffffffffffffful) | 0x3ff0000000000000ul);
  D e = __builtin_bit_cast(D, (bits >> 52) | 0x4330000000000000ul) - (0x1p52 + 896.0);
  D t = b * k_log2_of<D, I>(m, e, bits >> 48);
  t = t < 300.0 ? t : D{{}} + 300.0;
  t = t > -300.0 ? t : D{{}} - 300.0;
  return k_exp2_of<D, I>(t);
}}
"""

_MENDED = """\
K_INLINE f32 k_power_mended(f32 a, f32 b, f32 y) {
  f32 x = k_abs(a), limit = (x > 1.0f) == (b > 0.0f) ? __builtin_inff() : 0.0f;
  y = x == 1.0f ? 1.0f : y;
  y = x == 0.0f ? limit : y;
  y = x == __builtin_inff() ? limit : y;
  f32 half = b * 0.5f, whole = k_trunc(b), even = k_trunc(half);
  y = even != half ? k_copysign(y, a) : y;
  f32 other = a < 0.0f ? __builtin_nanf("") : y;
  other = a == -__builtin_inff() ? k_abs(y) : other;
  other = a == 0.0f ? k_abs(y) : other;
  y = whole != b ? other : y;
  y = a != a ? a : y;
  y = b != b ? b : y;
  y = a == 1.0f ? 1.0f : y;
  return b == 0.0f ? 1.0f : y;
}
"""

_POWERS = """\
#if defined(__AVX512F__)
#define K_ANY(x) (__builtin_ia32_ptestmd512((k_i32s)(x), (k_i32s)(x), (u16)-1) != 0)
#elif defined(__AVX__)
#define K_ANY(x) (__builtin_ia32_movmskps256((k_f32x8)(x)) != 0)
#else
#define K_ANY(x) (__builtin_ia32_movmskps((k_f32x4)(x)) != 0)
#endif
#define K_POWERS(V, MARK, NAME)                                                                 \\
  static __attribute__((noinline)) V k_mended_##NAME(V x, V y, V z) {                           \\
    enum { N = sizeof(V) / sizeof(f32) };                                                       \\
    f32 a[N], b[N], c[N];                                                                       \\
    __builtin_memcpy(a, &x, sizeof(V));                                                         \\
    __builtin_memcpy(b, &y, sizeof(V));                                                         \\
    __builtin_memcpy(c, &z, sizeof(V));                                                         \\
    for (u64 n = 0; n < N; ++n) c[n] = k_power_mended(a[n], b[n], c[n]);                        \\
    __builtin_memcpy(&z, c, sizeof(V));                                                         \\
    return z;                                                                                   \\
  }                                                                                             \\
  K_INLINE V k_form_##NAME(V a, V b) {                                                          \\
    V x = k_magnitude(a);                                                                       \\
    k_doubles low = k_power_of<k_doubles, k_longs>(                                             \\
        k_doubles_of(k_low_half(x)), k_doubles_of(k_low_half(b)));                              \\
    k_doubles high = k_power_of<k_doubles, k_longs>(                                            \\
        k_doubles_of(k_high_half(x)), k_doubles_of(k_high_half(b)));                            \\
    V y = k_joined(k_singles_of(low), k_singles_of(high));                                      \\
    V most = V{} + 3.4028234663852886e38f;                                                      \\
    auto zero = ((k_i32s)a == 0) & (b >= 0.5f) & (b <= most);                                   \\
    auto usual = (a > 0.0f) & (a <= most) & (k_magnitude(b) <= most);                           \\
    return __builtin_expect(K_ANY(~(usual | zero)), 0) ? k_mended_##NAME(a, b, y) : y;          \\
  }
#define K_POWERS_f32(NAME)                                                                      \\
  K_WHOLE_f32(K_POWERS, NAME) K_WHOLE_f32(K_WRITTEN_vv, NAME)                                   \\
  K_PARTS_f32(K_PART_vv, NAME) K_WHOLE_f32(K_SINGLE_vv, NAME, f32)
"""

POWER_PARTS = {
    **dict.fromkeys(("k_power_of", "k_log2_of", "k_exp2_of"), _CORE),
    "k_power_mended": _MENDED,
    "K_POWERS_f32": _POWERS,
}

POWER = """\
K_INLINE f32 k_single_pow_f32(f32 a, f32 b) {
  i32 bits = __builtin_bit_cast(i32, a);
  f64 m = __builtin_bit_cast(f32, (bits & 0x7fffff) | 0x3f800000);
  f64 t = (f64)b * k_log2_of<f64, u64>(m, bits >> 23, (u32)bits >> 19);
  if (__builtin_expect(bits >= 0x800000 && bits < 0x7f800000 && k_abs(t) < 300.0, 1))
    return (f32)k_exp2_of<f64, u64>(t);
  return k_power_mended(a, b, (f32)k_power_of<f64, u64>(k_abs(a), b));
}
#if defined(K_CALLS) && defined(K_USES_f32)
K_POWERS_f32(pow_f32)
K_INLINE f32 k_pow(f32 a, f32 b) { return k_call_pow_f32(a, b); }
#else
K_INLINE f32 k_pow(f32 a, f32 b) {
  return k_power_mended(a, b, (f32)k_power_of<f64, u64>(k_abs(a), b));
}
#endif
"""
