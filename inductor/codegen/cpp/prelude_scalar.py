"""Prelude parts that are no transcendental functions: conversions, integers, comparisons, rounding.

Each value is one piece of C++ text that defines the function of its name for all types it accepts.
"""

from __future__ import annotations

from inductor.codegen.cpp.prelude_vector import with_forms
from inductor.codegen.cpp.work import PARALLEL_WORK

_FLOATS = ("f32", "f64")
_SIGNED = (("i8", "u8"), ("i16", "u16"), ("i32", "u32"), ("i64", "u64"))
_INTEGERS = ("i8", "i16", "i32", "i64", "u8")

_WIDEN = "template <class S> K_INLINE S k_widen(S x) { return x; }\n"
_TO = """\
template <class T> struct k_To { template <class S> K_INLINE T make(S x) { return (T)x; } };
template <> struct k_To<bool> { template <class S> K_INLINE bool make(S x) { return x != 0; } };
template <> struct k_To<u8> {
  K_INLINE u8 make(f32 x) { return (u8)(i64)x; }
  K_INLINE u8 make(f64 x) { return (u8)(i64)x; }
  template <class S> K_INLINE u8 make(S x) { return (u8)x; }
};
"""
_CONVERT = """\
template <class T, class S> K_INLINE T k_convert(S x) { return k_To<T>::make(k_widen(x)); }
"""

_BF16 = """\
K_INLINE f32 k_widen(bf16 x) { return __builtin_bit_cast(f32, (u32)x << 16); }
template <> struct k_To<bf16> {
  template <class S> K_INLINE bf16 make(S value) {
    f32 x = (f32)value;
    u32 bits = __builtin_bit_cast(u32, x);
    u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (bf16)(u16)(x != x ? 0x7fc0u : rounded);
  }
};
"""

# float16 by bits: g++ before 13 does not vectorise _Float16. Narrowing adds a power of two so large
# that the sum is rounded at the last bit of the half; its mantissa with the leading one is added to
# the exponent. Written so that all of it is integer and float arithmetic without branches.
_F16 = """\
K_INLINE f32 k_widen(f16 h) {
  u32 x = (u32)(i32)(i16)(u16)h << 13;
  f32 scaled = __builtin_bit_cast(f32, x & 0x8fffe000u) * 0x1p112f;
  u32 bits = __builtin_bit_cast(u32, scaled);
  bits = (x & 0x0f800000u) == 0x0f800000u ? bits | 0x7f800000u : bits;
  return __builtin_bit_cast(f32, bits);
}
template <> struct k_To<f16> {
  template <class S> K_INLINE f16 make(S value) {
    u32 bits = __builtin_bit_cast(u32, (f32)value);
    i32 x = (i32)(bits & 0x7fffffffu);
    i32 base = x & 0x7f800000;
    base = base < 0x38800000 ? 0x38800000 : base;
    f32 magic = __builtin_bit_cast(f32, (u32)base + 0x06800000u);
    i32 sum = __builtin_bit_cast(i32, __builtin_bit_cast(f32, x) + magic);
    i32 half = (sum & 0x7fffff) + ((base - 0x38800000) >> 13);
    half = half > 0x7c00 ? 0x7c00 : half;
    half = x > 0x7f800000 ? 0x7e00 : half;
    return (f16)(u16)((u32)half | ((bits >> 16) & 0x8000u));
  }
};
"""

