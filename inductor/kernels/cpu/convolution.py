"""Convolutions of our own, as C++: float32, channels last, dense, with packed weights.

What is here: the texts of three translation units and the names of their functions, which every
graph may call. A tile of up to ROWS pixels of a line times COLUMNS output channels stays in
registers while all that it sums up is read: for each tap of the window the channels of each pixel,
which lie `step` bytes apart, and one panel of the weight, in order. What has padding is copied line
by line first, a band at a time which fits the second cache, so that no tile asks where a line ends;
rows of the window above or below the image are left out. A window of one element needs no copy,
unless its pixels would all fall into the same sets of the cache.

What follows the convolution may come as a function: it is called for pixels and channels that have
just been stored. Only additions and products of float32 are used, so that NaN, infinities and zero
behave as in any convolution.
"""

from __future__ import annotations

import hashlib

from inductor.kernels.cpu.convolution_chain import CHAIN, CHAIN_PARTS, CHAIN_STRUCT
from inductor.kernels.cpu.depthwise import DEPTHWISE
from inductor.kernels.cpu.registers import REGISTERS
from inductor.kernels.cpu.types import TYPES_TEXT, VECTORS_TEXT
from inductor.kernels.cpu.winograd import WINOGRAD

_TILES = REGISTERS + TYPES_TEXT + VECTORS_TEXT + r"""
enum { COLUMNS = 2 * LANES, LINE = 4 * ROWS, PAIR = ROWS / 2 };
// Bytes that a band of lines may copy or read, where the weight lies in the second cache, and where
// it has to come from farther away for each band.
enum { BAND = 250 << 10, LONG_BAND = 1200 << 10, NEAR = 1 << 20 };
enum { LINE_LANES = 16, AHEAD = 1024, MOST_LINES = 512, MOST_TAPS = 1024 };
typedef void (*Epilogue)(void**, i64, i64, i64, i64);
#if defined(__AVX__)
enum { STREAMS = 1 };
#else
enum { STREAMS = 0 };
#endif

// CLAMP: sum = min(max(sum, low), high), where NaN stays NaN.
#if defined(__AVX512F__)
#define CLAMP(sum, low, high) \
  asm("vmaxps %0, %1, %0\n\tvminps %0, %2, %0" : "+v"(sum) : "v"(low), "v"(high))
#elif defined(__AVX__)
#define CLAMP(sum, low, high) \
  asm("vmaxps %0, %1, %0\n\tvminps %0, %2, %0" : "+x"(sum) : "x"(low), "x"(high))
#else
#define CLAMP(sum, low, high) \
  (sum = (low) > (sum) ? (low) : (sum), sum = (high) < (sum) ? (high) : (sum))
#endif

// What a tile reads: for each tap `length` numbers of each pixel, `step` bytes apart. streams: the
// pixels behind these have not been read yet. bounds: the least and the largest result, or 0.
struct Walk {
  i64 taps, length, step;
  const i64* offsets;
  bool streams;
  const f32* bounds;
};

// `count` numbers of each of the R * G pixels (R from each of G places) times COLUMNS of b each.
template <int R, int G, int V, int U>
static inline __attribute__((always_inline)) const f32* walk(
    Vector (&sum)[R * G][V], const char* const* from, i64 s, i64 begin, i64 end, const f32* b,
    bool streams) {
  constexpr int HELD = (R + 2) / 3;
  const char* at[G][HELD];
#pragma GCC unroll 2
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
    for (int h = 0; h < HELD; ++h) at[g][h] = from[g] + 3 * h * s + begin * 4;
  for (i64 p = begin; p + U <= end; p += U) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      // What is next of the weight, before the processor itself asks for it.
#pragma GCC unroll 2
      for (int v = 0; v < V; v += LINE_LANES / LANES)
        __builtin_prefetch(b + (u * V + v) * LANES + AHEAD, 0, 3);
      Vector right[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        right[v] = *(const Vector*)(b + (u * V + v) * LANES);
        HOLD(right[v]);
      }
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 14
        for (int r = 0; r < R; ++r) {
          Vector left = *(const f32*)(at[g][r / 3] + r % 3 * s + 4 * u) - Vector{};
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) {
            ADD_GEMM(sum[g * R + r][v], left, right[v]);
          }
        }
    }
    // The first pixels of the next tile: the processor does not see so many short rows coming.
    if (U > 1 && G == 1 && streams && p % LINE_LANES == 0)
#pragma GCC unroll 14
      for (int r = 0; r < R; ++r) __builtin_prefetch(at[0][r / 3] + (R + r % 3) * s, 0, 3);
    b += U * V * LANES;
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int h = 0; h < HELD; ++h) at[g][h] += 4 * U;
  }
  return b;
}

// apart: from the first result to that of the first pixel of the other place.
template <int R, int G, int V>
static void tile(const Walk& w, const char* a, const char* other, const f32* b, const f32* bias,
                 f32* c, i64 ldc, i64 apart) {
  Vector sum[R * G][V];
  for (int g = 0; g < G; ++g)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) __builtin_prefetch(c + g * apart + r * ldc + v * LANES, 1);
#pragma GCC unroll 14
  for (int r = 0; r < R * G; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v)
      sum[r][v] = bias ? (Vector) * (const Loose*)(bias + v * LANES) : Vector{};
  i64 s = w.step, whole = w.length / 4 * 4;
  for (i64 t = 0; t < w.taps; ++t) {
    const char* from[2] = {a + w.offsets[t], other + w.offsets[t]};
    b = walk<R, G, V, 4>(sum, from, s, 0, whole, b, w.streams);
    if (whole < w.length) b = walk<R, G, V, 1>(sum, from, s, whole, w.length, b, false);
  }
  if (w.bounds) {
    Vector low = w.bounds[0] - Vector{}, high = w.bounds[1] - Vector{};
#pragma GCC unroll 14
    for (int r = 0; r < R * G; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) CLAMP(sum[r][v], low, high);
  }
#pragma GCC unroll 2
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v)
        *(Loose*)(c + g * apart + r * ldc + v * LANES) = (Loose)sum[g * R + r][v];
}

typedef void Tile(const Walk&, const char*, const char*, const f32*, const f32*, f32*, i64, i64);
struct Tiles {
  Tile *single[ROWS + 1], *pairs[PAIR + 1];
};

template <int V, int R>
static void fill(Tiles& tiles) {
  tiles.single[R] = tile<R, 1, V>;
  if constexpr (R <= PAIR) tiles.pairs[R] = tile<R, 2, V>;
  if constexpr (R > 1) fill<V, R - 1>(tiles);
}

template <int V>
static Tiles all_tiles() {
  Tiles tiles = {};
  fill<V, ROWS>(tiles);
  return tiles;
}
extern const Tiles NARROW, WIDE;

static i64 up(i64 a, i64 b) { return (a + b - 1) / b; }
static i64 least(i64 a, i64 b) { return a < b ? a : b; }

// Memory of this thread for copies, kept between calls: of the size of a part of the cache.
f32* scratch_of(i64 bytes);
#define EXPORT extern "C" __attribute__((visibility("default")))
"""

