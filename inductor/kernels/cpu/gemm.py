"""A GEMM of our own, as C++: for processors and layouts on which the libraries are slow.

What is here: the text of one translation unit and the name of its function, which every graph may
call. The result is computed in tiles of ROWS x COLUMNS that stay in registers. Blocks of b are
copied first, as panels [depth, COLUMNS], so that they are read in order; b may also come as panels
(`GEMM_PACK`), which saves the copy; dense rows [n, k] are mostly read where they lie
(`plain_gemm.py`). Rows or columns of a may be dense; it is copied, too, unless
its rows can be read where they lie. While a panel is used, the next one is fetched into the second
cache: weights mostly lie in memory. Only additions and products of float32 are used, in the order
of k, so that NaN, infinities and zero behave as in any product.

Where another thread (of this or of another program) shares a core, what counts is how many
instructions a tile needs beside its sums: hence the unrolled loop, prefetches once in BURST steps,
and sums whose registers the compiler does not rename. A thread that has finished its panels takes
some of another's.
"""

from __future__ import annotations

import hashlib

from inductor.kernels.cpu.assembly import ASSEMBLY_TEXT
from inductor.kernels.cpu.fetching import FETCHING_TEXT
from inductor.kernels.cpu.few_rows import FEW_ROWS_TEXT
from inductor.kernels.cpu.gemm_chain import CHAIN_ENTRY, CHAIN_TEXT, LINK
from inductor.kernels.cpu.gemm_tiles import TILES_TEXT
from inductor.kernels.cpu.plain_gemm import PLAIN_TEXT
from inductor.kernels.cpu.registers import REGISTERS
from inductor.kernels.cpu.turns import TURNS_TEXT
from inductor.kernels.cpu.types import TYPES_TEXT, VECTORS_TEXT

_TEXT = TYPES_TEXT + VECTORS_TEXT + r"""
extern "C" long sysconf(int);
#if defined(__AVX512F__)
enum { DIRECT = 1, SAME_SETS = ALIAS / 2 };
#elif defined(__AVX__)
enum { DIRECT = 1, SAME_SETS = ALIAS };
#else
enum { DIRECT = 0, SAME_SETS = ALIAS };
#endif
// Rows of the copy of a do not all fall into the same sets of the cache: hence STRIDE. Rows that
// are a multiple of ALIAS numbers apart would, and those of a high tile of SAME_SETS.
enum { VECTORS = 2, COLUMNS = LANES * VECTORS, DEPTH = 768, STRIDE = DEPTH + 16, LINE = 64 };
enum { BURST = 16, GROUP = 4, MOST_THREADS = 128 };
// Sums of so many products are added up: a long chain of additions is less exact.
enum { CHAIN = 192 };
// So many panels are packed at a time, where several blocks of rows read them: 1.5 MB.
enum { CHUNK = 512 / COLUMNS };
"""