# Whole strips of half precision or bytes, vector by vector where the processor can. Instructions
# are text of the assembler, because headers with the compiler's names for them cost more time than
# most kernels. The processor's own narrowing to bfloat16 takes denormal numbers for zeros, and
# keeps the bits of NaN.
_STRIPS = """\
#if defined(__AVX512F__)
#define K_HALVES 16
#elif defined(__F16C__) && defined(__AVX2__)
#define K_HALVES 8
#endif
#ifdef K_HALVES
typedef f32 k_wide __attribute__((vector_size(4 * K_HALVES), aligned(4), may_alias));
typedef u16 k_half __attribute__((vector_size(2 * K_HALVES), aligned(2), may_alias));
typedef u32 k_word __attribute__((vector_size(4 * K_HALVES)));
K_INLINE k_wide k_widen_vector(k_half half, const f16*) {
  k_wide wide;
  asm("vcvtph2ps %1, %0" : "=x"(wide) : "xm"(half));
  return wide;
}
K_INLINE k_wide k_widen_vector(k_half half, const bf16*) {
  k_word word;
  asm("vpmovzxwd %1, %0" : "=x"(word) : "xm"(half));
  return (k_wide)(word << 16);
}
K_INLINE k_half k_narrow_vector(k_wide wide, const f16*) {
  k_half half;
  asm("vcvtps2ph $0, %1, %0" : "=x"(half) : "x"(wide));
  return half;
}
K_INLINE k_half k_narrow_vector(k_wide wide, const bf16*) {
#if K_HALVES == 16 && defined(__AVX512BF16__)
  u16 odd;  // denormal numbers, NaN
  asm("vfpclassps $0xa1, %1, %0" : "=k"(odd) : "x"(wide));
  if (__builtin_expect(odd == 0, 1)) {
    k_half half;
    asm("vcvtneps2bf16 %1, %0" : "=x"(half) : "x"(wide));
    return half;
  }
#endif
  k_word bits = (k_word)wide;
  k_word rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  rounded = wide != wide ? (k_word){} + 0x7fc0u : rounded;
#if K_HALVES == 16
  k_half half;
  asm("vpmovdw %1, %0" : "=x"(half) : "x"(rounded));
  return half;
#else
  return __builtin_convertvector(rounded, k_half);
#endif
}
typedef u8 k_byte __attribute__((vector_size(K_HALVES), aligned(1), may_alias));
typedef i32 k_integer __attribute__((vector_size(4 * K_HALVES)));
template <class H> K_INLINE k_wide k_widen_at(const H* from) {
  return k_widen_vector(*(const k_half*)from, from);
}
K_INLINE k_wide k_widen_at(const i8* from) {
  k_integer word;
  asm("vpmovsxbd %1, %0" : "=v"(word) : "m"(*(const k_byte*)from));
  return __builtin_convertvector(word, k_wide);
}
K_INLINE k_wide k_widen_at(const u8* from) {
  k_integer word;
  asm("vpmovzxbd %1, %0" : "=v"(word) : "m"(*(const k_byte*)from));
  return __builtin_convertvector(word, k_wide);
}
#endif
template <class H> K_INLINE void k_widen_strip(const H* from, f32* to, i64 count) {
  i64 i = 0;
#ifdef K_HALVES
  for (; i + K_HALVES <= count; i += K_HALVES) *(k_wide*)(to + i) = k_widen_at(from + i);
#endif
  for (; i < count; ++i) to[i] = k_convert<f32>(from[i]);
}
template <class H> K_INLINE void k_narrow_strip(const f32* from, H* to, i64 count) {
  i64 i = 0;
#ifdef K_HALVES
  for (; i + K_HALVES <= count; i += K_HALVES)
    *(k_half*)(to + i) = k_narrow_vector(*(const k_wide*)(from + i), to);
#endif
  for (; i < count; ++i) to[i] = k_To<H>::make(from[i]);
}
"""


def _each(types: tuple[str, ...], text: str) -> str:
    return "".join(text.replace("T", name) + "\n" for name in types)


def _signed(text: str) -> str:
    return "".join(text.replace("T", s).replace("U", u) + "\n" for s, u in _SIGNED)


_FLOORDIV = _each(
    _FLOATS,
    """K_INLINE T k_floordiv(T a, T b) {
  T rest = k_fmod(a, b);
  T quotient = (a - rest) / b;
  quotient = rest != 0 && ((b < 0) != (rest < 0)) ? quotient - 1 : quotient;
  T whole = k_floor(quotient);
  whole = quotient - whole > (T)0.5 ? whole + 1 : whole;
  T zero = k_copysign((T)0, a / b);
  return b == 0 ? a / b : (quotient == 0 ? zero : whole);
}""",
)

_FLOORDIV_INTEGERS = _each(
    _INTEGERS[:4],
    """K_INLINE T k_floordiv(T a, T b) {
  T quotient = k_truncdiv(a, b);
  return (T)(quotient - ((T)((u64)quotient * (u64)b) != a && (a < 0) != (b < 0)));
}""",
) + "K_INLINE u8 k_floordiv(u8 a, u8 b) { return k_truncdiv(a, b); }\n"

# -1 as divisor: the least integer divided by it traps. So does 0 as divisor, which lanes have that
# lie beyond the end of a loop.
_TRUNCDIV = (
    _signed(
        "K_INLINE T k_truncdiv(T a, T b) "
        "{ return b == -1 ? (T)(0 - (U)a) : (T)(a / (b == 0 ? (T)1 : b)); }"
    )
    + "K_INLINE u8 k_truncdiv(u8 a, u8 b) { return (u8)(a / (b == 0 ? 1 : b)); }\n"
)