_MAIN = CHAIN_PARTS + r"""
const Tiles WIDE = all_tiles<2>();

struct Convolution {
  i64 images, height, width, channels, out_height, out_width, out_channels;
  i64 tall, wide, step_y, step_x, pad_y, pad_x, apart_y, apart_x, groups;
  const f32 *x, *weight, *bias;
  f32* out;
  Epilogue epilogue;
  void** data;
  // Derived. depth: channels that an element of the result sums up. The pixels [origin, pixels) are
  // computed, where windows are of one element.
  bool linear, copies;
  i64 origin, pitch, lines, pixels, band_width, depth;
  Walk walk;
  i64 offsets[MOST_TAPS];

  bool prepare() {
    pixels = images * out_height * out_width;
    i64 taps = tall * wide;
    depth = channels / groups;
    linear = taps == 1 && !pad_y && !pad_x;
    copies = !linear || step_y != 1 || step_x != 1 || channels % 1024 == 0;
    pitch = copies && channels % 128 == 0 ? channels + 16 : channels;
    lines = linear ? up(pixels, LINE) : images * out_height;
    origin = 0;
    band_width = (out_width - 1) * step_x + (wide - 1) * apart_x + 1;
    walk.offsets = offsets;
    walk.step = (linear ? 1 : step_x) * pitch * 4;
    bool joined = !linear && pitch == depth && apart_x == 1;
    walk.taps = joined ? tall : taps;
    walk.length = joined ? wide * depth : depth;
    if (walk.taps > MOST_TAPS) return false;
    for (i64 t = 0; t < walk.taps; ++t) {
      i64 y = joined ? t : t / wide, c = joined ? 0 : t % wide;
      offsets[t] = ((y * apart_y) * band_width + c * apart_x) * pitch * 4;
    }
    return true;
  }

  // Rows that `count` lines read.
  i64 rows_for(i64 count) const { return (count - 1) * step_y + (tall - 1) * apart_y + 1; }

  // Of the copy for these lines.
  i64 bytes_of(i64 begin, i64 end) const {
    if (linear) return (end - begin) * LINE * pitch * 4;
    i64 total = 0;
    while (begin < end) {
      i64 n = least(end - begin, out_height - begin % out_height);
      total += rows_for(n);
      begin += n;
    }
    return total * band_width * pitch * 4;
  }

  // The lines that a band from `begin` on may have.
  i64 band_end(i64 begin, i64 end) const {
    i64 last = begin + 1, taps = tall * wide;
    i64 most = out_channels * depth * taps * 4 > NEAR ? LONG_BAND : BAND;
    while (last < end && last - begin < MOST_LINES && bytes_of(begin, last + 1) <= most) ++last;
    return last;
  }

  void copy_pixel(const f32* from, f32* to) const {
    for (i64 c = 0; c < channels; ++c) to[c] = from[c];
  }

  void copy_row(i64 image, i64 y, f32* to) const {
    if (y < 0 || y >= height) {
      memset(to, 0, band_width * pitch * 4);
      return;
    }
    const f32* row = x + (image * height + y) * width * channels;
    i64 left = least(pad_x, band_width), right = least(width + pad_x, band_width);
    memset(to, 0, left * pitch * 4);
    if (pitch == channels) {
      memcpy(to + left * pitch, row, (right - left) * pitch * 4);
    } else {
      for (i64 c = left; c < right; ++c)
        copy_pixel(row + (c - pad_x) * channels, to + c * pitch);
    }
    memset(to + right * pitch, 0, (band_width - right) * pitch * 4);
  }

  // Where the pixels of each line begin.
  void place(i64 begin, i64 end, f32* scratch, const char** at) const {
    if (linear && !copies) {
      for (i64 l = begin; l < end; ++l)
        at[l - begin] = (const char*)(x + (origin + l * LINE) * channels);
    } else if (linear) {
      i64 last = least(origin + end * LINE, pixels);
      for (i64 l = begin; l < end; ++l)
        at[l - begin] = (const char*)(scratch + (l - begin) * LINE * pitch);
      for (i64 p = origin + begin * LINE; p < last; ++p, scratch += pitch) {
        i64 line = p / out_width, image = line / out_height;
        i64 y = line % out_height * step_y, c = p % out_width * step_x;
        copy_pixel(x + ((image * height + y) * width + c) * channels, scratch);
      }
    } else {
      i64 row = band_width * pitch;
      for (i64 l = begin; l < end;) {
        i64 first = l % out_height, n = least(end - l, out_height - first), rows = rows_for(n);
        for (i64 i = 0; i < n; ++i)
          at[l - begin + i] = (const char*)(scratch + i * step_y * row);
        for (i64 y = 0; y < rows; ++y, scratch += row)
          copy_row(l / out_height, first * step_y - pad_y + y, scratch);
        l += n;
      }
    }
  }

  // The rows of the window that lie in the image for a line: others would add zeros.
  void rows_inside(i64 line, i64& first, i64& last) const {
    first = 0, last = tall;
    if (linear) return;
    i64 top = line % out_height * step_y - pad_y;
    while (first < tall && top + first * apart_y < 0) ++first;
    while (last > first && top + (last - 1) * apart_y >= height) --last;
  }

  // A panel belongs to one group.
  i64 group_of(i64 column) const { return groups == 1 ? 0 : column / (out_channels / groups); }

  // `rows` pixels from `pixel` on, and as many `apart` pixels behind where there is another place.
  void run_tile(int rows, const char* a, const char* other, i64 apart, i64 pixel, i64 panel,
                i64 first, i64 last) const {
    i64 column = panel * COLUMNS, left = out_channels - column, count = walk.taps / tall;
    i64 row = left > LANES ? COLUMNS : LANES;
    const Tiles& tiles = left > LANES ? WIDE : NARROW;
    Tile* run = other ? tiles.pairs[rows] : tiles.single[rows];
    const f32* b = weight + (column * tall + row * first) * wide * depth;
    i64 skipped = group_of(column) * depth * 4;
    a += skipped;
    if (other) other += skipped;
    f32* c = out + pixel * out_channels + column;
    Walk inside = {(last - first) * count, walk.length, walk.step, offsets + first * count,
                   STREAMS && linear && !copies, walk.bounds};
    if (left >= COLUMNS || left == LANES) {
      run(inside, a, other, b, bias ? bias + column : 0, c, out_channels, apart * out_channels);
      return;
    }
    f32 edge[ROWS * COLUMNS], start[COLUMNS] = {};
    for (int j = 0; bias && j < left; ++j) start[j] = bias[column + j];
    run(inside, a, other, b, start, edge, COLUMNS, rows * COLUMNS);
    for (int r = 0; r < (other ? 2 * rows : rows); ++r) {
      f32* to = c + (r < rows ? r : r - rows + apart) * out_channels;
      for (int j = 0; j < left; ++j) to[j] = edge[r * COLUMNS + j];
    }
  }

  // Lines for which there is no memory, one sum after the other.
  void bare(i64 begin, i64 end, i64 first, i64 last) const {
    i64 size = linear ? LINE : out_width, start = first * COLUMNS;
    i64 stop = least(last * COLUMNS, out_channels), taps = tall * wide;
    i64 stop_at = least(origin + end * size, pixels);
    for (i64 pixel = origin + begin * size; pixel < stop_at; ++pixel) {
      i64 line = pixel / out_width, image = line / out_height;
      i64 top = line % out_height * step_y - pad_y, edge = pixel % out_width * step_x - pad_x;
      for (i64 j = start; j < stop; ++j) {
        i64 panel = j / COLUMNS * COLUMNS, row = out_channels - panel > LANES ? COLUMNS : LANES;
        const f32* b = weight + panel * taps * depth + j - panel;
        f32 sum = bias ? bias[j] : 0;
        for (i64 t = 0; t < taps; ++t, b += depth * row) {
          i64 y = top + t / wide * apart_y, at = edge + t % wide * apart_x;
          if (y < 0 || y >= height || at < 0 || at >= width) continue;
          const f32* from = x + ((image * height + y) * width + at) * channels;
          from += group_of(panel) * depth;
          for (i64 c = 0; c < depth; ++c) sum += from[c] * b[c * row];
        }
        if (walk.bounds) {
          sum = walk.bounds[0] > sum ? walk.bounds[0] : sum;
          sum = walk.bounds[1] < sum ? walk.bounds[1] : sum;
        }
        out[pixel * out_channels + j] = sum;
      }
      if (epilogue) epilogue(data, pixel, pixel + 1, start, stop);
    }
  }

  // Each tile at once: pixels far apart in memory may all fall into the same sets of the cache.
  void follow(i64 pixel, i64 end, i64 panel) const {
    i64 column = panel * COLUMNS;
    if (epilogue) epilogue(data, pixel, end, column, least(column + COLUMNS, out_channels));
  }

  // Parts of one line.
  void whole_line(i64 l, const char* a, i64 pixel, i64 count, i64 panel) const {
    i64 parts = up(count, ROWS), done = 0, first, last;
    rows_inside(l, first, last);
    for (i64 part = 0; part < parts; ++part) {
      i64 next = count * (part + 1) / parts;
      run_tile(next - done, a + done * walk.step, 0, 0, pixel + done, panel, first, last);
      follow(pixel + done, pixel + next, panel);
      done = next;
    }
  }

  // Two lines that fit one tile: where images follow each other, the same one of two of them, as
  // both then leave out the same rows of the window.
  i64 partner(i64 l, i64 begin, i64 end) const {
    i64 image = l / out_height - begin / out_height;
    if (image % 2 && l - out_height >= begin) return l - out_height;
    if (image % 2 == 0 && l + out_height < end) return l + out_height;
    return -1;
  }

  void band(i64 begin, i64 end, i64 first, i64 last, f32* scratch) const {
    const char* at[MOST_LINES];
    place(begin, end, scratch, at);
    i64 size = linear ? LINE : out_width;
    bool pairs = !linear && out_width <= PAIR && out_width > 1;
    for (i64 panel = first; panel < last; ++panel) {
      for (i64 l = begin; l < end; ++l) {
        i64 pixel = origin + l * size, count = least(size, pixels - pixel);
        i64 other = pairs ? partner(l, begin, end) : -1;
        if (other >= 0 && other < l) continue;
        if (pairs && other < 0 && l + 1 < end && partner(l + 1, begin, end) < 0) other = l + 1;
        if (other < 0) {
          whole_line(l, at[l - begin], pixel, count, panel);
        } else {
          i64 r0, r1, s0, s1;
          rows_inside(l, r0, r1);
          rows_inside(other, s0, s1);
          run_tile(count, at[l - begin], at[other - begin], (other - l) * size, pixel, panel,
                   least(r0, s0), r1 > s1 ? r1 : s1);
        }
        if (other < 0) continue;
        follow(pixel, pixel + count, panel);
        follow(other * size, other * size + count, panel);
        if (other == l + 1) ++l;
      }
    }
  }

  // fits: there may be copies.
  void some_lines(i64 l, i64 end, i64 first, i64 last, bool fits) const {
    while (l < end) {
      i64 stop = band_end(l, end);
      f32* to = fits && copies ? scratch_of(bytes_of(l, stop)) : 0;
      if (!fits || copies && !to)
        bare(l, stop, first, last);
      else
        band(l, stop, first, last, to);
      l = stop;
    }
  }
};

static __thread f32* scratch;
static __thread i64 scratch_bytes;

f32* scratch_of(i64 bytes) {
  if (bytes > scratch_bytes) {
    free(scratch);
    scratch_bytes = up(bytes, 4096) * 4096;
    scratch = (f32*)aligned_alloc(64, scratch_bytes);
    if (!scratch) scratch_bytes = 0;
  }
  return scratch;
}

EXPORT i64 CONVOLUTION_COLUMNS() { return COLUMNS; }
EXPORT i64 CONVOLUTION_LANES() { return LANES; }

// x [images, height, width, channels], out [images, out_height, out_width, out_channels].
// bounds: of what is stored, or 0. threads: 0 for one that takes no memory.
EXPORT void CONVOLUTION(const i64* numbers, const f32* x, const f32* weight, const f32* bias,
                        f32* out, const f32* bounds, Epilogue epilogue, void** data,
                        i64 threads) {
  Convolution c = {};
  memcpy(&c, numbers, 16 * sizeof(i64));
  c.x = x, c.weight = weight, c.bias = bias, c.out = out, c.epilogue = epilogue, c.data = data;
  c.walk.bounds = bounds;
  bool fits = c.prepare() && threads > 0;
  if (!threads) threads = 1;
  // Threads side by side and below one another: the least work for each, then the least memory.
  i64 panels = up(c.out_channels, COLUMNS), down = 1, best = -1, least_read = 0;
  i64 size = c.linear ? LINE : c.out_width;
  for (i64 t = 1; t <= threads; ++t) {
    if (threads % t) continue;
    i64 work = least(up(c.lines, t) * size, c.pixels) * up(panels, threads / t);
    i64 read = up(c.lines, t) * (c.pixels / c.lines) * c.channels +
               up(panels, threads / t) * COLUMNS * c.tall * c.wide * c.depth;
    if (best < 0 || work < best || work == best && read < least_read)
      best = work, least_read = read, down = t;
  }
  i64 across = threads / down;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    i64 count = omp_get_num_threads();
    for (i64 job = omp_get_thread_num(); job < down * across; job += count) {
      i64 jr = job % down, jc = job / down;
      i64 first = panels * jc / across, last = panels * (jc + 1) / across;
      c.some_lines(c.lines * jr / down, c.lines * (jr + 1) / down, first, last, fits);
    }
  }
}

// By this thread, the lines [begin, end) of all images' lines of the result.
void lines_of_convolution(const i64* numbers, const f32* x, const f32* weight, const f32* bias,
                          f32* out, const f32* bounds, Epilogue epilogue, void** data, i64 begin,
                          i64 end) {
  Convolution c = {};
  memcpy(&c, numbers, 16 * sizeof(i64));
  c.x = x, c.weight = weight, c.bias = bias, c.out = out, c.epilogue = epilogue, c.data = data;
  c.walk.bounds = bounds;
  bool fits = c.prepare();
  if (c.linear) {
    c.origin = begin * c.out_width, c.pixels = end * c.out_width;
    begin = 0, end = c.lines = up(c.pixels - c.origin, LINE);
  }
  c.some_lines(begin, end, 0, up(c.out_channels, COLUMNS), fits);
}
"""

