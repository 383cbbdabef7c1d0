"""Prelude parts for functions over whole vectors, which g++ calls from its loops.

A scalar function that is declared with `simd` has vector forms under names that the ABI gives. Here
each form is one and the same function over the widest vectors that the processor has: narrower
vectors and single elements are computed as such vectors that hold them several times. So a result
does not depend on its place, nor on whether its loop is vectorised.

That function is one of libmvec (its vectors of different widths, and libm, round differently), or,
with AVX-512, one that is written out with instructions that g++ does not find by itself: tables in
registers, exponents and mantissas of all numbers, scaling that knows overflow and denormal numbers.
Other compilers use what `prelude_math` has else.

Tables are computed here, to more digits than a float64 has.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal

from inductor.codegen.cpp.prelude_tables import PIECES_OF, table_form

_DIGITS = Context(prec=40)
_LOG2 = _DIGITS.ln(Decimal(2))

# K_LIBRARY_...(NAME, FUNCTION) and K_FORM_...(NAME) define `k_call_NAME` and its forms
CALLS = """\
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 11
#define K_CALLS
typedef f32 k_f32x16 __attribute__((vector_size(64)));
typedef f32 k_f32x8 __attribute__((vector_size(32)));
typedef f32 k_f32x4 __attribute__((vector_size(16)));
typedef f64 k_f64x8 __attribute__((vector_size(64)));
typedef f64 k_f64x4 __attribute__((vector_size(32)));
typedef f64 k_f64x2 __attribute__((vector_size(16)));
#if defined(__AVX512F__)
#define K_WHOLE_f32(DO, ...) DO(k_f32x16, eN16, __VA_ARGS__)
#define K_WHOLE_f64(DO, ...) DO(k_f64x8, eN8, __VA_ARGS__)
#define K_PARTS_f32(DO, N) DO(k_f32x16, k_f32x8, dN8, N) DO(k_f32x16, k_f32x4, bN4, N)
#define K_PARTS_f64(DO, N) DO(k_f64x8, k_f64x4, dN4, N) DO(k_f64x8, k_f64x2, bN2, N)
#elif defined(__AVX__)
#if defined(__AVX2__)
#define K_WHOLE_f32(DO, ...) DO(k_f32x8, dN8, __VA_ARGS__)
#define K_WHOLE_f64(DO, ...) DO(k_f64x4, dN4, __VA_ARGS__)
#else
#define K_WHOLE_f32(DO, ...) DO(k_f32x8, cN8, __VA_ARGS__)
#define K_WHOLE_f64(DO, ...) DO(k_f64x4, cN4, __VA_ARGS__)
#endif
#define K_PARTS_f32(DO, N) DO(k_f32x8, k_f32x4, bN4, N)
#define K_PARTS_f64(DO, N) DO(k_f64x4, k_f64x2, bN2, N)
#else
#define K_WHOLE_f32(DO, ...) DO(k_f32x4, bN4, __VA_ARGS__)
#define K_WHOLE_f64(DO, ...) DO(k_f64x2, bN2, __VA_ARGS__)
#define K_PARTS_f32(DO, N)
#define K_PARTS_f64(DO, N)
#endif
template <class V, class P> K_INLINE V k_filled(P x) {
  V v;
  for (u64 n = 0; n < sizeof(V); n += sizeof(P)) __builtin_memcpy((char*)&v + n, &x, sizeof(P));
  return v;
}
template <class V, class P> K_INLINE P k_first_of(V v) {
  P x;
  __builtin_memcpy(&x, &v, sizeof(P));
  return x;
}
#define K_SIMD extern "C" __attribute__((simd("notinbranch"), const, nothrow))
#define K_PART_v(V, P, MARK, NAME)                                                              \\
  static P k_##MARK##_##NAME(P) asm("_ZGV" #MARK "v_k_call_" #NAME);                            \\
  static __attribute__((used)) P k_##MARK##_##NAME(P x) {                                       \\
    return k_first_of<V, P>(k_whole_##NAME(k_filled<V>(x)));                                    \\
  }
