"""Prelude parts for the sine and the cosine of float32.

Both are computed in double and rounded once: x = n * pi + r, and sin(r) by the odd polynomial of
degree 9 whose greatest relative error is least (6.1e-9, 0.1 ulp). A library of vectors that eager
mode uses on x86 has the same polynomial, so nearly all results have eager's bits; errors are at
most 0.602 ulp. Whole vectors and single elements are one template, whose multiply-adds are written
out, so that all have the same bits. Where |x| is so large that two (without fused multiply-adds,
three) parts of pi don't suffice, the C library's function of double takes over.
"""

from __future__ import annotations

from decimal import Decimal

from inductor.codegen.cpp.prelude_vector import split

_PI = Decimal("3.14159265358979323846264338327950288419716939937510582")
_SINE = (1.0, -0.16666659550420287, 0.00833306624587391, -0.00019809602885636934,
         2.6057805998718067e-06)  # fmt: skip


def _less_turns(parts: tuple[Decimal, ...]) -> str:
    """r = x less n times each part."""
    first, *rest = (float(part).hex() for part in parts)
    steps = (f"r = k_fused(n, D{{}} - {part}, r);" for part in rest)
    return " ".join([f"D r = k_fused(n, D{{}} - {first}, x);", *steps])


def _parts(bits: int, count: int) -> tuple[Decimal, ...]:
    """Pi as a sum; all parts but the last have so many bits."""
    found, rest = [], _PI
    for n in range(1, count):
        high, rest = split(rest, bits * n - 2)
        found.append(high)
    return (*found, rest)


_POLYNOMIAL = f"D{{}} + {_SINE[-1]!r}"
for _value in reversed(_SINE[:-1]):
    _POLYNOMIAL = f"k_fused({_POLYNOMIAL}, s, D{{}} + {_value!r})"

# n counts half turns from where the function rises through zero; its last bit says whether the
# function falls there instead. The last factor is r, so that the sign of zero is kept.
CIRCLE = f"""\
#if defined(__FMA__) || defined(__aarch64__)
#define K_FAR 0x1p36f
#define K_LESS_TURNS {_less_turns(_parts(53, 2))}
#else
#define K_FAR 0x1p21f
#define K_LESS_TURNS {_less_turns(_parts(30, 3))}
#endif
template <bool cosine, class D, class I> K_INLINE D k_circle(D x) {{
  const D turns = D{{}} + {float(1 / _PI).hex()}, magic = D{{}} + 0x1.8p52, half = D{{}} + 0.5;
  D t = cosine ? k_fused(x, turns, half) + magic : k_fused(x, turns, magic);
  D n = cosine ? t - magic - half : t - magic;
  K_LESS_TURNS
  D s = r * r;
  D y = {_POLYNOMIAL} * r;
  return __builtin_bit_cast(D, __builtin_bit_cast(I, y) ^ __builtin_bit_cast(I, t) << 63);
}}
"""

CIRCLES = """\
#ifdef K_CALLS
#if defined(__AVX512F__)
#define K_ANY_FAR(x) __builtin_ia32_cmpps512_mask(x, k_f32x16{} + K_FAR, 30, (u16)-1, 4)
#elif defined(__AVX__)
#define K_ANY_FAR(x) __builtin_ia32_movmskps256((k_f32x8)(x > K_FAR))
#else
#define K_ANY_FAR(x) __builtin_ia32_movmskps((k_f32x4)(x > K_FAR))
#endif
template <bool cosine, class V> K_INLINE V k_near_circle(V x) {
  k_doubles a = k_circle<cosine, k_doubles, k_longs>(k_doubles_of(k_low_half(x)));
  k_doubles b = k_circle<cosine, k_doubles, k_longs>(k_doubles_of(k_high_half(x)));
  return k_joined(k_singles_of(a), k_singles_of(b));
}
#define K_CIRCLES(V, MARK, NAME, COSINE)                                                        \\
  static __attribute__((noinline)) V k_far_##NAME(V x, V y) {                                   \\
    for (u64 n = 0; n < sizeof(V) / sizeof(f32); ++n)                                           \\
      if (k_abs(x[n]) > K_FAR) y[n] = k_single_##NAME(x[n]);                                    \\
    return y;                                                                                   \\
  }                                                                                             \\
  K_INLINE V k_form_##NAME(V x) {                                                               \\
    V y = k_near_circle<COSINE, V>(x);                                                          \\
    return __builtin_expect(K_ANY_FAR(k_magnitude(x)) == 0, 1) ? y : k_far_##NAME(x, y);        \\
  }
#define K_CIRCLES_f32(NAME, COSINE)                                                             \\
  K_WHOLE_f32(K_CIRCLES, NAME, COSINE) K_WHOLE_f32(K_WRITTEN_v, NAME)                           \\
  K_PARTS_f32(K_PART_v, NAME) K_WHOLE_f32(K_SINGLE_v, NAME, f32)
#endif
"""


def circle(name: str) -> str:
    """`k_sin` or `k_cos` of float32."""
    cosine = "true" if name == "cos" else "false"
    return f"""\
extern "C" __attribute__((const, nothrow)) f64 k_double_{name}(f64) asm("{name}");
K_INLINE f32 k_single_{name}_f32(f32 x) {{
  if (__builtin_expect(k_abs(x) > K_FAR, 0)) return (f32)k_double_{name}(x);
  return (f32)k_circle<{cosine}, f64, u64>(x);
}}
#if defined(K_CALLS) && defined(K_USES_f32)
K_CIRCLES_f32({name}_f32, {cosine})
K_INLINE f32 k_{name}(f32 x) {{ return k_call_{name}_f32(x); }}
#else
K_INLINE f32 k_{name}(f32 x) {{ return k_single_{name}_f32(x); }}
#endif
"""