_NARROW = "const Tiles NARROW = all_tiles<1>();\n"

CONVOLUTION_TEXT = _TILES + _MAIN + WINOGRAD + DEPTHWISE + CHAIN
CONVOLUTION_NAME = f"convolution_{hashlib.sha256(CONVOLUTION_TEXT.encode()).hexdigest()[:16]}"
WINOGRAD_NAME = f"{CONVOLUTION_NAME}_winograd"
DEPTHWISE_NAME = f"{CONVOLUTION_NAME}_depthwise"
CHAIN_NAME = f"{CONVOLUTION_NAME}_chain"
_NAMES = "\n".join(
    [
        f"#define CONVOLUTION {CONVOLUTION_NAME}",
        f"#define CONVOLUTION_WINOGRAD {WINOGRAD_NAME}",
        f"#define CONVOLUTION_DEPTHWISE {DEPTHWISE_NAME}",
        f"#define CONVOLUTION_CHAIN {CHAIN_NAME}",
        f"#define lines_of_convolution {CONVOLUTION_NAME}_lines",
        f"#define lines_by_channels {DEPTHWISE_NAME}_lines",
        f"#define CONVOLUTION_COLUMNS {CONVOLUTION_NAME}_columns",
        f"#define CONVOLUTION_LANES {CONVOLUTION_NAME}_lanes",
    ]
)
CONVOLUTION_UNITS = (
    "\n".join([_NAMES, _TILES, _MAIN]), "\n".join([_NAMES, _TILES, _NARROW, WINOGRAD]),
    "\n".join([_NAMES, _TILES, DEPTHWISE]), "\n".join([_NAMES, CHAIN]),
)
"""The first two are of about the same size; they are compiled side by side."""
CONVOLUTION_DECLARATIONS = {
    name: f'extern "C" void {name}(const i64*, const f32*, const f32*, const f32*, f32*, '
    f"{bounds}void (*)(void**, i64, i64, i64, i64), void**, i64);"
    for name, bounds in (
        (CONVOLUTION_NAME, "const f32*, "), (DEPTHWISE_NAME, "const f32*, "), (WINOGRAD_NAME, ""),
    )
}
CONVOLUTION_DECLARATIONS[CHAIN_NAME] = (
    f'{CHAIN_STRUCT}extern "C" void {CHAIN_NAME}(const ConvolutionStage*, i64, i64);'
)