_GEMM = r"""
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
        turn(b + v * LANES * column + turned, column, to + turned * COLUMNS + v * LANES, COLUMNS);
  for (i64 j = 0; j < width; ++j)
    for (i64 p = turned; p < depth; ++p) to[p * COLUMNS + j] = b[j * column + p * row];
}

// [rows, depth] of a, whose columns lie one behind the other and are `step` apart.
static void copy_turned(const f32* a, i64 step, i64 rows, i64 depth, f32* to) {
  i64 p = 0;
  for (; rows >= LANES && p + LANES <= depth; p += LANES)
    for (i64 i = 0; i < rows; i += LANES) {
      const i64 at = i + LANES <= rows ? i : rows - LANES;  // the last two may overlap
      turn(a + at + p * step, step, to + at * STRIDE + p, STRIDE);
    }
  for (; p < depth; ++p)
    for (i64 i = 0; i < rows; ++i) to[i * STRIDE + p] = a[i + p * step];
}

static i64 up(i64 a, i64 b) { return (a + b - 1) / b; }
static i64 least(i64 a, i64 b) { return a < b ? a : b; }

typedef void Epilogue(void* context, i64 r0, i64 r1, i64 j0, i64 j1);

struct Gemm {
  i64 m, n, k;
  const f32 *a, *b, *bias;
  f32* c;
  i64 lda, step, row, column, panels_given;
  bool direct;  // rows of a are read where they lie
  Epilogue* epilogue;
  void* context;

  const f32* panel_at(i64 j0, i64 p0) const { return b + j0 * k + p0 * COLUMNS; }

  static Next panel_behind(const f32* from, i64 depth) {
    return {(const char*)from, 1, depth * COLUMNS * 4 / LINE, 0};
  }

  // Where a panel of b comes from that is not packed yet.
  Next source(i64 at, i64 p0, i64 depth) const {
    const i64 j0 = at * COLUMNS, width = n - j0 < COLUMNS ? n - j0 : COLUMNS;
    const char* from = (const char*)(b + p0 * row + j0 * column);
    if (column == 1) return {from, depth, up(width * 4, LINE), row * 4};
    if (row == 1) return {from, width, up(depth * 4, LINE), column * 4};
    return {0, 0, 0, 0};
  }

  // Where rows r0.. of a lie, `depth` terms of each.
  Next left_source(i64 r0, i64 r1, i64 p0, i64 depth) const {
    const char* from = (const char*)(a + r0 * lda + p0 * step);
    if (step == 1) return {from, r1 - r0, up(depth * 4, LINE), lda * 4};
    return {from, depth, up((r1 - r0) * 4, LINE), step * 4};
  }

  // Columns j0.. of the result, for the rows of a that are `left`. next: what is read later.
  void panel(i64 j0, i64 r0, i64 r1, i64 p0, i64 depth, const f32* left, const f32* right,
             const Later& next) const {
    const i64 ldl = direct ? lda : STRIDE;
    const i64 width = n - j0 < COLUMNS ? n - j0 : COLUMNS, rows = r1 - r0, count = up(rows, ROWS);
    f32 edge[ROWS * COLUMNS];
    for (i64 i = 0; i < count; ++i) {
      const i64 from = rows * i / count, height = rows * (i + 1) / count - from;
      f32* to = c + (r0 + from) * n + j0;
      Ahead more = of_tile(next, i, count, depth);
      Tile t = {depth, left + from * ldl, right, to, ldl, n, bias ? bias + j0 : 0, 0};
      if (p0) t.start = to, t.lds = n;
      if (width == COLUMNS) {
        tile_of(height, t, more);
        continue;
      }
      for (int r = 0; r < height; ++r)
        for (int j = 0; j < COLUMNS; ++j)
          edge[r * COLUMNS + j] = j < width && t.start ? t.start[r * t.lds + j] : 0;
      tile_of(height, {depth, t.a, right, edge, ldl, COLUMNS, edge, COLUMNS}, more);
      for (int r = 0; r < height; ++r)
        for (int j = 0; j < width; ++j) to[r * n + j] = edge[r * COLUMNS + j];
    }
  }

  // Whether a thread takes all of its panels at once: for each few of them, a left side is copied
  // again, or comes from memory again if it is long.
  bool wants_all() const { return !direct || (!panels_given && k > 4 * DEPTH); }

  void pack_panel(i64 at, i64 p0, i64 depth, f32* to) const {
    const i64 j0 = at * COLUMNS, width = n - j0 < COLUMNS ? n - j0 : COLUMNS;
    pack(b + p0 * row + j0 * column, row, column, depth, width, to);
  }

  // The left side for the rows r0.. and `depth` terms from p0 on: a itself or a copy in `left`.
  // begin: what is read next, fetched meanwhile.
  const f32* left_side(i64 r0, i64 r1, i64 p0, i64 depth, f32* left, const Next& begin) const {
    const i64 parts = direct ? 1 : r1 - r0;
    for (i64 i = 0; i < parts; ++i) {
      Ahead more = ahead(begin, i, parts, 1);
      fetch(more);
      if (!direct && step == 1) memcpy(left + i * STRIDE, a + (r0 + i) * lda + p0, depth * 4);
    }
    if (direct) return a + r0 * lda + p0;
    if (step != 1) copy_turned(a + r0 + p0 * step, step, r1 - r0, depth, left);
    return left;
  }

  // Of the sums of panels first.. in rows r0.. the `depth` terms from p0 on. `room` has room for
  // all panels where they are `kept` (and are there already if `packed`), else for one. They are
  // finished GROUP at a time. near: the first one has been fetched; then: what of a follows.
  void strip(i64 r0, i64 r1, i64 first, i64 last, i64 p0, i64 depth, f32* left, f32* room,
             bool kept, bool packed, bool near, const Next& then) const {
    const Next nothing = {0, 0, 0, 0};
    const Next begin = near || packed ? nothing
                       : panels_given ? panel_behind(panel_at(first * COLUMNS, p0), p0 ? 0 : depth)
                                      : source(first, p0, depth);
    const f32* side = left_side(r0, r1, p0, depth, left, begin);
    for (i64 at = first, done = first; at < last; ++at) {
      const bool ends = at + 1 == last && p0 + depth == k;  // then others follow, from their begin
      const bool more = at + 1 < (ends ? up(n, COLUMNS) : last);
      const i64 from = ends ? 0 : p0;
      const f32* right = room + (kept ? (at - first) * depth * COLUMNS : 0);
      Next next = nothing;
      if (panels_given) {
        right = panel_at(at * COLUMNS, p0);
        if (more) next = panel_behind(panel_at((at + 1) * COLUMNS, from), depth);
        else if (p0 + depth < k) next = panel_behind(panel_at(first * COLUMNS, p0 + depth), depth);
      } else if (packed) {
        if (more && !ends) next = panel_behind(right + depth * COLUMNS, depth);
      } else {
        pack_panel(at, p0, depth, (f32*)right);
        if (more) next = source(at + 1, from, depth);
      }
      panel(at * COLUMNS, r0, r1, p0, depth, side, right, {next, then, at - first, last - first});
      if (!epilogue || p0 + depth < k || (at + 1 - done < GROUP && at + 1 < last)) continue;
      const i64 end = (at + 1) * COLUMNS;
      epilogue(context, r0, r1, done * COLUMNS, end < n ? end : n);
      done = at + 1;
    }
  }

  // Panels first.. of the result in rows begin.., `tall` of them at a time. near: as in `strip`.
  void share(i64 begin, i64 end, i64 tall, i64 first, i64 last, bool near, f32* left,
             f32* room) const {
    const i64 passes = up(k, DEPTH), deep = up(up(k, passes), 4) * 4;
    const bool chunks = !panels_given && end - begin > tall;  // each panel is packed once
    const i64 wide = chunks ? CHUNK : last - first, high = chunks ? end - begin : tall;
    auto block = [&](i64 r0, i64 p0) {
      return left_source(r0, least(r0 + tall, end), p0, least(k - p0, deep));
    };
    for (i64 c0 = first; c0 < last; c0 += wide)
      for (i64 top = begin; top < end; top += high)
        for (i64 p0 = 0; p0 < k; p0 += deep) {
          const i64 depth = least(k - p0, deep), c1 = least(c0 + wide, last);
          const i64 bottom = least(top + high, end);
          for (i64 r0 = top; r0 < bottom; r0 += tall) {
            const i64 r1 = least(r0 + tall, end);
            Next then = {0, 0, 0, 0};
            if (r1 < bottom) then = block(r1, p0);
            else if (p0 + deep < k) then = block(top, p0 + deep);
            else if (bottom < end) then = block(bottom, 0);
            else if (c1 < last && (r0 > begin || p0)) then = block(begin, 0);
            strip(r0, r1, c0, c1, p0, depth, left, room, chunks, chunks && r0 > top,
                  near && c0 == first && !p0, then);
          }
        }
  }
};

// Memory of one thread, kept for its next product: fresh pages cost more than the copies.
struct Room {
  f32* memory = 0;
  i64 size = 0;
  f32* of(i64 wanted) {
    if (wanted > size) {
      free(memory);
      memory = (f32*)aligned_alloc(64, wanted * 4);
      size = memory ? wanted : 0;
    }
    return memory;
  }
  ~Room() { free(memory); }
};
static thread_local Room room_of_thread;

static i64 most_rows() {
  enum { SECOND_CACHE = 191 };  // _SC_LEVEL2_CACHE_SIZE
  static const i64 size = sysconf(SECOND_CACHE);
  i64 rows = (size > 0 ? size : 1 << 20) / 2 / (STRIDE * 4) / ROWS * ROWS;
  return rows > ROWS ? rows : ROWS;
}

// Panels that nothing has begun: `end` in the upper half, the first one in the lower one.
struct Panels {
  unsigned long left;
  char apart[2 * LINE - 8];

  // The owner takes them from the front, others from the back: few at a time, one by one in the
  // end, or all at once.
  bool take(bool front, bool all, i64& first, i64& last) {
    unsigned long now = __atomic_load_n(&left, __ATOMIC_RELAXED);
    for (;;) {
      const i64 begin = now & 0xffffffff, end = now >> 32;
      if (begin >= end) return false;
      const i64 half = up(end - begin, 2), some = all ? end - begin : half < GROUP ? half : GROUP;
      first = front ? begin : end - some, last = first + some;
      const unsigned long then = front ? now + some : now - ((unsigned long)some << 32);
      if (__atomic_compare_exchange_n(&left, &now, then, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return true;
    }
  }
};

// All of a product that is left, for one of the threads: its own part, then others'. `across`
// parts of each of `down` bands of rows.
static void work(const Gemm& p, Panels* parts, i64 down, i64 across, i64 tall, f32* left) {
  const i64 count = down * across, me = omp_get_thread_num();
  for (i64 i = 0; i < count; ++i) {
    const i64 part = (me + i) % count, band = part % down;
    i64 first, last, before = -1;
    while (parts[part].take(i == 0, p.wants_all() || count == 1, first, last)) {
      p.share(p.m * band / down, p.m * (band + 1) / down, tall, first, last, first == before, left,
              left + tall * STRIDE);
      before = last;
    }
  }
}

"""