_REMAINDER = _each(
    _FLOATS,
    """K_INLINE T k_remainder(T a, T b) {
  T rest = k_fmod(a, b);
  return rest != 0 && ((b < 0) != (rest < 0)) ? rest + b : rest;
}""",
) + _each(
    _INTEGERS[:4],
    """K_INLINE T k_remainder(T a, T b) {
  T rest = k_fmod(a, b);
  return rest != 0 && ((b < 0) != (rest < 0)) ? (T)(rest + b) : rest;
}""",
) + "K_INLINE u8 k_remainder(u8 a, u8 b) { return k_fmod(a, b); }\n"

FMOD_INTEGERS = (
    _each(
        _INTEGERS[:4],
        "K_INLINE T k_fmod(T a, T b) { return b == -1 ? (T)0 : (T)(a % (b == 0 ? (T)1 : b)); }",
    )
    + "K_INLINE u8 k_fmod(u8 a, u8 b) { return (u8)(a % (b == 0 ? 1 : b)); }\n"
)

_POW_INTEGERS = """\
template <class T> K_INLINE T k_pow_integer(T base, T power) {
  u64 result = 1, factor = (u64)base;
  if (power < 0) return base == 1 ? 1 : (base == (T)-1 ? ((power & 1) ? (T)-1 : 1) : 0);
  for (u64 n = (u64)power; n; n >>= 1, factor *= factor) result *= n & 1 ? factor : 1;
  return (T)result;
}
"""

_SHIFT_LEFT = _signed(
    "K_INLINE T k_shift_left(T a, T n) "
    "{ return (u64)n >= sizeof(T) * 8 ? (T)0 : (T)((U)a << (n & (sizeof(T) * 8 - 1))); }"
) + "K_INLINE u8 k_shift_left(u8 a, u8 n) { return n >= 8 ? 0 : (u8)(a << n); }\n"
_SHIFT_RIGHT = _each(
    _INTEGERS,
    "K_INLINE T k_shift_right(T a, T n) "
    "{ return (T)(a >> ((u64)n >= sizeof(T) * 8 ? sizeof(T) * 8 - 1 : n)); }",
).replace("sizeof(u8) * 8 - 1 :", "8 :")

_ABS = (
    "K_INLINE f32 k_abs(f32 x) { return __builtin_fabsf(x); }\n"
    "K_INLINE f64 k_abs(f64 x) { return __builtin_fabs(x); }\n"
    + _signed("K_INLINE T k_abs(T x) { return x < 0 ? (T)(0 - (U)x) : x; }")
    + "K_INLINE u8 k_abs(u8 x) { return x; }\n"
)


def _extreme(name: str, sign: str) -> str:
    """Two choices, one after the other: compilers make no vector code of `||`."""
    best = f"{{ T c = a {sign} b ? a : b; return a != a ? a : c; }}"
    other = f"{{ return a {sign} b ? a : b; }}"
    return _each(_FLOATS, f"K_INLINE T {name}(T a, T b) {best}") + _each(
        (*_INTEGERS, "bool"), f"K_INLINE T {name}(T a, T b) {other}"
    )


def _first(name: str, sign: str) -> str:
    """Whether `a` takes the place of the best so far."""
    return _each(
        _FLOATS, f"K_INLINE bool {name}(T a, T b) {{ return a {sign} b || (a != a && b == b); }}"
    ) + _each((*_INTEGERS, "bool"), f"K_INLINE bool {name}(T a, T b) {{ return a {sign} b; }}")


def _builtin(name: str, function: str, arguments: int = 1) -> str:
    names = "ab"[:arguments]
    given = ", ".join(names)
    return "".join(
        f"K_INLINE {t} k_{name}({', '.join(f'{t} {n}' for n in names)}) "
        f"{{ return __builtin_{function}{end}({given}); }}\n"
        for t, end in (("f32", "f"), ("f64", ""))
    )


# N lanes to one, by halves; T may be any type that has vectors
_LANES = """\
template <class T, int N> struct k_Half {
  typedef T V __attribute__((vector_size(sizeof(T) * N), aligned(sizeof(T))));
  K_INLINE V low(const T* x) { V v; __builtin_memcpy(&v, x, sizeof(V)); return v; }
};
#define K_LANES(NAME, TEXT)                                                     \\
  template <class T, int N> K_INLINE T k_lanes_##NAME(T (&x)[N]) {              \\
    if constexpr (N == 1) {                                                     \\
      return x[0];                                                              \\
    } else {                                                                    \\
      typedef typename k_Half<T, N / 2>::V V;                                   \\
      V a = k_Half<T, N / 2>::low(x), b = k_Half<T, N / 2>::low(x + N / 2);     \\
      V v = TEXT;                                                               \\
      T rest[N / 2];                                                            \\
      __builtin_memcpy(rest, &v, sizeof(V));                                    \\
      return k_lanes_##NAME(rest);                                              \\
    }                                                                           \\
  }
K_LANES(sum, a + b)
K_LANES(prod, a * b)
K_LANES(or, a | b)
K_LANES(and, a & b)
K_LANES(max, a > b ? a : b)
K_LANES(min, a < b ? a : b)
"""

