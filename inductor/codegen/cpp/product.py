"""A matrix product of our own, as C++: for processors and layouts on which the libraries are slow.

What is here: the text of one translation unit and the name of its function, which every graph may
call. The result is computed in tiles of ROWS x COLUMNS that stay in registers. Blocks of both sides
are copied first, b as panels [depth, COLUMNS], so that everything is read in order; b may also
come as panels (`PRODUCT_PACK`), which saves the copy. Only additions and products of float32 are
used, in the order of k, so that NaN, infinities and zero behave as in any product.
"""

from __future__ import annotations

import hashlib

PRODUCT_TEXT = r"""
typedef long i64;
typedef float f32;
extern "C" {
void* aligned_alloc(unsigned long, unsigned long);
void free(void*);
void* memcpy(void*, const void*, unsigned long);
int omp_get_thread_num();
int omp_get_num_threads();
}
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 14 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 6 };
#else
enum { LANES = 4, ROWS = 6 };
#endif
// Rows of the copy of a do not all fall into the same sets of the cache: hence STRIDE.
enum { VECTORS = 2, COLUMNS = LANES * VECTORS, DEPTH = 384, STRIDE = DEPTH + 16 };
typedef f32 Vector __attribute__((vector_size(LANES * 4)));
typedef f32 Loose __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int Lanes __attribute__((vector_size(LANES * 4)));

// c [R, COLUMNS] = a [R, depth] b [depth, COLUMNS] + start, where there is one
template <int R>
static void tile(i64 depth, const f32* a, const f32* b, f32* c, i64 ldc, const f32* start,
                 i64 lds) {
  Vector sum[R][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    __builtin_prefetch(c + r * ldc, 1);
    __builtin_prefetch(c + r * ldc + COLUMNS - 1, 1);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      sum[r][v] = start ? (Vector) * (const Loose*)(start + r * lds + v * LANES) : Vector{};
  }
#pragma GCC unroll 2
  for (i64 p = 0; p < depth; ++p) {
    Vector right[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) right[v] = *(const Vector*)(b + p * COLUMNS + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      Vector left = a[r * STRIDE + p] - Vector{};
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) *(Loose*)(c + r * ldc + v * LANES) = (Loose)sum[r][v];
}

static void tiles(int rows, i64 depth, const f32* a, const f32* b, f32* c, i64 ldc,
                  const f32* start, i64 lds) {
  auto part = [&](auto* run, int count) {
    for (; rows >= count; rows -= count) {
      run(depth, a, b, c, ldc, start, lds);
      a += count * STRIDE, c += count * ldc;
      if (start) start += count * lds;
    }
  };
  part(tile<ROWS>, ROWS);
#if defined(__AVX512F__)
  part(tile<8>, 8);
#endif
  part(tile<4>, 4);
  part(tile<2>, 2);
  part(tile<1>, 1);
}

// LANES columns of the product, LANES long each, which lie in rows of b.
static void turn(const f32* b, i64 column, f32* to) {
  Vector x[LANES], y[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) x[i] = *(const Loose*)(b + i * column);
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) {
    Lanes low, high;
    for (int j = 0; j < LANES; ++j) {
      low[j] = j & step ? LANES + j - step : j;
      high[j] = j & step ? LANES + j : j + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
      if (i & step) continue;
      y[i] = __builtin_shuffle(x[i], x[i + step], low);
      y[i + step] = __builtin_shuffle(x[i], x[i + step], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) *(Vector*)(to + i * COLUMNS) = x[i];
}

// One panel of b, [depth, COLUMNS], with zeros beyond its width.
static void pack(const f32* b, i64 row, i64 column, i64 depth, i64 width, f32* to) {
  if (width < COLUMNS) {
    for (i64 i = 0; i < depth * COLUMNS; ++i) to[i] = 0;
  } else if (column == 1) {
    for (i64 p = 0; p < depth; ++p)
      for (int j = 0; j < COLUMNS; ++j) to[p * COLUMNS + j] = b[p * row + j];
    return;
  }
  i64 turned = 0;
  if (width == COLUMNS && row == 1)
    for (; turned + LANES <= depth; turned += LANES)
      for (int v = 0; v < VECTORS; ++v)
        turn(b + v * LANES * column + turned, column, to + turned * COLUMNS + v * LANES);
  for (i64 j = 0; j < width; ++j)
    for (i64 p = turned; p < depth; ++p) to[p * COLUMNS + j] = b[j * column + p * row];
}

static i64 up(i64 a, i64 b) { return (a + b - 1) / b; }

struct Product {
  i64 m, n, k;
  const f32 *a, *b, *bias;
  f32* c;
  i64 lda, row, column, panels_given;

  // Columns j0.. of the result, for the rows whose copy is `left`.
  void panel(i64 j0, i64 r0, i64 r1, i64 p0, i64 depth, const f32* left, f32* right) const {
    i64 width = n - j0 < COLUMNS ? n - j0 : COLUMNS;
    if (panels_given)
      right = (f32*)b + j0 * k + p0 * COLUMNS;
    else
      pack(b + p0 * row + j0 * column, row, column, depth, width, right);
    if (width == COLUMNS) {
      f32* to = c + r0 * n + j0;
      const f32* start = p0 ? to : bias ? bias + j0 : 0;
      tiles(r1 - r0, depth, left, right, to, n, start, p0 ? n : 0);
      return;
    }
    f32 edge[ROWS * COLUMNS];
    for (i64 i = r0; i < r1; i += ROWS) {
      int rows = r1 - i < ROWS ? r1 - i : ROWS;
      f32* to = c + i * n + j0;
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < COLUMNS; ++j)
          edge[r * COLUMNS + j] = j >= width ? 0 : p0 ? to[r * n + j] : bias ? bias[j0 + j] : 0;
      tiles(rows, depth, left + (i - r0) * STRIDE, right, edge, COLUMNS, edge, COLUMNS);
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < width; ++j) to[r * n + j] = edge[r * COLUMNS + j];
    }
  }

  void block(i64 r0, i64 r1, i64 first, i64 last, f32* left, f32* right) const {
    for (i64 p0 = 0; p0 < k; p0 += DEPTH) {
      i64 depth = k - p0 < DEPTH ? k - p0 : DEPTH;
      for (i64 i = r0; i < r1; ++i) memcpy(left + (i - r0) * STRIDE, a + i * lda + p0, depth * 4);
      for (i64 panel_ = first; panel_ < last; ++panel_)
        panel(panel_ * COLUMNS, r0, r1, p0, depth, left, right);
    }
  }
};

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT i64 PRODUCT_COLUMNS() { return COLUMNS; }

// All panels of b [k, n], one behind the other: ceil(n / COLUMNS) * k * COLUMNS numbers.
EXPORT void PRODUCT_PACK(i64 k, i64 n, const f32* b, i64 row, i64 column, f32* to) {
#pragma omp parallel for
  for (i64 j = 0; j < n; j += COLUMNS)
    pack(b + j * column, row, column, k, n - j < COLUMNS ? n - j : COLUMNS, to + j * k);
}

// c [m, n] = a [m, k] b + bias (or null). b[p, j] is at p * row + j * column; row == 0: as panels.
// Returns 0, or 1 where there is no memory.
EXPORT int PRODUCT(
    i64 m, i64 n, i64 k, const f32* a, i64 lda, const f32* b, i64 row, i64 column,
    const f32* bias, f32* c, i64 threads) {
  enum { TALL = ROWS * 40 };  // rows whose copy fits the second cache
  Product p = {m, n, k, a, b, bias, c, lda, row, column, row == 0};
  i64 worth = m * n / 4096 * k / 256 + 1;  // a thread has at least some 2 million operations
  if (threads > worth) threads = worth;
  i64 bands = up(m, ROWS), panels = up(n, COLUMNS), down = 1, least = -1;
  for (i64 t = 1; t <= threads; ++t) {
    if (threads % t) continue;
    i64 work = (up(bands, t) * 16 + 1) * up(panels, threads / t);
    if (least < 0 || work < least) least = work, down = t;
  }
  i64 across = threads / down;
  i64 tall = up(bands, down) * ROWS;
  if (tall > TALL) tall = TALL;
  int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    i64 count = omp_get_num_threads();
    f32* left = (f32*)aligned_alloc(64, (tall * STRIDE + DEPTH * COLUMNS) * 4);
    if (!left) {
      failed = 1;
    } else {
      for (i64 job = omp_get_thread_num(); job < down * across; job += count) {
        i64 jr = job % down, jc = job / down;
        i64 end = bands * (jr + 1) / down * ROWS;
        if (end > m) end = m;
        for (i64 r0 = bands * jr / down * ROWS; r0 < end; r0 += tall)
          p.block(r0, r0 + tall < end ? r0 + tall : end, panels * jc / across,
                  panels * (jc + 1) / across, left, left + tall * STRIDE);
      }
      free(left);
    }
  }
  return failed;
}
"""

PRODUCT_NAME = f"product_{hashlib.sha256(PRODUCT_TEXT.encode()).hexdigest()[:16]}"
PRODUCT_UNIT = "\n".join(
    [
        f"#define PRODUCT {PRODUCT_NAME}",
        f"#define PRODUCT_PACK {PRODUCT_NAME}_pack",
        f"#define PRODUCT_COLUMNS {PRODUCT_NAME}_columns",
        PRODUCT_TEXT,
    ]
)
PRODUCT_DECLARATION = (
    f'extern "C" int {PRODUCT_NAME}(i64, i64, i64, const f32*, i64, const f32*, i64, i64, '
    "const f32*, f32*, i64);"
)