_ENTRIES = r"""
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT i64 GEMM_COLUMNS() { return COLUMNS; }

// Whether a product of dense rows with a dense weight [n, k] wants no panels of it beforehand.
EXPORT int GEMM_PLAIN(i64 m, i64 k) {
  return m >= MANY || is_few(m, k, 1, 1, k) || is_plain(m, k, 1, 1, k);
}

// All panels of b [k, n], one behind the other: ceil(n / COLUMNS) * k * COLUMNS numbers.
EXPORT void GEMM_PACK(i64 k, i64 n, const f32* b, i64 row, i64 column, f32* to) {
#pragma omp parallel for
  for (i64 j = 0; j < n; j += COLUMNS)
    pack(b + j * column, row, column, k, n - j < COLUMNS ? n - j : COLUMNS, to + j * k);
}

// c [m, n] = a [m, k] b + bias (or null). a[i, p] is at i * lda + p * step, where lda or step is 1;
// b[p, j] is at p * row + j * column; row == 0: as panels.
// epilogue (or null) is called for each part of c once that is done, by the thread that wrote it.
// Returns 0, or 1 where there is no memory.
EXPORT int GEMM(
    i64 m, i64 n, i64 k, const f32* a, i64 lda, i64 step, const f32* b, i64 row, i64 column,
    const f32* bias, f32* c, i64 threads, Epilogue* epilogue, void* context) {
  const bool direct = DIRECT && step == 1 && lda % SAME_SETS;
  Gemm p = {m, n, k, a, b, bias, c, lda, step, row, column, row == 0, direct, epilogue, context};
  if (is_few(m, k, step, row, column))
    return few({m, n, k, a, b, bias, c, lda, column, epilogue, context}, threads);
  i64 worth = m * n / 4096 * k / 256 + 1;  // a thread has at least some 2 million operations
  if (threads > worth) threads = worth;
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  if (is_plain(m, k, step, row, column))
    return plain({m, n, k, a, b, bias, c, lda, column, 0, epilogue, context}, threads);
  i64 bands = up(m, ROWS), panels = up(n, COLUMNS), down = 1, least = -1;
  for (i64 t = 1; t <= threads; ++t) {
    if (threads % t) continue;
    i64 work = (up(bands, t) * 16 + 1) * up(panels, threads / t);
    if (least < 0 || work < least) least = work, down = t;
  }
  i64 across = threads / down, highest = up(m, down), tall = most_rows();
  tall = up(up(highest, up(highest, tall)), ROWS) * ROWS;
  int failed = 0;
  Panels parts[MOST_THREADS];
  for (i64 j = 0; j < threads; ++j) {
    const i64 jc = j / down;
    parts[j].left = panels * (jc + 1) / across << 32 | panels * jc / across;
  }
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    i64 packed = row && tall < highest ? CHUNK : 1;
    f32* left = room_of_thread.of(tall * STRIDE + DEPTH * COLUMNS * packed);
    if (left)
      work(p, parts, down, across, tall, left);
    else
      failed = 1;
  }
  return failed;
}
"""