#define K_PART_vv(V, P, MARK, NAME)                                                             \\
  static P k_##MARK##_##NAME(P, P) asm("_ZGV" #MARK "vv_k_call_" #NAME);                        \\
  static __attribute__((used)) P k_##MARK##_##NAME(P x, P y) {                                  \\
    return k_first_of<V, P>(k_whole_##NAME(k_filled<V>(x), k_filled<V>(y)));                    \\
  }
#define K_ONE_v(V, MARK, NAME, T)                                                               \\
  K_SIMD T k_call_##NAME(T);                                                                    \\
  static T k_one_##NAME(T) asm("k_call_" #NAME);                                                \\
  static __attribute__((used)) T k_one_##NAME(T x) {                                            \\
    return k_whole_##NAME(k_filled<V>(x))[0];                                                   \\
  }
#define K_ONE_vv(V, MARK, NAME, T)                                                              \\
  K_SIMD T k_call_##NAME(T, T);                                                                 \\
  static T k_one_##NAME(T, T) asm("k_call_" #NAME);                                             \\
  static __attribute__((used)) T k_one_##NAME(T x, T y) {                                       \\
    return k_whole_##NAME(k_filled<V>(x), k_filled<V>(y))[0];                                   \\
  }
#define K_SINGLE_v(V, MARK, NAME, T)                                                            \\
  K_SIMD T k_call_##NAME(T);                                                                    \\
  static T k_one_##NAME(T) asm("k_call_" #NAME);                                                \\
  static __attribute__((used)) T k_one_##NAME(T x) { return k_single_##NAME(x); }
#define K_SINGLE_vv(V, MARK, NAME, T)                                                           \\
  K_SIMD T k_call_##NAME(T, T);                                                                 \\
  static T k_one_##NAME(T, T) asm("k_call_" #NAME);                                             \\
  static __attribute__((used)) T k_one_##NAME(T x, T y) { return k_single_##NAME(x, y); }
