"""Square blocks of a matrix turned in registers: C++ text.

In a GEMM (`gemm.py`), weights become panels, rows of a left side too, and sums rows of a result in
this way; in attention (`attention/source.py`) keys become panels, and scores of a few queries sums.
"""

from __future__ import annotations

from inductor.kernels.cpu.shuffles import SHUFFLE_TEXT

TURN_TEXT = SHUFFLE_TEXT + r"""
// For each power of two below LANES, which numbers of two rows change places. Tables: GCC puts
// vectors of constants together number by number.
struct Turns {
  alignas(64) int low[4][LANES], high[4][LANES];
  constexpr Turns() : low(), high() {
    for (int n = 0; n < 4; ++n)
      for (int j = 0, step = 1 << n; j < LANES; ++j) {
        low[n][j] = j & step ? LANES + j - step : j;
        high[n][j] = j & step ? LANES + j : j + step;
      }
  }
};
static constexpr Turns TURNS;

static inline __attribute__((always_inline)) void turn(Vector* x) {
  Vector y[LANES];
#pragma GCC unroll 4
  for (int n = 0; 1 << n < LANES; ++n) {
    const Lanes low = *(const Lanes*)TURNS.low[n], high = *(const Lanes*)TURNS.high[n];
    const int step = 1 << n;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
      if (i & step) continue;
      y[i] = shuffled(x[i], x[i + step], low);
      y[i + step] = shuffled(x[i], x[i + step], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) x[i] = y[i];
  }
}
"""

# Of blocks in memory.
TURNS_TEXT = TURN_TEXT + r"""
// LANES rows of LANES numbers, `from` apart, become the columns of rows that are `apart` apart,
// plus `more` for each row where that is ADDED.
template <bool ADDED>
static void turn_and_add(const f32* b, i64 from, f32* to, i64 apart, Vector more) {
  Vector x[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) x[i] = *(const Loose*)(b + i * from);
  turn(x);
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) *(Loose*)(to + i * apart) = (Loose)(ADDED ? x[i] + more : x[i]);
}

static void turn(const f32* b, i64 from, f32* to, i64 apart) {
  turn_and_add<false>(b, from, to, apart, Vector{});
}

"""
