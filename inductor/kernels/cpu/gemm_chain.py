"""Two GEMMs of which the second one alone reads what the first one makes: C++ text for
`gemm.py`, behind which it stands in the same unit.

Bands of rows go through both, one behind the other: what lies between, as in the MLP of a
transformer, stays in the second cache of a processor and is never stored as a whole.
"""

from __future__ import annotations

MOST_POINTERS = 32  # of the context of an epilogue
# What the caller declares, too.
LINK = r"""
// One of two products: its sizes, its weight as in GEMM, bias (or null), and what follows it (or
// null) with `pointers` of its context, where those to what lies between are null.
struct GemmLink {
  i64 n, k;
  const f32* b;
  i64 row, column;
  const f32* bias;
  void (*epilogue)(void*, i64, i64, i64, i64);
  void** context;
  i64 pointers;
};
"""

CHAIN_TEXT = LINK + r"""
enum { MOST_POINTERS = __MOST__, TALLEST = 36 * ROWS };

// Rows of a band: what lies between, n columns, takes half of the second cache at most; at least
// two bands for each thread.
static i64 rows_of_band(i64 m, i64 n, i64 threads) {
  i64 fit = most_rows() * STRIDE / n;
  if (fit > TALLEST) fit = TALLEST;
  const i64 tiles = up(m, ROWS), high = fit > ROWS ? fit / ROWS : 1, least = up(tiles, high);
  const i64 bands = least > 2 * threads ? up(least, threads) * threads : 2 * threads;
  return up(tiles, bands) * ROWS;
}

// Rows r0.. of one product, by this thread; held: what stands for null in the context.
static void run_link(const GemmLink& link, Gemm p, i64 r0, i64 r1, f32* held, f32* left) {
  void* context[MOST_POINTERS];
  for (i64 i = 0; i < link.pointers; ++i)
    context[i] = link.context[i] ? link.context[i] : (void*)held;
  p.context = context;
  p.share(r0, r1, r1 - r0, 0, up(link.n, COLUMNS), false, left, 0);
}

// The panels of both weights, where they do not come as such, by all threads.
static void pack_links(const GemmLink* links, f32* const* packed) {
  for (int i = 0; i < 2; ++i) {
    const GemmLink& link = links[i];
    if (!link.row) continue;
#pragma omp for schedule(static)
    for (i64 j = 0; j < link.n; j += COLUMNS)
      pack(link.b + j * link.column, link.row, link.column, link.k,
           link.n - j < COLUMNS ? link.n - j : COLUMNS, packed[i] + j * link.k);
  }
}

static thread_local Room panels_of_chain;
""".replace("__MOST__", str(MOST_POINTERS))

CHAIN_ENTRY = r"""
// c [m, n of the second] = second(first(a)); a has dense rows, lda apart. between: memory for
// [m, n of the first], of which nothing may be expected afterwards.
// Returns 0, or 1 where there is no memory.
EXPORT int GEMM_CHAIN(i64 m, const f32* a, i64 lda, const GemmLink* links, f32* between,
                         f32* c, i64 threads) {
  const GemmLink &one = links[0], &two = links[1];
  const i64 most = rows_of_band(m, one.n, threads), bands = up(m, most);
  if (threads * most > m) threads = m > most ? m / most : 1;  // each has a band in `between`
  i64 sizes[2];
  for (int i = 0; i < 2; ++i)
    sizes[i] = links[i].row ? up(links[i].n, COLUMNS) * COLUMNS * links[i].k : 0;
  f32* const panels = sizes[0] + sizes[1] ? panels_of_chain.of(sizes[0] + sizes[1]) : 0;
  if (!panels && sizes[0] + sizes[1]) return 1;
  f32* const packed[2] = {panels, panels + sizes[0]};
  const f32* const right[2] = {one.row ? packed[0] : one.b, two.row ? packed[1] : two.b};
  const bool direct = DIRECT && lda % SAME_SETS, direct_two = DIRECT && one.n % SAME_SETS;
  i64 next = 0, failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    f32* const left = room_of_thread.of(direct && direct_two ? 1 : most * STRIDE);
    pack_links(links, packed);
    const i64 me = omp_get_thread_num();
    while (left) {
      const i64 band = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
      if (band >= bands) break;
      const i64 r0 = band * most, r1 = r0 + most < m ? r0 + most : m;
      f32* const held = between + (me * most - r0) * one.n;
      run_link(one, {m, one.n, one.k, a, right[0], one.bias, held, lda, 1, 0, 0,
                     true, direct, one.epilogue, 0}, r0, r1, held, left);
      run_link(two, {m, two.n, two.k, held, right[1], two.bias, c, one.n, 1, 0, 0,
                     true, direct_two, two.epilogue, 0}, r0, r1, held, left);
    }
    if (!left) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
  }
  return failed;
}
"""
