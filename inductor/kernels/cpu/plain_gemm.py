"""The part of our GEMM that reads a dense weight [n, k] where it lies: no copy of it.

In: the text of `gemm.py`, behind which this one stands in the same unit. The GEMM is computed
turned: rows of the weight are what `gemm.py` reads number by number, and rows of a, few beside
them, are copied as panels [k, WIDE], once for all threads. ROUND terms of a panel stay in the first
cache while HEIGHT rows of the weight pass; sums are turned where they are stored.
"""

from __future__ import annotations

PLAIN_TEXT = r"""
enum { WIDE = COLUMNS, BLOCK = ROWS, HEIGHT = 8 * BLOCK, ROUND = CHAIN };
// From MANY rows of a on, panels of the weight are made at each call: that costs less.
enum { PLAIN_ROWS = 2 * WIDE + 1, MANY = 384, MOST_COPIED = 1 << 24 };

template <int R>
static __attribute__((noinline)) void add_few_rows(
    const f32* w, i64 ldw, const f32* panel, i64 depth, f32* to, bool first, Ahead& more) {
  enum { NEAR = DIRECT ? 3 : R };  // rows that are addressed from one pointer
  const f32* near[(R + NEAR - 1) / NEAR];
#pragma GCC unroll 16
  for (int r = 0; r < R; r += NEAR) near[r / NEAR] = w + r * ldw;
  Vector sum[R][VECTORS] = {};
  auto step = [&](i64 p) __attribute__((always_inline)) {
    Vector right[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      right[v] = *(const Vector*)(panel + p * WIDE + v * LANES);
      HOLD(right[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      Vector left = near[r / NEAR][r % NEAR * ldw + p] - Vector{};
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        ADD_GEMM(sum[r][v], left, right[v]);
      }
    }
  };
  i64 p = 0;
  while (p + BURST <= depth) {
    fetch(more);
    for (const i64 end = p + BURST; p < end; p += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) step(p + i);
  }
  for (; p < depth; ++p) step(p);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      Vector* at = (Vector*)(to + r * WIDE + v * LANES);
      *at = first ? sum[r][v] : *at + sum[r][v];
    }
}

// sums [R, WIDE] += R rows of w, ldw apart, times `depth` terms of a panel, at most CHAIN.
template <int R>
static void add_rows(
    const f32* w, i64 ldw, const f32* panel, i64 depth, f32* to, bool first, Ahead& more) {
#if defined(__AVX512F__)
  if constexpr (R >= LOWEST) {
    static const f32 zeros[WIDE] = {};
    const i64 apart = WIDE * 4;
    Chain chain = {w, ldw * 4, panel, depth / BURST, depth % BURST, first ? zeros : to,
                   first ? 0 : apart, to, apart, &more};
    sum_chain<R>(chain);
  } else
#endif
    add_few_rows<R>(w, ldw, panel, depth, to, first, more);
}

template <int R>
static void add_rows_of(i64 rows, const f32* w, i64 ldw, const f32* panel, i64 depth, f32* to,
                        bool first, Ahead& more) {
  if (rows == R) return add_rows<R>(w, ldw, panel, depth, to, first, more);
  if constexpr (R > 1) add_rows_of<R - 1>(rows, w, ldw, panel, depth, to, first, more);
}

struct Plain {
  i64 m, n, k;
  const f32 *a, *w, *bias;
  f32* c;
  i64 lda, ldw;
  f32* panels;
  Epilogue* epilogue;
  void* context;

  // Panel i of a: rows i * WIDE.., zeros beyond the last.
  void copy_panel(i64 i) const {
    const i64 r0 = i * WIDE, rows = m - r0 < WIDE ? m - r0 : WIDE;
    f32* to = panels + r0 * k;
    i64 p = 0;
    if (rows == WIDE)
      for (; p + LANES <= k; p += LANES)
        for (int v = 0; v < VECTORS; ++v)
          turn(a + (r0 + v * LANES) * lda + p, lda, to + p * WIDE + v * LANES, WIDE);
    for (; p < k; ++p)
      for (i64 r = 0; r < WIDE; ++r) to[p * WIDE + r] = r < rows ? a[(r0 + r) * lda + p] : 0;
  }

  // c [rows, columns] of sums [columns, WIDE], with the bias.
  void store(const f32* sums, i64 rows, i64 columns, i64 r0, i64 j0) const {
    f32* to = c + r0 * n + j0;
    const f32* start = bias ? bias + j0 : 0;
    i64 done = 0;
    for (; done + LANES <= columns; done += LANES) {
      Vector more = start ? (Vector) * (const Loose*)(start + done) : Vector{};
      i64 r = 0;
      for (; r + LANES <= rows; r += LANES)
        turn_and_add<true>(sums + done * WIDE + r, WIDE, to + r * n + done, n, more);
      for (; r < rows; ++r)
        for (int j = 0; j < LANES; ++j)
          to[r * n + done + j] = sums[(done + j) * WIDE + r] + more[j];
    }
    for (; done < columns; ++done)
      for (i64 r = 0; r < rows; ++r)
        to[r * n + done] = sums[done * WIDE + r] + (start ? start[done] : 0);
  }

  // Rows r0.. of the result, `columns` of each: part `part` of `parts` of these is fetched to be
  // written. Where the result is large, its lines would come from memory when they are stored.
  void expect(i64 r0, i64 j0, i64 columns, i64 part, i64 parts) const {
    const i64 rows = m - r0 < WIDE ? m - r0 : WIDE;
    for (i64 r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
      const f32* to = c + (r0 + r) * n + j0;
      for (i64 j = 0; j < columns; j += LINE / 4) __builtin_prefetch(to + j, 1);
      __builtin_prefetch(to + columns - 1, 1);
    }
  }

  // Columns j0.. of the result, HEIGHT at most, for panels first.. of a.
  // behind: columns that follow.
  void strip(i64 j0, i64 columns, i64 first, i64 last, i64 behind) const {
    f32 sums[HEIGHT * WIDE] __attribute__((aligned(64)));
    const f32* rows = w + j0 * ldw;
    // The next rows of the weight are fetched while these are used.
    const i64 lines = up(k * 4, LINE), tiles = up(k, ROUND) * up(columns, BLOCK);
    const i64 parts = (last - first) * tiles;
    const Next next = {
        (const char*)(rows + columns * ldw), behind < HEIGHT ? behind : HEIGHT, lines, ldw * 4};
    i64 part = 0;
    for (i64 i = first; i < last; ++i) {
      const f32* panel = panels + i * WIDE * k;
      for (i64 p = 0; p < k; p += ROUND) {
        const i64 depth = k - p < ROUND ? k - p : ROUND;
        for (i64 j = 0; j < columns; j += BLOCK) {
          expect(i * WIDE, j0, columns, part % tiles, tiles);
          Ahead more = ahead(next, part++, parts, depth);
          const i64 height = columns - j < BLOCK ? columns - j : BLOCK;
          add_rows_of<BLOCK>(height, rows + j * ldw + p, ldw, panel + p * WIDE, depth,
                             sums + j * WIDE, p == 0, more);
        }
      }
      const i64 r0 = i * WIDE;
      store(sums, m - r0 < WIDE ? m - r0 : WIDE, columns, r0, j0);
    }
    const i64 end = last * WIDE < m ? last * WIDE : m;
    if (epilogue) epilogue(context, first * WIDE, end, j0, j0 + columns);
  }
};

// Whether a product is one for `plain`: rows of both sides dense, those of the weight not all in
// the same sets of the cache, and enough rows of a, but not many.
static bool is_plain(i64 m, i64 k, i64 step, i64 row, i64 column) {
  return row == 1 && step == 1 && column >= k && column % ALIAS && m >= PLAIN_ROWS &&
         m < MANY && m * k <= MOST_COPIED;
}

static int plain(Plain p, i64 threads) {
  const i64 panels = up(p.m, WIDE), strips = up(p.n, HEIGHT);
  p.panels = room_of_thread.of(panels * WIDE * p.k);
  if (!p.panels) return 1;
  i64 bands = 1;  // of a, where there are too few strips for all threads
  while (strips * bands < 4 * threads && panels / (bands * 2) >= 2) bands *= 2;
  Panels parts[MOST_THREADS];
  for (i64 j = 0; j < threads; ++j)
    parts[j].left = strips * bands * (j + 1) / threads << 32 | strips * bands * j / threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(static)
    for (i64 i = 0; i < panels; ++i) p.copy_panel(i);
    for (i64 i = 0, first, last; i < threads; ++i)
      while (parts[(omp_get_thread_num() + i) % threads].take(i == 0, false, first, last))
        for (i64 part = first; part < last; ++part) {
          const i64 band = part / strips, j0 = part % strips * HEIGHT;
          const i64 left = p.n - j0, columns = left < HEIGHT ? left : HEIGHT;
          p.strip(j0, columns, panels * band / bands, panels * (band + 1) / bands, left - columns);
        }
  }
  return 0;
}
"""
