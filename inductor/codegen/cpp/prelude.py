"""The prelude of a translation unit: types, `struct Runtime`, and the `k_*` functions it uses.

In: the text of kernels. Out: C++ text without includes. `PARTS` maps a name to its text; a part is
printed when its name occurs in the kernels or in a printed part, and always before what uses it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence

from inductor.codegen.cpp.prelude_math import MATH_PARTS, vector_macros
from inductor.codegen.cpp.prelude_scalar import FMOD_INTEGERS, SCALAR_PARTS

BASE = """\
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef float f32;
typedef double f64;
enum class f16 : u16 {};
enum class bf16 : u16 {};
#define K_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
extern "C" void* aligned_alloc(u64, u64);
extern "C" void free(void*);
#define K_ALLOCATE aligned_alloc
#define K_FREE free
// Its own reductions begin with the largest finite number, where GCC's begin with infinity.
#pragma omp declare reduction(k_most : f32, f64 : omp_out = omp_in > omp_out ? omp_in : omp_out) \
    initializer(omp_priv = -__builtin_inf())
#pragma omp declare reduction(k_least : f32, f64 : omp_out = omp_out > omp_in ? omp_in : omp_out) \
    initializer(omp_priv = __builtin_inf())
#define K_MOST k_most
#define K_LEAST k_least
#else
#define K_ALLOCATE __builtin_aligned_alloc
#define K_FREE __builtin_free
#define K_MOST max
#define K_LEAST min
#endif

struct Runtime {
  void** data;
  int (*call)(Runtime*, i64 index);
  void (*drop)(Runtime*, i64 slot);
  void (*sgemm)(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                const float* beta, float* c, const int* ldc);
  i64 error_code;
  i64 error_value;
  i64 error_bound;
  void* state;
  void (*step)(Runtime*, i64 index);
};
"""



def _libc_version() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    if name != "glibc":
        return (0,)
    return tuple(int(piece) for piece in version.split(".") if piece.isdigit())


_VECTOR = vector_macros(_libc_version())

PARTS: dict[str, str] = {
    **SCALAR_PARTS,
    **MATH_PARTS,
    "k_fmod": MATH_PARTS["k_fmod"] + FMOD_INTEGERS,
    "K_VEC_OLD": _VECTOR,
    "K_VEC_NEW": _VECTOR,
}

_FLOAT = re.compile(r"\b(?:f32|f64)\b")
_WORD = re.compile(r"\b(?:k_\w+|K_\w+|f16|bf16)\b")


def used_parts(texts: Iterable[str]) -> list[str]:
    """Names of the parts that the texts need, each after what it needs itself."""
    order: dict[str, None] = {}

    def visit(text: str) -> None:
        for name in dict.fromkeys(_WORD.findall(text)):
            part = PARTS.get(name)
            if part is None or name in entered or part in entered:
                continue
            entered.update((name, part))
            visit(part)
            order[name] = None

    entered: set[str] = set()
    for text in texts:
        visit(text)
    return list(order)


def prelude_for(texts: Sequence[str]) -> str:
    """The prelude that these kernels need."""
    used = sorted({word for text in texts for word in _FLOAT.findall(text)})
    head = [BASE, *(f"#define K_USES_{kind}" for kind in used)]
    return "\n".join([*head, *(PARTS[name] for name in used_parts(texts))])
