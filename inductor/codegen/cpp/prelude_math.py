"""Prelude parts for transcendental functions."""

from __future__ import annotations

_LIBM_1 = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc lgamma"
).split()


def _libm(name: str, function: str, arguments: int = 1) -> str:
    names = "ab"[:arguments]
    given = ", ".join(names)
    return "".join(
        f"K_INLINE {t} k_{name}({', '.join(f'{t} {n}' for n in names)}) "
        f"{{ return __builtin_{function}{end}({given}); }}\n"
        for t, end in (("f32", "f"), ("f64", ""))
    )


FLOAT_PARTS: dict[str, str] = {
    **{f"k_{name}": _libm(name, name) for name in _LIBM_1},
    "k_sigmoid": "".join(
        f"K_INLINE {t} k_sigmoid({t} x) {{ {t} e = k_exp(-k_abs(x)); "
        f"return (x >= 0 ? 1 : e) / (1 + e); }}\n"
        for t in ("f32", "f64")
    ),
    "k_atan2": _libm("atan2", "atan2", 2),
    "k_hypot": _libm("hypot", "hypot", 2),
    "k_nextafter": _libm("nextafter", "nextafter", 2),
    "k_pow": _libm("pow", "pow", 2)
    + "".join(
        f"K_INLINE {t} k_pow({t} a, {t} b) {{ return k_pow_integer<{t}>(a, b); }}\n"
        for t in ("i8", "i16", "i32", "i64", "u8")
    ),
}
DOUBLE_PARTS: dict[str, str] = {}
