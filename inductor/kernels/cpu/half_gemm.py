"""A GEMM of bfloat16 of our own, as C++, for processors with instructions for it.

What is here: the text of one translation unit and the name of its function. b is read as panels
[terms / 2, COLUMNS, 2]: two terms of a column are neighbours, as AMX and AVX512-BF16 want them.
They are made once of weights that do not change (`HALF_PACK`), else by the thread that reads them.
Tiles of ROWS x COLUMNS are summed up in float32 and rounded once, behind the bias. AMX reads a
where it lies; tiles at its edges are lower, and terms beyond the last whole 32 come from a copy
with zeros. Subnormal numbers count as zero, as in oneDNN's GEMMs, which use the same
instructions. Other processors run plain loops: those are for tests.
"""

from __future__ import annotations

import hashlib

from inductor.kernels.cpu.turns import TURN_TEXT
from inductor.kernels.cpu.types import TYPES_TEXT

_TEXT = TYPES_TEXT + r"""
extern "C" long syscall(long, ...);
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && !defined(WITHOUT_AMX)
#define WITH_AMX 1
enum { ROWS = 32 };
#elif defined(__AVX512BF16__)
enum { ROWS = 14 };
#else
enum { ROWS = 4 };
#endif
enum { COLUMNS = 32, PAIR = 2, STEP = 32, LINE = 64, LANES = 16, MOST_THREADS = 128 };
enum { GROUP = 4, HALF_OF_SECOND_CACHE = 1 << 20 };
typedef f32 Vector __attribute__((vector_size(64)));
typedef f32 Loose __attribute__((vector_size(64), aligned(4)));
typedef int Lanes __attribute__((vector_size(64)));
""" + TURN_TEXT + r"""
typedef u16 Halves __attribute__((vector_size(32)));
typedef u16 LooseHalves __attribute__((vector_size(32), aligned(2)));

static inline f32 wide(u16 x) {
  union { u32 bits; f32 number; } both = {(u32)x << 16};
  return both.number;
}

static inline u16 narrow(f32 x) {
  union { f32 number; u32 bits; } both = {x};
  if (x != x) return 0x7fc0;
  return (both.bits + 0x7fff + (both.bits >> 16 & 1)) >> 16;
}

static i64 up(i64 a, i64 b) { return (a + b - 1) / b; }

// Lines of the next panel, fetched into the second cache while this one is used.
struct Ahead {
  const char* next;
  i64 left;
  int rate;
};

static inline __attribute__((always_inline)) void fetch(Ahead& more) {
  for (int i = 0; i < more.rate && more.left > 0; ++i, --more.left) {
    __builtin_prefetch(more.next, 0, 2);
    more.next += LINE;
  }
}

// A tile: sums [height, COLUMNS] of rows of a, which are lda apart, and a panel of `pairs` pairs
// of terms. tail: copies of the rows' last terms with zeros, STEP each, where k is no multiple.
struct Tile {
  const u16 *a, *tail, *b;
  i64 lda, k, height;
};

#if WITH_AMX
struct __attribute__((aligned(64))) Shapes {
  unsigned char palette, start, none[14];
  u16 bytes[16];
  unsigned char rows[16];
};

// Sums 0 to 3, two of a row of tiles; 4 and 5 are a, 6 and 7 are b.
static void set_shapes(int upper, int lower) {
  Shapes s = {};
  s.palette = 1;
  const int rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
  for (int i = 0; i < 8; ++i) s.bytes[i] = rows[i] ? 64 : 0, s.rows[i] = rows[i];
  __asm__ volatile("ldtilecfg %0" ::"m"(s));
}

#define LOAD(at, apart, tile) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(at), "r"((i64)(apart)) : "memory")
#define STORE(at, apart, tile) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), "r"((i64)(apart)) : "memory")
#define ADD(sum, left, right) \
  __asm__ volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum::)
#define ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile::)

template <bool BOTH>
static void sums(const Tile& t, f32* to, Ahead& more) {
  ZERO(0);
  ZERO(1);
  if (BOTH) {
    ZERO(2);
    ZERO(3);
  }
  const u16 *a = t.a, *b = t.b;
  i64 apart = t.lda * 2;
  auto step = [&]() __attribute__((always_inline)) {
    LOAD(a, apart, 4);
    LOAD(b, 2 * LINE, 6);
    LOAD(b + LINE / 2, 2 * LINE, 7);
    ADD(0, 4, 6);
    ADD(1, 4, 7);
    if (BOTH) {
      LOAD((const char*)a + 16 * apart, apart, 5);
      ADD(2, 5, 6);
      ADD(3, 5, 7);
    }
  };
  const i64 whole = t.k / STEP;
  for (i64 p = 0; p < whole; ++p) {
    fetch(more);
    step();
    a += STEP, b += STEP * COLUMNS;
  }
  if (t.k % STEP) {
    a = t.tail, apart = STEP * 2;
    step();
  }
  STORE(to, COLUMNS * 4, 0);
  STORE(to + 16, COLUMNS * 4, 1);
  if (BOTH) {
    STORE(to + 16 * COLUMNS, COLUMNS * 4, 2);
    STORE(to + 16 * COLUMNS + 16, COLUMNS * 4, 3);
  }
}

static void tile(const Tile& t, f32* to, Ahead& more) {
  const bool lower = t.height < ROWS;
  if (lower) set_shapes(t.height < 16 ? t.height : 16, t.height < 16 ? 0 : t.height - 16);
  if (t.height > 16) sums<true>(t, to, more);
  else sums<false>(t, to, more);
  if (lower) set_shapes(16, 16);
}

static void begin() { set_shapes(16, 16); }
static void end() { __asm__ volatile("tilerelease" ::); }

// The kernel gives a process the tiles only if it asks for them.
static bool is_ready() {
  enum { ARCH_PRCTL = 158, REQUEST = 0x1023, TILES = 18 };
  static const bool ready = syscall(ARCH_PRCTL, REQUEST, TILES) == 0;
  return ready;
}
#elif defined(__AVX512BF16__)
template <int R>
static void sums(const Tile& t, f32* to, Ahead& more) {
  Vector sum[R][2] = {};
  const u16 *a = t.a, *b = t.b;
  i64 apart = t.lda;
  auto pair = [&]() __attribute__((always_inline)) {
    const Vector x = *(const Vector*)b, y = *(const Vector*)(b + COLUMNS);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      Vector left;
      __asm__("vpbroadcastd %1, %0" : "=v"(left) : "m"(*(const u32*)(a + r * apart)));
      __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum[r][0]) : "v"(left), "v"(x));
      __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum[r][1]) : "v"(left), "v"(y));
    }
    a += PAIR, b += PAIR * COLUMNS;
  };
  const i64 whole = t.k / STEP;
  for (i64 p = 0; p < whole; ++p) {
    fetch(more);
    for (int i = 0; i < STEP / PAIR; ++i) pair();
  }
  if (t.k % STEP) {
    a = t.tail, apart = STEP;
    for (i64 i = 0; i < up(t.k % STEP, PAIR); ++i) pair();
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) *(Vector*)(to + r * COLUMNS + v * LANES) = sum[r][v];
}

template <int R>
static void tile_of(const Tile& t, f32* to, Ahead& more) {
  if (t.height == R) return sums<R>(t, to, more);
  if constexpr (R > 1) tile_of<R - 1>(t, to, more);
}

static void tile(const Tile& t, f32* to, Ahead& more) { tile_of<ROWS>(t, to, more); }
static void begin() {}
static void end() {}
static bool is_ready() { return true; }
#else
static void tile(const Tile& t, f32* to, Ahead& more) {
  fetch(more);
  const i64 whole = t.k / STEP * STEP;
  for (i64 r = 0; r < t.height; ++r)
    for (int j = 0; j < COLUMNS; ++j) {
      f32 sum = 0;
      for (i64 p = 0; p < t.k; ++p) {
        const u16 x = p < whole ? t.a[r * t.lda + p] : t.tail[r * STEP + p - whole];
        sum += wide(x) * wide(t.b[p / PAIR * PAIR * COLUMNS + j * PAIR + p % PAIR]);
      }
      to[r * COLUMNS + j] = sum;
    }
}
static void begin() {}
static void end() {}
static bool is_ready() { return false; }
#endif

// c [height, width] = sums + bias, rounded.
static void finish(const f32* sums, i64 height, i64 width, const f32* bias, u16* c, i64 ldc) {
  for (i64 r = 0; r < height; ++r, sums += COLUMNS, c += ldc) {
#if defined(__AVX512BF16__)
    if (width == COLUMNS) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        Vector x = *(const Vector*)(sums + v * LANES) + *(const Vector*)(bias + v * LANES);
        Halves half;
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(x));
        *(LooseHalves*)(c + v * LANES) = (LooseHalves)half;
      }
      continue;
    }
#endif
    for (i64 j = 0; j < width; ++j) c[j] = narrow(sums[j] + bias[j]);
  }
}

// 16 rows of 16 pairs, `from` pairs apart, become the columns of rows that are COLUMNS apart.
static void turn(const f32* b, i64 from, f32* to) {
  Vector x[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) x[i] = *(const Loose*)((const u16*)b + i * from);
  turn(x);
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) *(Loose*)(to + i * COLUMNS) = (Loose)x[i];
}

// Numbers in a panel of so many terms: whole steps, zeros beyond the last.
static i64 panel_size(i64 k) { return up(k, STEP) * STEP * COLUMNS; }

// A panel of b, whose element p, j is at p * row + j * column.
static void pack(const u16* b, i64 row, i64 column, i64 k, i64 width, u16* to) {
  const i64 whole = k / STEP * STEP;
  i64 p = 0;
  if (width == COLUMNS && row == 1)
    for (; p < whole; p += STEP)
      for (int v = 0; v < 2; ++v)
        turn((const f32*)(b + v * LANES * column + p), column,
             (f32*)(to + p * COLUMNS) + v * LANES);
  else if (width == COLUMNS && column == 1)
    for (; p < whole; p += PAIR)
      for (int j = 0; j < COLUMNS; ++j) {
        to[p * COLUMNS + j * PAIR] = b[p * row + j];
        to[p * COLUMNS + j * PAIR + 1] = b[(p + 1) * row + j];
      }
  memset(to + p * COLUMNS, 0, (panel_size(k) - p * COLUMNS) * 2);
  for (; p < k; ++p)
    for (i64 j = 0; j < width; ++j)
      to[p / PAIR * PAIR * COLUMNS + j * PAIR + p % PAIR] = b[p * row + j * column];
}

typedef void Epilogue(void* context, i64 r0, i64 r1, i64 j0, i64 j1);

struct Gemm {
  i64 m, n, k;
  const u16 *a, *b, *bias;
  u16* c;
  i64 lda, row, column, panels;
  Epilogue* epilogue;
  void* context;

  i64 width_at(i64 panel) const {
    const i64 j0 = panel * COLUMNS;
    return n - j0 < COLUMNS ? n - j0 : COLUMNS;
  }

  // A panel as it was given, or packed into `room`.
  const u16* right(i64 panel, u16* room) const {
    if (!row) return b + panel * panel_size(k);
    pack(b + panel * COLUMNS * column, row, column, k, width_at(panel), room);
    return room;
  }

  // Panels first.. in rows r0..: all rows that stay in the second cache for each panel.
  void share(i64 r0, i64 r1, i64 first, i64 last, u16* room, const u16* tails) const {
    const i64 tall = up(HALF_OF_SECOND_CACHE / (k * 2) + 1, ROWS) * ROWS;  // of long rows, too
    f32 sum[ROWS * COLUMNS] __attribute__((aligned(64)));
    f32 start[COLUMNS] __attribute__((aligned(64)));
    for (i64 begin = r0; begin < r1; begin += tall)
      for (i64 at = first; at < last; ++at) {
        const i64 end = begin + tall < r1 ? begin + tall : r1, width = width_at(at);
        u16* place = room + (at - first) * panel_size(k);
        const u16* from = begin > r0 && row ? place : right(at, place);
        const i64 lines = row || at + 1 == panels ? 0 : panel_size(k) * 2 / LINE;
        const i64 steps = up(end - begin, ROWS) * (k / STEP) + 1;
        Ahead more = {(const char*)(from + panel_size(k)), lines, int(lines / steps + 1)};
        for (i64 j = 0; j < COLUMNS; ++j)
          start[j] = bias && j < width ? wide(bias[at * COLUMNS + j]) : 0;
        for (i64 r = begin; r < end; r += ROWS) {
          const i64 height = end - r < ROWS ? end - r : ROWS;
          tile({a + r * lda, tails + (r - r0) * STEP, from, lda, k, height}, sum, more);
          finish(sum, height, width, start, c + r * n + at * COLUMNS, n);
        }
      }
    if (epilogue) epilogue(context, r0, r1, first * COLUMNS, last < panels ? last * COLUMNS : n);
  }

  // The last terms of rows r0.., with zeros.
  void copy_tails(i64 r0, i64 r1, u16* to) const {
    const i64 whole = k / STEP * STEP;
    if (whole == k) return;
    memset(to, 0, (r1 - r0) * STEP * 2);
    for (i64 r = r0; r < r1; ++r, to += STEP) memcpy(to, a + r * lda + whole, (k - whole) * 2);
  }
};

// Memory of one thread, kept for its next product.
struct Room {
  u16* memory = 0;
  i64 size = 0;
  u16* of(i64 wanted) {
    if (wanted > size) {
      free(memory);
      memory = (u16*)aligned_alloc(64, up(wanted * 2, 64) * 64);
      size = memory ? wanted : 0;
    }
    return memory;
  }
  ~Room() { free(memory); }
};
static thread_local Room room_of_thread;

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int HALF_READY() { return is_ready(); }
EXPORT i64 HALF_SIZE(i64 k, i64 n) { return up(n, COLUMNS) * panel_size(k); }

// All panels of b [k, n], one behind the other: HALF_SIZE numbers.
EXPORT void HALF_PACK(i64 k, i64 n, const u16* b, i64 row, i64 column, u16* to) {
#pragma omp parallel for
  for (i64 j = 0; j < n; j += COLUMNS)
    pack(b + j * column, row, column, k, n - j < COLUMNS ? n - j : COLUMNS,
         to + j / COLUMNS * panel_size(k));
}

// c [m, n] = a [m, k] b + bias (or null), all bfloat16; rows of a are dense and lda apart. b[p, j]
// is at p * row + j * column; row == 0: as panels. epilogue (or null) is called for each part of c
// once that is done, by the thread that wrote it. Returns 0, or 1 where there is no memory.
EXPORT int HALF_GEMM(
    i64 m, i64 n, i64 k, const u16* a, i64 lda, i64 step, const u16* b, i64 row, i64 column,
    const u16* bias, u16* c, i64 threads, Epilogue* epilogue, void* context) {
  is_ready();
  const i64 panels = up(n, COLUMNS), worth = m * n / 4096 * k / 2048 + 1;
  Gemm p = {m, n, k, a, b, bias, c, lda, row, column, panels, epilogue, context};
  if (threads > worth) threads = worth;
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  // Bands of rows, if there are too few panels for all threads.
  i64 bands = 1;
  while (panels * bands < 4 * threads && m / (bands * 2) >= ROWS) bands *= 2;
  const i64 share = panels * bands / (4 * threads);
  const i64 group = share < 1 ? 1 : share < GROUP ? share : GROUP;
  const i64 across = up(panels, group), parts = across * bands;
  int failed = 0;
  i64 next = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const i64 tail = k % STEP ? up(m, bands) * STEP : 0;
    u16* room = room_of_thread.of(tail + (row ? group * panel_size(k) : 0) + LINE);
    i64 known = -1;
    if (!room) {
      failed = 1;
    } else {
      begin();
      for (;;) {
        const i64 part = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
        if (part >= parts) break;
        const i64 band = part / across, first = part % across * group;
        const i64 r0 = m * band / bands, r1 = m * (band + 1) / bands;
        if (band != known) p.copy_tails(r0, r1, room), known = band;
        p.share(r0, r1, first, first + group < panels ? first + group : panels,
                room + up(tail, LINE) * LINE, room);
      }
      end();
    }
  }
  return failed;
}
"""

HALF_NAME = f"half_gemm_{hashlib.sha256(_TEXT.encode()).hexdigest()[:16]}"
HALF_UNIT = "\n".join(
    [
        f"#define HALF_GEMM {HALF_NAME}",
        f"#define HALF_PACK {HALF_NAME}_pack",
        f"#define HALF_SIZE {HALF_NAME}_size",
        f"#define HALF_READY {HALF_NAME}_ready",
        _TEXT,
    ]
)
HALF_DECLARATION = (
    f'extern "C" int {HALF_NAME}(i64, i64, i64, const u16*, i64, i64, const u16*, i64, i64, '
    "const u16*, u16*, i64, void (*)(void*, i64, i64, i64, i64), void*);"
)