#define K_LIBRARY_v(V, MARK, NAME, FUNCTION)                                                    \\
  extern "C" __attribute__((const, nothrow)) V k_whole_##NAME(V)                                \\
      asm("_ZGV" #MARK "v_" #FUNCTION);                                                         \\
  asm(".set _ZGV" #MARK "v_k_call_" #NAME ", _ZGV" #MARK "v_" #FUNCTION);
#define K_LIBRARY_vv(V, MARK, NAME, FUNCTION)                                                   \\
  extern "C" __attribute__((const, nothrow)) V k_whole_##NAME(V, V)                             \\
      asm("_ZGV" #MARK "vv_" #FUNCTION);                                                        \\
  asm(".set _ZGV" #MARK "vv_k_call_" #NAME ", _ZGV" #MARK "vv_" #FUNCTION);
#define K_WRITTEN_v(V, MARK, NAME)                                                              \\
  static __attribute__((used, noinline)) V k_whole_##NAME(V x)                                  \\
      asm("_ZGV" #MARK "v_k_call_" #NAME);                                                      \\
  V k_whole_##NAME(V x) { return k_form_##NAME(x); }
#define K_WRITTEN_vv(V, MARK, NAME)                                                             \\
  static __attribute__((used, noinline)) V k_whole_##NAME(V x, V y)                             \\
      asm("_ZGV" #MARK "vv_k_call_" #NAME);                                                     \\
  V k_whole_##NAME(V x, V y) { return k_form_##NAME(x, y); }
#define K_LIBRARY_f32_v(NAME, FUNCTION)                                                         \\
  K_WHOLE_f32(K_LIBRARY_v, NAME, FUNCTION) K_PARTS_f32(K_PART_v, NAME)                          \\
  K_WHOLE_f32(K_ONE_v, NAME, f32)
#define K_LIBRARY_f64_v(NAME, FUNCTION)                                                         \\
  K_WHOLE_f64(K_LIBRARY_v, NAME, FUNCTION) K_PARTS_f64(K_PART_v, NAME)                          \\
  K_WHOLE_f64(K_ONE_v, NAME, f64)
#define K_LIBRARY_f32_vv(NAME, FUNCTION)                                                        \\
  K_WHOLE_f32(K_LIBRARY_vv, NAME, FUNCTION) K_PARTS_f32(K_PART_vv, NAME)                        \\
  K_WHOLE_f32(K_ONE_vv, NAME, f32)
#define K_LIBRARY_f64_vv(NAME, FUNCTION)                                                        \\
  K_WHOLE_f64(K_LIBRARY_vv, NAME, FUNCTION) K_PARTS_f64(K_PART_vv, NAME)                        \\
  K_WHOLE_f64(K_ONE_vv, NAME, f64)
#endif
"""

FORMS = """\
#if defined(K_CALLS) && defined(__AVX512F__) && __GNUC__ >= 12
#define K_FORMS
typedef i32 k_i32x16 __attribute__((vector_size(64)));
typedef long long k_i64x8 __attribute__((vector_size(64)));
#define K_ALL32 (u16)-1, 4
#define K_ALL64 (u8)-1, 4
K_INLINE k_f32x16 k_fma(k_f32x16 a, k_f32x16 b, k_f32x16 c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, K_ALL32);
}
K_INLINE k_f64x8 k_fma(k_f64x8 a, k_f64x8 b, k_f64x8 c) {
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, K_ALL64);
}
#define K_FORM_f32(NAME)                                                                        \\
  K_WHOLE_f32(K_WRITTEN_v, NAME) K_PARTS_f32(K_PART_v, NAME) K_WHOLE_f32(K_ONE_v, NAME, f32)
#define K_FORM_f64(NAME)                                                                        \\
  K_WHOLE_f64(K_WRITTEN_v, NAME) K_PARTS_f64(K_PART_v, NAME) K_WHOLE_f64(K_ONE_v, NAME, f64)
#endif
"""


# Halves of the widest vectors of float32 as double. Multiply-adds have one name for them and for
# single elements, so that one template serves both with the same bits.
DOUBLES = """\
K_INLINE f64 k_fused(f64 a, f64 b, f64 c) { return k_fma(a, b, c); }
#ifdef K_CALLS
#if defined(__AVX512F__)
typedef k_f64x8 k_doubles;
typedef k_f32x8 k_singles;
K_INLINE k_doubles k_fused(k_doubles a, k_doubles b, k_doubles c) {
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, (u8)-1, 4);
}
K_INLINE k_doubles k_doubles_of(k_singles x) {
  return __builtin_ia32_cvtps2pd512_mask(x, k_doubles{}, (u8)-1, 4);
}
K_INLINE k_singles k_singles_of(k_doubles x) {
  return __builtin_ia32_cvtpd2ps512_mask(x, k_singles{}, (u8)-1, 4);
}
K_INLINE k_f32x16 k_joined(k_singles low, k_singles high) {
  k_f64x8 both = __builtin_ia32_pd512_256pd((k_f64x4)low);
  both = __builtin_ia32_insertf64x4_mask(both, (k_f64x4)high, 1, both, (u8)-1);
  return (k_f32x16)both;
}
#else
#if defined(__AVX__)
typedef k_f64x4 k_doubles;
typedef k_f32x4 k_singles;
K_INLINE k_f32x8 k_joined(k_singles low, k_singles high) {
  return __builtin_ia32_vinsertf128_ps256(__builtin_ia32_ps256_ps(low), high, 1);
}
#else
typedef k_f64x2 k_doubles;
typedef f32 k_singles __attribute__((vector_size(8)));
K_INLINE k_f32x4 k_joined(k_singles low, k_singles high) {
  return k_f32x4{low[0], low[1], high[0], high[1]};
}
#endif
#ifdef __FMA__
K_INLINE k_doubles k_fused(k_doubles a, k_doubles b, k_doubles c) {
  return __builtin_ia32_vfmaddpd256(a, b, c);
}
#else
K_INLINE k_doubles k_fused(k_doubles a, k_doubles b, k_doubles c) { return a * b + c; }
#endif
K_INLINE k_doubles k_doubles_of(k_singles x) { return __builtin_convertvector(x, k_doubles); }
K_INLINE k_singles k_singles_of(k_doubles x) { return __builtin_convertvector(x, k_singles); }
#endif
typedef u64 k_longs __attribute__((vector_size(sizeof(k_doubles))));
typedef long long k_i64s __attribute__((vector_size(sizeof(k_doubles))));
typedef i32 k_i32s __attribute__((vector_size(sizeof(k_doubles))));
template <class V> K_INLINE V k_magnitude(V x) {
  typedef i32 W __attribute__((vector_size(sizeof(V))));
  return (V)((W)x & 0x7fffffff);
}
template <class V> K_INLINE k_singles k_low_half(V x) { return k_first_of<V, k_singles>(x); }
template <class V> K_INLINE k_singles k_high_half(V x) {
  k_singles high;
  __builtin_memcpy(&high, (char*)&x + sizeof(high), sizeof(high));
  return high;
}
#endif
"""


def _exactly(value: Decimal) -> str:
    """The nearest float64, as text."""
    return float(value).hex()


def _list(values: Sequence[Decimal], ending: str = "") -> str:
    return ", ".join(_exactly(value) + ending for value in values)


def split(value: Decimal, bits: int) -> tuple[Decimal, Decimal]:
    """A multiple of 2^-bits that is not above it, and the rest."""
    high = Decimal(int(_DIGITS.multiply(value, Decimal(1 << bits)))) / (1 << bits)
    return high, _DIGITS.subtract(value, high)


def _horner(vector: str, coefficients: Sequence[float], ending: str = "") -> str:
    *rest, last = coefficients
    text = f"{vector}{{}} + {last!r}{ending}"
    for value in reversed(rest):
        text = f"k_fma({text}, r, {vector}{{}} + {value!r}{ending})"
    return text


_LOG_POLYNOMIALS = {
    "f32": (-0.49999985, 0.333345, -0.25033003, 0.19208097),
    "f64": (-0.4999999999999972, 0.3333333333334949, -0.2500000000212733, 0.199999999511307,
            -0.16666662290316436, 0.142857423882201, -0.12503416470601128, 0.11123307320252604,
            -0.09103776982304615),
}  # fmt: skip
"""(log(1 + r) - r) / r^2 for r between -0.04 and 1/16"""

NEAR = (32, 30, 28, 27, 25, 24, 23, 22, 21, 20, 20, 19, 18, 17, 17, 16)

# x = 2^e * m with 1 <= m < 2. `near` is about 1 / m, by the upper four bits of m, in 32nds, so that
# r = m * near - 1 is exact; it is 1 at the lower end and 1/2 at the upper one, around x = 1. The
# logarithm is e * log(2) - log(near) + log(1 + r); the first two are so short in their upper parts
# that the sum of these is exact. getexp and getmant give -inf and 1 for 0, inf and 1 for inf, NaN
# for negative numbers, and know denormal ones.
_LOG = {
    "f32": """\
K_INLINE k_f32x16 k_form_NAME(k_f32x16 x) {
  static const k_f32x16 near = {NEAR}, high = {HIGH}, low = {LOW};
  k_f32x16 e = __builtin_ia32_getexpps512_mask(x, x, K_ALL32);
  k_f32x16 m = __builtin_ia32_getmantps512_mask(x, 12, x, K_ALL32);
  k_i32x16 place = (k_i32x16)m >> 19;
#define K_LOOK(table) __builtin_ia32_permvarsf512_mask(table, place, table, (u16)-1)
  k_f32x16 r = k_fma(m, K_LOOK(near), k_f32x16{} - 1.0f);
  k_f32x16 p = POLYNOMIAL;
  k_f32x16 h = k_fma(e, VECTOR{} + UNITf, K_LOOK(high));
  k_f32x16 l = REST;
#undef K_LOOK
  return h + ENDING;
}
""",
    "f64": """\
K_INLINE k_f64x8 k_form_NAME(k_f64x8 x) {
  static const k_f64x8 near[] = {NEAR}, high[] = {HIGH}, low[] = {LOW};
  k_f64x8 e = __builtin_ia32_getexppd512_mask(x, x, K_ALL64);
  k_f64x8 m = __builtin_ia32_getmantpd512_mask(x, 12, x, K_ALL64);
  k_i64x8 place = (k_i64x8)m >> 48;
#define K_LOOK(table) __builtin_ia32_vpermt2varpd512_mask(place, table[0], table[1], (u8)-1)
  k_f64x8 r = k_fma(m, K_LOOK(near), k_f64x8{} - 1.0);
  k_f64x8 p = POLYNOMIAL;
  k_f64x8 h = k_fma(e, VECTOR{} + UNIT, K_LOOK(high));
  k_f64x8 l = REST;
#undef K_LOOK
  return h + ENDING;
}
""",
}


def _log(name: str, kind: str, base: int | None) -> str:
    """The form of a logarithm; `base`: None for e."""
    single = kind == "f32"
    end, bits = ("f", 16) if single else ("", 42)
    scale = Decimal(1) if base is None else _DIGITS.divide(Decimal(1), _DIGITS.ln(Decimal(base)))
    near = [Decimal(k) / 32 for k in NEAR]
    parts = [split(-_DIGITS.ln(x) * scale, bits) for x in near]
    unit = split(_LOG2 * scale, bits)
    parts[15] = unit
    ending = "(k_fma(p, r * r, l) + r)"
    if base is not None:
        first = _shorten(scale, 12 if single else 26)
        rest = _exactly(_DIGITS.subtract(scale, first)) + end
        p = f"k_fma(p * r, VECTOR{{}} + {_exactly(scale)}{end}, VECTOR{{}} + {rest})"
        ending = f"k_fma(r, VECTOR{{}} + {_exactly(first)}{end}, k_fma(r, {p}, l))"
    text = _LOG[kind]
    vector = "k_f32x16" if single else "k_f64x8"
    tables = [near, *([part[n] for part in parts] for n in (0, 1))]
    for word, table in zip(("NEAR", "HIGH", "LOW"), tables, strict=True):
        halves = (table,) if single else (table[:8], table[8:])
        lists = [_list(half, end) for half in halves]
        given = lists[0] if single else ", ".join(f"{{{part}}}" for part in lists)
        text = text.replace(f"{{{word}}}", f"{{{given}}}")
    rest = f"k_fma(e, VECTOR{{}} + {_exactly(unit[1])}{end}, K_LOOK(low))"
    text = text.replace("ENDING", ending).replace("REST", rest if unit[1] else "K_LOOK(low)")
    text = text.replace("UNIT", _exactly(unit[0])).replace("VECTOR", vector)
    text = text.replace("POLYNOMIAL", _horner(vector, _LOG_POLYNOMIALS[kind], end))
    return text.replace("NAME", f"{name}_{kind}")


def _shorten(value: Decimal, bits: int) -> Decimal:
    """The nearest number with so many bits behind the point."""
    return Decimal(round(value * (1 << bits))) / (1 << bits)


_EXP_STEPS = [_DIGITS.power(Decimal(2), Decimal(j) / 16) for j in range(16)]
_EXP_UNIT = split(_LOG2 / 16, 42)

# x = n * log(2) / 16 + r; scalef multiplies by 2^floor(n / 16), and the rest of n chooses a factor
_EXP_F64 = f"""\
K_INLINE k_f64x8 k_form_exp_f64(k_f64x8 x) {{
  static const k_f64x8 step[] = {{{{{_list(_EXP_STEPS[:8])}}}, {{{_list(_EXP_STEPS[8:])}}}}};
  x = __builtin_ia32_minpd512_mask(k_f64x8{{}} + 720.0, x, x, K_ALL64);
  x = __builtin_ia32_maxpd512_mask(k_f64x8{{}} - 760.0, x, x, K_ALL64);
  k_f64x8 t = k_fma(x, k_f64x8{{}} + 0x1.71547652b82fep4, k_f64x8{{}} + 0x1.8p52);
  k_f64x8 n = t - 0x1.8p52;
  k_f64x8 r = k_fma(n, k_f64x8{{}} - {_exactly(_EXP_UNIT[0])}, x);
  r = k_fma(n, k_f64x8{{}} - {_exactly(_EXP_UNIT[1])}, r);
  k_f64x8 p = {_horner("k_f64x8", (0.5000000000000006, 0.1666666666441693, 0.04166666665973198,
                                   0.008333471952062297, 0.0013889127790816592))};
  k_f64x8 s = __builtin_ia32_vpermt2varpd512_mask((k_i64x8)t, step[0], step[1], (u8)-1);
  k_f64x8 y = k_fma(k_fma(p, r * r, r), s, s);
  return __builtin_ia32_scalefpd512_mask(y, n * 0.0625, y, K_ALL64);
}}
"""

# The sum of errors of a root and of half its inverse fall with each step; the last one rounds
# correctly where its residue is exact. Vectors with other numbers, zeros too, are left to the
# processor.
_SQRT_F64 = """\
K_INLINE k_f64x8 k_form_sqrt_f64(k_f64x8 x) {
  u8 low = __builtin_ia32_cmppd512_mask(x, k_f64x8{} + 0x1p-900, 29, K_ALL64);
  u8 usual = __builtin_ia32_cmppd512_mask(x, k_f64x8{} + 0x1p1023, 17, low, 4);
  if (__builtin_expect(usual != 255, 0)) return __builtin_ia32_sqrtpd512_mask(x, x, K_ALL64);
  k_f64x8 y = __builtin_ia32_rsqrt14pd512_mask(x, x, (u8)-1);
  k_f64x8 s = x * y, h = 0.5 * y;
  k_f64x8 e = k_fma(-s, h, k_f64x8{} + 0.5);
  s = k_fma(s, e, s), h = k_fma(h, e, h);
  e = k_fma(-s, h, k_f64x8{} + 0.5);
  s = k_fma(s, e, s), h = k_fma(h, e, h);
  return k_fma(k_fma(-s, s, x), h, s);
}
"""

_TEXTS: dict[tuple[str, str], str] = {
    **{
        (name, kind): _log(name, kind, base)
        for name, base in (("log", None), ("log2", 2), ("log10", 10))
        for kind in ("f32", "f64")
    },
    ("exp", "f64"): _EXP_F64,
    ("sqrt", "f64"): _SQRT_F64,
    **{(name, "f32"): table_form(name) for name in PIECES_OF},
}


def with_forms(name: str, kind: str, otherwise: str) -> str:
    """`k_name` for a type by its vector form; `otherwise`: where there is none.

    Forms of a type are left out of units that have none of it (`K_USES_f64`), as they take time.
    """
    text = _TEXTS.get((name, kind))
    if text is None:
        return otherwise
    call = f"k_call_{name}_{kind}"
    return (
        f"#if defined(K_FORMS) && defined(K_USES_{kind})\n{text}K_FORM_{kind}({name}_{kind})\n"
        f"K_INLINE {kind} k_{name}({kind} x) {{ return {call}(x); }}\n"
        f"#else\n{otherwise}#endif\n"
    )
