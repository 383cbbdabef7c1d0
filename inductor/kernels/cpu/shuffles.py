"""Numbers of two vectors by their places, for GCC and clang: C++ text.

The text wants `Vector`, `Lanes` (of int) and LANES.
"""

from __future__ import annotations

SHUFFLE_TEXT = r"""
#ifdef __clang__
// Places that are constants, as they are once loops are unrolled, become one instruction.
static inline __attribute__((always_inline)) Vector shuffled(Vector x, Vector y, Lanes at) {
  Vector made = x;
#pragma clang loop unroll(full)
  for (int j = 0; j < LANES; ++j) made[j] = at[j] < LANES ? x[at[j]] : y[at[j] - LANES];
  return made;
}
#else
#define shuffled __builtin_shuffle
#endif
"""
