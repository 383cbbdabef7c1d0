"""The part of our GEMM for a few rows and a dense weight [n, k], read where it lies.

In: the text of `gemm.py`, behind which this one stands in the same unit. Each element of the
result is a sum of vectors along a row of the weight; a few rows of the weight are read side by
side, each once, for all rows of the other side, which stay in the first cache. So a GEMM is as
fast as memory, and no copy of the weight could make it faster.
"""

from __future__ import annotations

FEW_ROWS_TEXT = r"""
enum { FEW_ROWS = 8, FEW_COLUMNS = 64, WORTH_A_THREAD = 1 << 17 };
// Numbers by which what is fetched is ahead: in the next rows, where these are not too long.
enum { FETCHED = 512, MOST_FETCHED = 4096 };

struct Few {
  i64 m, n, k;
  const f32 *a, *w, *bias;
  f32* c;
  i64 lda, ldw;
  Epilogue* epilogue;
  void* context;

  // J columns of the result in all M rows.
  template <int M, int J>
  __attribute__((noinline)) void dots(i64 column) const {
    const f32* rows = w + column * ldw;
    const i64 ahead = J * k <= MOST_FETCHED ? J * ldw : FETCHED;
    Vector sum[M][J] = {};
    i64 p = 0;
    for (; p + LANES <= k; p += LANES) {
      Vector right[J];
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        right[j] = (Vector) * (const Loose*)(rows + j * ldw + p);
        __builtin_prefetch(rows + j * ldw + p + ahead, 0, 3);
      }
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        Vector left = (Vector) * (const Loose*)(a + r * lda + p);
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) sum[r][j] += left * right[j];
      }
    }
    for (int r = 0; r < M; ++r)
      for (int j = 0; j < J; ++j) {
        f32 total = bias ? bias[column + j] : 0;
        for (int lane = 0; lane < LANES; ++lane) total += sum[r][j][lane];
        for (i64 rest = p; rest < k; ++rest) total += a[r * lda + rest] * rows[j * ldw + rest];
        c[r * n + column + j] = total;
      }
  }

  template <int M>
  void strip(i64 first, i64 last) const {
    enum { SIDE_BY_SIDE = M <= 2 ? 4 : M <= 5 ? 2 : 1 };
    i64 column = first;
    for (; column + SIDE_BY_SIDE <= last; column += SIDE_BY_SIDE) dots<M, SIDE_BY_SIDE>(column);
    for (; column < last; ++column) dots<M, 1>(column);
  }

  template <int M>
  void strip_of(i64 first, i64 last) const {
    if (m == M) return strip<M>(first, last);
    if constexpr (M > 1) strip_of<M - 1>(first, last);
  }
};

static bool is_few(i64 m, i64 k, i64 step, i64 row, i64 column) {
  return row == 1 && step == 1 && column >= k && m <= FEW_ROWS;
}

static int few(const Few& f, i64 threads) {
  const i64 strips = up(f.n, FEW_COLUMNS), worth = f.n * f.k / WORTH_A_THREAD + 1;
  if (threads > worth) threads = worth;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (i64 i = 0; i < strips; ++i) {
    const i64 first = i * FEW_COLUMNS, end = first + FEW_COLUMNS, last = end < f.n ? end : f.n;
    f.strip_of<FEW_ROWS>(first, last);
    if (f.epilogue) f.epilogue(f.context, 0, f.m, first, last);
  }
  return 0;
}
"""
