"""Tiles of our GEMM that stay in registers: C++ text for `gemm.py`.

On AVX-512, all but the lowest are assembly (`assembly.py`).
"""

from __future__ import annotations

TILES_TEXT = r"""
// A tile c [R, COLUMNS] = a [R, depth] b [depth, COLUMNS] + start, where there is one. Rows of a
// are lda apart: STRIDE, unless they may be DIRECT.
struct Tile {
  i64 depth;
  const f32 *a, *b;
  f32* c;
  i64 lda, ldc;
  const f32* start;
  i64 lds;
};

template <int R>
static __attribute__((noinline)) void low_tile(const Tile& t, Ahead more) {
  const f32 *b = t.b, *start = t.start;
  const i64 lds = t.lds, ldc = t.ldc, lda = DIRECT ? t.lda : STRIDE;
  enum { NEAR = DIRECT ? 3 : R };  // rows that are addressed from one pointer
  enum { UNROLL = R + 2 > ROWS ? 4 : 1 };  // lower tiles are rare
  f32* c = t.c;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    __builtin_prefetch(c + r * ldc, 1);
    __builtin_prefetch(c + r * ldc + COLUMNS - 1, 1);
  }
  for (i64 from = 0; from < t.depth; from += CHAIN) {
    const i64 depth = t.depth - from < CHAIN ? t.depth - from : CHAIN;
    const f32* a[(R + NEAR - 1) / NEAR];
#pragma GCC unroll 16
    for (int r = 0; r < R; r += NEAR) a[r / NEAR] = t.a + from + r * lda;
    Vector sum[R][VECTORS] = {};
    auto step = [&](i64 p) __attribute__((always_inline)) {
      Vector right[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        right[v] = *(const Vector*)(b + p * COLUMNS + v * LANES);
        HOLD(right[v]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        Vector left = a[r / NEAR][r % NEAR * lda + p] - Vector{};
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
          ADD_GEMM(sum[r][v], left, right[v]);
        }
      }
    };
    i64 p = 0;
    while (p + BURST <= depth) {
      fetch(more);
      for (const i64 end = p + BURST; p < end; p += UNROLL)
#pragma GCC unroll 4
        for (int i = 0; i < UNROLL; ++i) step(p + i);
    }
    for (; p < depth; ++p) step(p);
    const f32* other = from ? c : start;
    const i64 ldo = from ? ldc : lds;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        Vector whole = sum[r][v];
        if (other) whole += (Vector) * (const Loose*)(other + r * ldo + v * LANES);
        *(Loose*)(c + r * ldc + v * LANES) = (Loose)whole;
      }
    b += depth * COLUMNS;
  }
}

template <int R>
static void low_tile_of(i64 rows, const Tile& t, const Ahead& more) {
  if (rows == R) return low_tile<R>(t, more);
  if constexpr (R > 1) low_tile_of<R - 1>(rows, t, more);
}

static inline __attribute__((always_inline)) void tile_of(i64 rows, const Tile& t, Ahead& more) {
#if defined(__AVX512F__)
  static const f32 zeros[COLUMNS] = {};
  if (rows >= LOWEST)
    return add_chains(rows, t.depth, t.a, t.lda, t.b, t.start ? t.start : zeros,
                      t.start ? t.lds : 0, t.c, t.ldc, more);
  low_tile_of<LOWEST - 1>(rows, t, more);
#else
  low_tile_of<ROWS>(rows, t, more);
#endif
}

"""
