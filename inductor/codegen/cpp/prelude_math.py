"""Prelude parts for transcendental functions.

float32: polynomials of our own without branches, so that loops over them are vectorised (errors are
at most 2 ulp); sine, cosine and powers stand in files of their own. The rest, and float64, comes
from libmvec, or from libm where there is none or the compiler cannot call it; declared here because
headers would cost more time than the kernels, under names of our own: what a compiler knows by its
name it would compute itself, to other last bits, where it sees a constant or sine and cosine of one
number. The polynomials are minimax fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor.codegen.cpp.prelude_circle import CIRCLE, CIRCLES, circle
from inductor.codegen.cpp.prelude_power import POWER, POWER_PARTS
from inductor.codegen.cpp.prelude_vector import CALLS, DOUBLES, FORMS, with_forms

# in libmvec since glibc 2.22 and 2.35; `K_VEC_OLD` and `K_VEC_NEW` are defined where it is
_VECTOR_OLD = ("exp", "log", "sin", "cos", "pow")
_VECTOR_NEW = (
    "exp2 expm1 log2 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "atan2 hypot"
).split()
_SCALAR = ("lgamma", "nextafter", "fmod")
_TWO_OPERANDS = ("pow", "atan2", "hypot", "nextafter", "fmod")

_LN2_HIGH, _LN2_LOW = "0x1.63p-1f", "-0x1.bd0106p-13f"


def _horner(variable: str, coefficients: Sequence[float]) -> str:
    """c0 + v * (c1 + v * (...)) as nested fma."""
    *rest, last = coefficients
    text = f"{last!r}f"
    for value in reversed(rest):
        text = f"k_fma({text}, {variable}, {value!r}f)"
    return text


def _horner_f64(variable: str, coefficients: Sequence[float]) -> str:
    return _horner(variable, coefficients).replace("f", "").replace("k_ma", "k_fma")


def _library(name: str) -> str:
    """`k_name` for both types: of vector forms, ours, or a libm function with its declaration."""
    return "".join(
        with_forms(name, kind, _FLOAT_TEXTS[name] if kind == "f32" and name in _FLOAT_TEXTS
                   else _declare(name, kind))
        for kind in ("f32", "f64")
    )  # fmt: skip


def _declare(name: str, kind: str) -> str:
    """`k_name` over the function of libmvec; over that of libm, where there is none."""
    count = 2 if name in _TWO_OPERANDS else 1
    function, library = name + ("f" if kind == "f32" else ""), f"k_libm_{name}_{kind}"
    types, letters = ", ".join([kind] * count), "ab"[:count]
    head = f"K_INLINE {kind} k_{name}({', '.join(f'{kind} {letter}' for letter in letters)})"
    given = ", ".join(letters)
    plain = (
        f'extern "C" __attribute__((const, nothrow)) {kind} {library}({types}) asm("{function}");\n'
        f"{head} {{ return {library}({given}); }}\n"
    )
    if name in _SCALAR:
        return plain
    known = "K_VEC_OLD" if name in _VECTOR_OLD else "K_VEC_NEW"
    return (
        f"#if defined(K_CALLS) && defined({known})\n"
        f"K_LIBRARY_{kind}_{'v' * count}({name}_{kind}, {function})\n"
        f"{head} {{ return k_call_{name}_{kind}({given}); }}\n"
        f"#else\n{plain}#endif\n"
    )


# t is n + 254 in the last bits of a float, n the rounded logarithm; 2^n comes in two factors, so
# that results below the normal range are rounded once. Right where n is between -252 and 254.
_EXP_PARTS = f"""\
K_INLINE f32 k_power(f32 x, f32 t) {{
  u32 bits = __builtin_bit_cast(u32, t), half = bits >> 1;
  x = x * __builtin_bit_cast(f32, half << 23);
  return x * __builtin_bit_cast(f32, (bits - half) << 23);
}}
K_INLINE f32 k_exp_of(f32 x, f32 t) {{
  f32 n = t - 12583166.0f;
  f32 r = k_fma(n, -0x1.62e4p-1f, x);
  r = k_fma(n, -0x1.7f7d1cp-20f, r);
  f32 p = {_horner("r", [0.49999994, 0.16666521, 0.041668385, 0.00836871, 0.0013814635])};
  return k_power(k_fma(r * r, p, r) + 1.0f, t);
}}
K_INLINE f32 k_exp_round(f32 x) {{ return k_fma(x, 0x1.715476p0f, 12583166.0f); }}
K_INLINE f32 k_exp_limit(f32 t) {{ return t < 12583294.0f ? t : 12583294.0f; }}
"""

_EXP = """\
K_INLINE f32 k_exp(f32 x) {
  f32 result = k_exp_of(x, k_exp_limit(k_exp_round(x)));
  return x < -104.0f ? 0.0f : result;
}
"""

_EXP2 = f"""\
K_INLINE f32 k_exp2(f32 x) {{
  f32 t = k_exp_limit(x + 12583166.0f);
  f32 r = x - (t - 12583166.0f);
  f32 p = {_horner("r", [0.69314724, 0.24022652, 0.055503104, 0.009617693, 0.0013406643,
                         0.00015594656])};
  f32 result = k_power(k_fma(p, r, 1.0f), t);
  return x < -151.0f ? 0.0f : result;
}}
"""

# scaled by half of 2^n, because 2^n itself may overflow where the result does not
_EXPM1 = f"""\
K_INLINE f32 k_expm1(f32 x) {{
  f32 y = x > 89.0f ? 89.0f : x;
  y = y < -20.0f ? -20.0f : y;
  f32 n = k_round(y * 0x1.715476p0f);
  f32 r = k_fma(n, -0x1.62e4p-1f, y);
  r = k_fma(n, -0x1.7f7d1cp-20f, r);
  f32 p = {_horner("r", [0.5, 0.16666666, 0.041666362, 0.0083333896, 0.0013940617, 0.00019845906])};
  p = k_fma(r * r, p, r);
  f32 half = __builtin_bit_cast(f32, ((i32)n + 126) << 23);
  f32 wide = k_fma(p, half, half - 0.5f);
  wide = wide + wide;
  f32 result = n == 0.0f ? p : wide;
  return x == 0.0f ? x : result;
}}
"""

_LOG_POLYNOMIAL = _horner(
    "f",
    [0.33333313, -0.25000009, 0.20002119, -0.16667995, 0.14219552, -0.12405603, 0.11888178,
     -0.1167557, 0.067465],
)

# log(1 + f) for -0.3 < f < 0.42 without its leading term
_LOG_TAIL = f"""\
K_INLINE f32 k_log_tail(f32 f) {{
  f32 s = f * f;
  return k_fma(s * f, {_LOG_POLYNOMIAL}, -0.5f * s);
}}
"""

# x = 2^e * m with m in [sqrt(1/2), sqrt(2)); gives e, and m - 1 in f. Written so that g++ computes
# neither branch of a condition twice.
_LOG_SPLIT = """\
K_INLINE f32 k_log_split(f32 x, f32& f) {
  f32 scale = x < 0x1p-126f ? 0x1p23f : 1.0f;
  i32 bits = __builtin_bit_cast(i32, x * scale), e = bits - 0x3f3504f3;
  f = __builtin_bit_cast(f32, bits - (e & (i32)0xff800000)) - 1.0f;
  return (f32)((e - (__builtin_bit_cast(i32, scale) - 0x3f800000)) >> 23);
}
K_INLINE f32 k_log_special(f32 x, f32 result) {
  f32 other = x > 0.0f ? x : __builtin_nanf("");
  other = x == 0.0f ? -__builtin_inff() : other;
  return __builtin_bit_cast(u32, x) - 1u < 0x7f7fffffu ? result : other;
}
"""


def _log(name: str, ending: str) -> str:
    return (
        f"K_INLINE f32 k_{name}(f32 x) {{\n  f32 f, e = k_log_split(x, f);\n"
        f"{ending}  return k_log_special(x, r);\n}}\n"
    )


_LOG = _log(
    "log",
    f"  f32 y = k_fma(e, {_LN2_LOW}, k_log_tail(f));\n"
    f"  f32 r = k_fma(e, {_LN2_HIGH}, f + y);\n",
)
_LOG2 = _log(
    "log2",
    "  f32 y = f + k_log_tail(f);\n"
    "  f32 r = e + k_fma(y, 0x1.715476p0f, y * 0x1.4ae0cp-26f);\n",
)
_LOG10 = _log(
    "log10",
    "  f32 y = k_fma(e, 0x1.3509f8p-18f, (f + k_log_tail(f)) * 0x1.bcb7b2p-2f);\n"
    "  f32 r = k_fma(e, 0x1.344p-2f, y);\n",
)

_LOG1P = f"""\
K_INLINE f32 k_log1p(f32 x) {{
  f32 u = 1.0f + x;
  f32 lost = k_abs(x) < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
  f32 f, e = k_log_split(u, f);
  i32 scale = 127 - (i32)e;
  f = k_fma(lost, __builtin_bit_cast(f32, (scale < 0 ? 0 : scale) << 23), f);
  f32 y = k_fma(e, {_LN2_LOW}, k_log_tail(f));
  f32 r = k_log_special(u, k_fma(e, {_LN2_HIGH}, f + y));
  return k_abs(x) < 0x1p-25f ? x : r;
}}
"""

# 1 - 2 / (exp(2a) + 1), where exp has no limits: one factor 2^n will do. A NaN is not kept by the
# minimum, but by the polynomial.
_TANH = f"""\
K_INLINE f32 k_tanh(f32 x) {{
  f32 a = k_abs(x), s = x * x, b = a < 9.1f ? a : 9.1f;
  f32 t = k_fma(b, 0x1.715476p1f, 12583039.0f), n = t - 12583039.0f;
  f32 r = k_fma(n, -0x1.62e4p-2f, b);
  r = k_fma(n, -0x1.7f7d1cp-21f, r);
  f32 e = {_horner("r", [1.9999998, 1.3333217, 0.66669238, 0.26779795, 0.088448867])};
  e = k_fma(r * r, e, r + r);
  f32 power = __builtin_bit_cast(f32, __builtin_bit_cast(u32, t) << 23);
  f32 large = 1.0f - 2.0f / k_fma(e, power, power + 1.0f);
  f32 p = {_horner("s", [-0.33333299, 0.13331959, -0.05378668, 0.020805372, -0.0059058513])};
  return k_copysign(a >= 0.6f ? large : k_fma(a * s, p, a), x);
}}
"""

_ERF = f"""\
K_INLINE f32 k_erf(f32 x) {{
  f32 a = k_abs(x), s = x * x, t = (a > 4.0f ? 4.0f : a) - 2.5f;
  f32 p = {_horner("s", [0.12837917, -0.376126, 0.11283292, -0.026841441, 0.0051648621,
                         -0.00078057841, 7.1879717e-05])};
  f32 large = {_horner("t", [0.99959306, 0.0021782442, -0.0054464483, 0.0083507747,
                             -0.0086166466, 0.0061136669, -0.0028150649, 0.00055166063,
                             0.00028325536, -0.00026270583, 6.343996807e-05, 1.435722147e-05,
                             -9.400598466e-06, 1.055075579e-06])};
  return k_copysign(a < 1.1f ? k_fma(a, p, a) : large, x);
}}
"""

_ERFC_SCALED = [
    0.13699945761543947, -0.2590680492373447, 0.21871968150910484, -0.16425778817531234,
    0.10896309444896267, -0.06310833335125278, 0.03129981217043957, -0.012839728064935555,
    0.004058683813810037, -0.0008151924110525347, -2.8336051625683838e-05, 0.0001014849440368443,
]
_EXPONENTIAL = [1.0]
for _n in range(1, 10):
    _EXPONENTIAL.append(_EXPONENTIAL[-1] / _n)

# erfc(t) = exp(-t^2) * g((t - 4) / (t + 4)), in double because small results count fully
_ERFC = f"""\
K_INLINE f32 k_erfc(f32 x) {{
  f64 t = k_abs((f64)x);
  t = t > 10.1 ? 10.1 : t;
  f64 u = (t - 4.0) / (t + 4.0), y = -t * t;
  f64 n = k_round(y * 0x1.71547652b82fep0);
  f64 r = k_fma(n, -0x1.62e42fefa39efp-1, y);
  f64 p = {_horner_f64("r", _EXPONENTIAL)};
  f64 g = {_horner_f64("u", _ERFC_SCALED)};
  f64 v = p * g * __builtin_bit_cast(f64, ((i64)n + 1023) << 52);
  return (f32)(x < 0.0f ? 2.0 - v : v);
}}
"""

_FLOAT_TEXTS = {
    "pow": POWER, "exp": _EXP, "exp2": _EXP2, "expm1": _EXPM1, "log": _LOG, "log2": _LOG2,
    "log10": _LOG10, "log1p": _LOG1P, "tanh": _TANH, "erf": _ERF, "erfc": _ERFC,
    "sin": circle("sin"), "cos": circle("cos"),
}  # fmt: skip

_FMA = """\
#if defined(__FMA__) || defined(__aarch64__)
K_INLINE f32 k_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
K_INLINE f64 k_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#else
K_INLINE f32 k_fma(f32 a, f32 b, f32 c) { return (f32)((f64)a * b + c); }
K_INLINE f64 k_fma(f64 a, f64 b, f64 c) { return a * b + c; }
#endif
"""

_SIGMOID = """\
K_INLINE f32 k_sigmoid(f32 x) {
  f32 y = -k_abs(x);
  f32 e = k_exp_of(y, k_exp_round(y));
  e = y < -104.0f ? 0.0f : e;
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}
K_INLINE f64 k_sigmoid(f64 x) {
  f64 e = k_exp(-k_abs(x));
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}
"""

_POW = "".join(
    f"K_INLINE {t} k_pow({t} a, {t} b) {{ return k_pow_integer<{t}>(a, b); }}\n"
    for t in ("i8", "i16", "i32", "i64", "u8")
)

MATH_PARTS: dict[str, str] = {
    "k_fma": _FMA,
    "K_CALLS": CALLS,
    "K_FORMS": FORMS,
    **dict.fromkeys(("k_power", "k_exp_of", "k_exp_round", "k_exp_limit"), _EXP_PARTS),
    "k_fused": DOUBLES,
    **POWER_PARTS,
    "k_circle": CIRCLE,
    "K_CIRCLES_f32": CIRCLES,
    "k_log_tail": _LOG_TAIL,
    "k_log_split": _LOG_SPLIT,
    "k_sigmoid": _SIGMOID,
    **{
        f"k_{name}": _library(name)
        for name in (*_VECTOR_OLD, *_VECTOR_NEW, *_SCALAR)
    },
}
MATH_PARTS["k_pow"] += _POW


def vector_macros(libc: tuple[int, ...]) -> str:
    """What the parts need to know about the libmvec of this version of glibc."""
    known = {"K_VEC_OLD": libc >= (2, 22), "K_VEC_NEW": libc >= (2, 35)}
    return "".join(f"#define {name}\n" for name, there in known.items() if there)