# Rows that are a multiple of so many numbers apart fall into the same sets of a cache.
ALIAS = 1024
_TILES = (ASSEMBLY_TEXT, TILES_TEXT, TURNS_TEXT)
_OTHERS = (PLAIN_TEXT, FEW_ROWS_TEXT, CHAIN_TEXT)
_PARTS = (REGISTERS, _TEXT, FETCHING_TEXT, *_TILES, _GEMM, *_OTHERS, _ENTRIES, CHAIN_ENTRY)
GEMM_TEXT = f"enum {{ ALIAS = {ALIAS} }};" + "".join(_PARTS)
GEMM_NAME = f"gemm_{hashlib.sha256(GEMM_TEXT.encode()).hexdigest()[:16]}"
GEMM_UNIT = "\n".join(
    [
        f"#define GEMM {GEMM_NAME}",
        f"#define GEMM_PACK {GEMM_NAME}_pack",
        f"#define GEMM_COLUMNS {GEMM_NAME}_columns",
        f"#define GEMM_PLAIN {GEMM_NAME}_plain",
        f"#define GEMM_CHAIN {GEMM_NAME}_chain",
        GEMM_TEXT,
    ]
)
GEMM_DECLARATION = (
    f'extern "C" int {GEMM_NAME}(i64, i64, i64, const f32*, i64, i64, const f32*, i64, i64, '
    "const f32*, f32*, i64, void (*)(void*, i64, i64, i64, i64), void*);"
)
CHAIN_DECLARATION = (
    f'{LINK}extern "C" int {GEMM_NAME}_chain(i64, const f32*, i64, const GemmLink*, f32*, '
    "f32*, i64);"
)