_SQRT = (
    "K_INLINE f32 k_sqrt(f32 x) { return __builtin_sqrtf(x); }\n"
    + with_forms("sqrt", "f64", "K_INLINE f64 k_sqrt(f64 x) { return __builtin_sqrt(x); }\n")
)

SCALAR_PARTS: dict[str, str] = {
    "k_convert": _CONVERT,
    "k_widen": _WIDEN,
    "k_To": _TO,
    "bf16": _BF16,
    "f16": _F16,
    **dict.fromkeys(("k_widen_strip", "k_narrow_strip"), _STRIPS),
    "k_floordiv": _FLOORDIV + _FLOORDIV_INTEGERS,
    "k_truncdiv": _TRUNCDIV,
    "k_remainder": _REMAINDER,
    "k_pow_integer": _POW_INTEGERS,
    "k_shift_left": _SHIFT_LEFT,
    "k_shift_right": _SHIFT_RIGHT,
    "k_abs": _ABS,
    "k_maximum": _extreme("k_maximum", ">="),
    "k_minimum": _extreme("k_minimum", "<="),
    "k_greater": _first("k_greater", ">"),
    "k_less": _first("k_less", "<"),
    "k_sign": _each(
        (*_FLOATS, *_INTEGERS), "K_INLINE T k_sign(T x) { return (T)((x > 0) - (x < 0)); }"
    ),
    "k_isinf": _each(
        _FLOATS, "K_INLINE bool k_isinf(T x) { return k_abs(x) == (T)__builtin_inf(); }"
    ),
    "k_signbit": (
        "K_INLINE bool k_signbit(f32 x) { return __builtin_bit_cast(i32, x) < 0; }\n"
        "K_INLINE bool k_signbit(f64 x) { return __builtin_bit_cast(i64, x) < 0; }\n"
    ),
    "k_sqrt": _SQRT,
    "k_rsqrt": _each(_FLOATS, "K_INLINE T k_rsqrt(T x) { return 1 / k_sqrt(x); }"),
    "k_floor": _builtin("floor", "floor"),
    "k_ceil": _builtin("ceil", "ceil"),
    "k_trunc": _builtin("trunc", "trunc"),
    "k_round": _builtin("round", "nearbyint"),
    "k_copysign": _builtin("copysign", "copysign", 2),
    "k_floordiv_index": (
        "K_INLINE i64 k_floordiv_index(i64 a, i64 b) { return a / b - (a % b < 0); }\n"
    ),
    "k_mod_index": (
        "K_INLINE i64 k_mod_index(i64 a, i64 b) { i64 m = a % b; return m < 0 ? m + b : m; }\n"
    ),
    "k_real": "K_INLINE f64 k_real(i64 x) { return (f64)x; }\n",
    "k_root": "K_INLINE f64 k_root(f64 x) { return __builtin_sqrt(x); }\n",
    "k_share": """\
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
K_INLINE i64 k_share(i64 total, i64 align, i64 thread, i64 threads) {
  i64 end = total * thread / threads / align * align;
  return thread == threads ? total : end;
}
""",
    "k_threads": """\
K_INLINE i64 k_threads(i64 work, i64 items, i64 most) {
  i64 worth = work < WORK ? 1 : 2 * work / WORK;
  i64 count = worth < most ? worth : most;
  return count < items ? count : items;
}
""".replace("WORK", str(PARALLEL_WORK)),
    "k_fail": """\
static void k_fail(Runtime* rt, i64 value, i64 bound, i64 fault) {
  i64 none = 0;
  if (!__atomic_compare_exchange_n(&rt->error_code, &none, fault, false, 5, 5)) return;
  rt->error_value = value;
  rt->error_bound = bound;
}
""",
    **dict.fromkeys(
        ("k_lanes_sum", "k_lanes_prod", "k_lanes_or", "k_lanes_and", "k_lanes_max", "k_lanes_min"),
        _LANES,
    ),
    # float32 of two registers
    "K_PAIR": "#ifdef __AVX512F__\n#define K_PAIR 32\n#else\n#define K_PAIR 16\n#endif\n",
    "k_worst": """\
K_INLINE i64 k_worst(i64 worst, bool wrong, i64 value) {
  value = value == K_NO_ERROR ? value + 1 : value;
  return wrong && value > worst ? value : worst;
}
""",
    "K_NO_ERROR": "#define K_NO_ERROR (-9223372036854775807L - 1)\n",
}
