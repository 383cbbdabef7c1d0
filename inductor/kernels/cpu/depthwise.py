"""Convolutions of our own in which each channel is convolved with a window of its own, as C++.

What is here: the text of a function of the library of convolutions (`convolution.py`). Up to eight
pixels of a line times a vector of channels stay in registers while all taps of the window are added
up; each column of the image that they read is loaded once for a row of the window (windows of
another width than three and five, or with holes: for each tap). A band of lines that fits the
second cache is read in order; then it is taken through for as many channels at a time as the first
cache holds of the lines that one line reads. Nothing is copied: at the borders only the taps inside
of the image are added up.

The weight comes as blocks of LANES channels, all taps of each; the last block ends with the last
channel, and may hold channels of the one before, too.
"""

from __future__ import annotations

from inductor.kernels.cpu.convolution_chain import CHAIN_PARTS

DEPTHWISE = CHAIN_PARTS + r"""
enum { NEAR_LINES = 24 << 10, NEAR_BAND = 200 << 10, WIDTH = 4, LINE_BYTES = 64 };
#define OPAQUE(pointer) asm("" : "+r"(pointer))

struct Depthwise {
  i64 images, height, width, channels, out_height, out_width, out_channels;
  i64 tall, wide, step_y, step_x, pad_y, pad_x, apart_y, apart_x;
  const f32 *x, *weight, *bias, *bounds;
  f32* out;
  Epilogue epilogue;
  void** data;
  // Pixels of a line for which the whole width of the window is inside: [inside, outside).
  i64 inside, outside;

  void prepare() {
    i64 room = width - 1 - (wide - 1) * apart_x + pad_x;
    inside = least(up(pad_x, step_x), out_width);
    outside = room < 0 ? inside : least(room / step_x + 1, out_width);
    if (outside < inside) outside = inside;
  }

  // The columns [left, right) and rows [top, bottom) of the window that lie in the image.
  struct Taps {
    i64 top, bottom, left, right;
  };

  // V blocks of R pixels of a line, U sums of each.
  template <int R, int V, int U>
  inline __attribute__((always_inline)) void sum_up(const f32* from, i64 block, const Taps& t,
                                                    f32* to) const {
    Vector sum[U][R][V];
    i64 c = least(block * LANES, channels - LANES), size = tall * wide * LANES;
    i64 s = step_x * channels, next = apart_x * channels, row = apart_y * width * channels;
    const f32* w = weight + block * size + (t.top * wide + t.left) * LANES;
    from += c + t.top * row + t.left * next;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sum[0][r][v] = bias ? (Vector) * (const Loose*)(bias + c + v * LANES) : Vector{};
        if (U > 1) sum[U - 1][r][v] = Vector{};
      }
    Vector low = {}, high = {};
    if (bounds) low += bounds[0], high += bounds[1];
    i64 right = t.right - t.left;
    for (i64 y = t.top; y < t.bottom; ++y, from += row, w += wide * LANES) {
      const f32 *p = from, *q = from + 3 * s, *b = w;
      auto add = [&](int u) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          Vector tap = *(const Loose*)(b + v * size);
          HOLD(tap);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const Vector x = *(const Loose*)((r < 3 ? p + r * s : q) + v * LANES);
            ADD_GEMM(sum[u][r][v], x, tap);
          }
        }
        p += next, q += next, b += LANES;
        OPAQUE(p);
        OPAQUE(q);
      };
      i64 k = 0;
      for (; k + U <= right; k += U)
#pragma GCC unroll 2
        for (int u = 0; u < U; ++u) add(u);
      for (; k < right; ++k) add(0);
    }
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        if (U > 1) sum[0][r][v] += sum[U - 1][r][v];
        if (bounds) CLAMP(sum[0][r][v], low, high);
        *(Loose*)(to + c + r * channels + v * LANES) = (Loose)sum[0][r][v];
      }
  }

  // The blocks [block, end) of R pixels.
  template <int R, int U>
  void tile(const f32* from, i64 block, i64 end, const Taps& t, f32* to) const {
    i64 whole = least(end, channels / LANES);
    for (; block + 2 <= whole; block += 2) sum_up<R, 2, U>(from, block, t, to);
    for (; block < end; ++block) sum_up<R, 1, U>(from, block, t, to);
  }

  // P pixels of a line, S pixels of the image apart, of one block; the window is K wide. Each
  // column of what they read is loaded once. [left, right): those that lie in the image, if some
  // do not.
  template <int K, int S, int P, bool EDGE>
  void by_columns(const f32* from, const f32* w, const Taps& t, i64 left, i64 right,
                  const f32* start, f32* to) const {
    constexpr int N = (P - 1) * S + K;
    Vector sum[P];
#pragma GCC unroll 8
    for (int r = 0; r < P; ++r) sum[r] = start ? (Vector) * (const Loose*)start : Vector{};
    i64 row = apart_y * width * channels;
    for (i64 y = t.top; y < t.bottom; ++y, from += row, w += K * LANES) {
      Vector taps[K];
#pragma GCC unroll 5
      for (int k = 0; k < K; ++k) {
        taps[k] = *(const Loose*)(w + k * LANES);
        HOLD(taps[k]);
      }
      const f32* p = from;
#pragma GCC unroll 20
      for (int n = 0; n < N; ++n, p += channels) {
        OPAQUE(p);
        if (EDGE && (n < left || n >= right)) continue;
        const Vector x = *(const Loose*)p;
#pragma GCC unroll 8
        for (int r = 0; r < P; ++r)
          if (n >= r * S && n < r * S + K) ADD_GEMM(sum[r], x, taps[n - r * S]);
      }
    }
    Vector low = {}, high = {};
    if (bounds) {
      low += bounds[0], high += bounds[1];
#pragma GCC unroll 8
      for (int r = 0; r < P; ++r) CLAMP(sum[r], low, high);
    }
#pragma GCC unroll 8
    for (int r = 0; r < P; ++r) *(Loose*)(to + r * channels) = (Loose)sum[r];
  }

  // The blocks [block, end) of P pixels from `pixel` on.
  template <int K, int S, int P>
  i64 pixels_of(const f32* from, i64 pixel, i64 block, i64 end, const Taps& t, f32* to) const {
    i64 first = pixel * S - pad_x, columns = (P - 1) * S + K;
    i64 left = first < 0 ? -first : 0, right = least(width - first, columns);
    from += t.top * apart_y * width * channels + pixel * S * channels, to += pixel * channels;
    for (; block < end; ++block) {
      i64 c = least(block * LANES, channels - LANES);
      const f32 *w = weight + (block * tall + t.top) * K * LANES, *start = bias ? bias + c : 0;
      if (left || right < columns)
        by_columns<K, S, P, true>(from + c, w, t, left, right, start, to + c);
      else
        by_columns<K, S, P, false>(from + c, w, t, left, right, start, to + c);
    }
    return P;
  }

  // Some pixels from `pixel` on: how many.
  template <int K, int S>
  i64 some_pixels(const f32* from, i64 pixel, i64 block, i64 end, const Taps& t, f32* to) const {
    i64 left = out_width - pixel;
    if (left == 7 || left == 14) return pixels_of<K, S, 7>(from, pixel, block, end, t, to);
    if (left >= 8) return pixels_of<K, S, 8>(from, pixel, block, end, t, to);
    if (left >= 4) return pixels_of<K, S, 4>(from, pixel, block, end, t, to);
    if (left >= 2) return pixels_of<K, S, 2>(from, pixel, block, end, t, to);
    return pixels_of<K, S, 1>(from, pixel, block, end, t, to);
  }

  bool is_usual() const {
    return apart_x == 1 && (wide == 3 || wide == 5) && (step_x == 1 || step_x == 2);
  }

  i64 usual_pixels(const f32* from, i64 pixel, i64 block, i64 end, const Taps& t, f32* to) const {
    if (wide == 3 && step_x == 1) return some_pixels<3, 1>(from, pixel, block, end, t, to);
    if (wide == 3) return some_pixels<3, 2>(from, pixel, block, end, t, to);
    if (step_x == 1) return some_pixels<5, 1>(from, pixel, block, end, t, to);
    return some_pixels<5, 2>(from, pixel, block, end, t, to);
  }

  // The blocks [block, end) of one line.
  void line(i64 line, i64 block, i64 end) const {
    i64 image = line / out_height, y = line % out_height, row = y * step_y - pad_y;
    i64 c = least(block * LANES, channels - LANES), last = least(end * LANES, channels);
    Taps t = {0, tall, 0, wide};
    while (t.top < tall && row + t.top * apart_y < 0) ++t.top;
    while (t.bottom > t.top && row + (t.bottom - 1) * apart_y >= height) --t.bottom;
    const f32* from = x + ((image * height + row) * width - pad_x) * channels;
    f32* to = out + line * out_width * channels;
    for (i64 pixel = 0, count; pixel < out_width; pixel += count) {
      const f32* at = from + pixel * step_x * channels;
      f32* into = to + pixel * channels;
      count = 1;
      if (is_usual()) {
        count = usual_pixels(from, pixel, block, end, t, to);
      } else if (pixel < inside || pixel >= outside) {
        i64 place = pixel * step_x - pad_x;
        t.left = 0, t.right = wide;
        while (t.left < wide && place + t.left * apart_x < 0) ++t.left;
        while (t.right > t.left && place + (t.right - 1) * apart_x >= width) --t.right;
        tile<1, 2>(at, block, end, t, into);
      } else {
        t.left = 0, t.right = wide;
        count = least(outside - pixel, WIDTH);
        if (count == 4) tile<4, 1>(at, block, end, t, into);
        else if (count == 3) tile<3, 1>(at, block, end, t, into);
        else if (count == 2) tile<2, 2>(at, block, end, t, into);
        else tile<1, 2>(at, block, end, t, into);
      }
    }
    if (epilogue) epilogue(data, line * out_width, (line + 1) * out_width, c, last);
  }

  i64 rows_for(i64 count) const { return (count - 1) * step_y + (tall - 1) * apart_y + 1; }

  // The lines of one image, up to `end`, that a band from `begin` on has.
  i64 band_end(i64 begin, i64 end) const {
    i64 last = begin + 1, row = width * channels * 4;
    end = least(end, (begin / out_height + 1) * out_height);
    while (last < end && rows_for(last + 1 - begin) * row <= NEAR_BAND) ++last;
    return last;
  }

  // Asks for what a band reads, in order.
  void fetch(i64 begin, i64 end) const {
    i64 image = begin / out_height, row = begin % out_height * step_y - pad_y;
    i64 first = row < 0 ? 0 : row, last = least(row + rows_for(end - begin), height);
    const char* base = (const char*)(x + image * height * width * channels);
    i64 line_bytes = width * channels * 4;
    for (i64 at = first * line_bytes; at < last * line_bytes; at += LINE_BYTES)
      __builtin_prefetch(base + at, 0, 2);
  }

  // As many channels at a time as the first cache holds of the lines that one of the result reads.
  void by_blocks(i64 begin, i64 end) const {
    i64 blocks = up(channels, LANES), most = NEAR_LINES / (tall * width * LANES * 4);
    if (most < 1) most = 1;
    for (i64 block = 0; block < blocks; block += most)
      for (i64 l = begin; l < end; ++l) line(l, block, least(block + most, blocks));
  }
};

// By this thread, the lines [begin, end) of all images' lines of the result. x: it is in a cache.
void lines_by_channels(const i64* numbers, const f32* x, const f32* weight, const f32* bias,
                       f32* out, const f32* bounds, Epilogue epilogue, void** data, i64 begin,
                       i64 end) {
  Depthwise c = {};
  memcpy(&c, numbers, 15 * sizeof(i64));
  c.x = x, c.weight = weight, c.bias = bias, c.out = out, c.epilogue = epilogue, c.data = data;
  c.bounds = bounds;
  c.prepare();
  c.by_blocks(begin, end);
}

// As the other convolutions; at least LANES channels, as many as channels of the result.
EXPORT void CONVOLUTION_DEPTHWISE(const i64* numbers, const f32* x, const f32* weight,
                                  const f32* bias, f32* out, const f32* bounds,
                                  Epilogue epilogue, void** data, i64 threads) {
  Depthwise c = {};
  memcpy(&c, numbers, 15 * sizeof(i64));
  c.x = x, c.weight = weight, c.bias = bias, c.out = out, c.epilogue = epilogue, c.data = data;
  c.bounds = bounds;
  c.prepare();
  if (!threads) threads = 1;
  i64 lines = c.images * c.out_height;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    i64 count = omp_get_num_threads(), me = omp_get_thread_num();
    i64 end = lines * (me + 1) / count;
    for (i64 l = lines * me / count; l < end;) {
      i64 stop = c.band_end(l, end);
      c.fetch(l, stop);
      c.by_blocks(l, stop);
      l = stop;
    }
  }
}
"""
