"""Winograd's convolution F(2x2, 3x3), as C++: windows of 3x3 that move by one pixel.

What is here: the text of a function of the library of convolutions (`convolution.py`). 2x2 pixels
of the result come of 4x4 pixels of the image with 16 products in place of 36 for each pair of
channels: both sides are transformed (sums of pixels, of elements of a window), multiplied as 16
matrices by the tiles of the convolution, and transformed back. A block of 2x2 pixels is taken
through all three steps before the next one, so that what lies between them stays in the second
cache. The weight is transformed at each call: kept so, it would take 16/9 of its memory, and be
read from there. What a thread needs of a small one is transformed once; of a large one, panel by
panel for each block.

The sums have errors of about the size of those of a usual convolution. What is not finite spreads
in them: such pixels are recomputed one sum after the other, from the weight as it was. So NaN
and infinities are where they are in any convolution.
"""

from __future__ import annotations

WINOGRAD = r"""
// Bytes of a block's pixels and of its products that stay near; 2x2 pixels of a block at least.
enum { WINOGRAD_PIXELS = 256 << 10, WINOGRAD_PRODUCTS = 256 << 10, LEAST_CELLS = 8 * ROWS };
// Bytes of a transformed weight that a thread keeps for all its blocks; of larger ones, a block has
// more pixels, so that what it transforms is used longer.
enum { WINOGRAD_WEIGHT = 3 << 20, MORE_CELLS = 16 * ROWS };
// To transform a panel of the weight takes as long as to multiply it by so many cells; to multiply
// a cell by a panel, so many times as long as to transform its pixels.
enum { TURNED_WEIGHT = 6, TURNED_PIXELS = 6 };
enum { POINTS = 16, TAPS = 9, STEPS_FOLLOWED = 4 };
// Terms of a sum that are added one after the other; rounding grows with their number.
enum { TERMS = 128 };
static const i64 NO_OFFSET[1] = {0};

// The pixels of an image are `cells` of 2x2, side by side and below one another.
struct Winograd {
  i64 images, height, width, channels, out_height, out_width, out_channels, pad_y, pad_x;
  const f32 *x, *weight, *bias;
  f32* out;
  Epilogue epilogue;
  void** data;
  // Derived. plane, room, slice: from a number of a point to that of the next point, of pixels,
  // products and a panel of the weight. kept: what a thread needs of the weight is transformed
  // once; held: so many panels at a time.
  i64 down, across, cells, panels, pitch, block, plane, group, room, slice, held;
  bool kept;

  void prepare() {
    down = up(out_height, 2), across = up(out_width, 2), cells = images * down * across;
    panels = up(out_channels, COLUMNS), pitch = channels % 128 ? channels : channels + LINE_LANES;
    slice = channels * COLUMNS + LINE_LANES;
  }

  // Each thread computes up to so many cells and panels.
  void share(i64 most_cells, i64 most_panels) {
    kept = most_panels * POINTS * slice * 4 <= WINOGRAD_WEIGHT && most_cells > MORE_CELLS;
    i64 fewest = kept ? LEAST_CELLS : MORE_CELLS;
    block = WINOGRAD_PIXELS / (POINTS * 4 * pitch);
    if (block < fewest) block = fewest;
    block = up(up(most_cells, up(most_cells, block)), ROWS) * ROWS;
    plane = block * pitch + LINE_LANES;
    room = block * COLUMNS + LINE_LANES;
    group = kept ? least(most_panels, WINOGRAD_PRODUCTS / (POINTS * 4 * room)) : 1;
    if (group < 1) group = 1;
    held = kept ? most_panels : 1;
  }

  i64 scratch_bytes_wanted() const {
    return (POINTS * (plane + group * room + held * slice) + pitch) * 4;
  }

  // A panel of the weight: the sums for each point of the windows [channel][tap][columns].
  void turn_weight(i64 panel, f32* to) const {
    i64 columns = columns_of(panel);
    const f32* from = weight + panel * COLUMNS * TAPS * channels;
    for (i64 c = 0; c < channels; ++c)
      for (i64 v = 0; v < columns; v += LANES) {
        const f32* window = from + c * TAPS * columns + v;
        f32* place = to + c * columns + v;
        Vector rows[4][3];
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j) {
          auto get = [&](int i) { return *(const Vector*)(window + (3 * i + j) * columns); };
          Vector ends = (get(0) + get(2)) * 0.5f, middle = get(1) * 0.5f;
          rows[0][j] = get(0), rows[1][j] = ends + middle;
          rows[2][j] = ends - middle, rows[3][j] = get(2);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i, place += 4 * slice) {
          Vector ends = (rows[i][0] + rows[i][2]) * 0.5f, middle = rows[i][1] * 0.5f;
          *(Vector*)place = rows[i][0];
          *(Vector*)(place + slice) = ends + middle;
          *(Vector*)(place + 2 * slice) = ends - middle;
          *(Vector*)(place + 3 * slice) = rows[i][2];
        }
      }
  }

  // Four rows of sums of the pixels of a cell: at(y, x) is where the pixel's channels are.
  template <typename At>
  void turn_in(const At& at, f32* to) const {
    for (i64 c = 0; c < channels; c += LANES) {
      auto get = [&](int y, int x) { return (Vector) * (const Loose*)(at(y, x) + c); };
      auto row = [&](int number, Vector a, Vector b, Vector d, Vector e) {
        f32* place = to + number * 4 * plane + c;
        *(Vector*)place = a - d;
        *(Vector*)(place + plane) = b + d;
        *(Vector*)(place + 2 * plane) = d - b;
        *(Vector*)(place + 3 * plane) = b - e;
      };
      row(0, get(0, 0) - get(2, 0), get(0, 1) - get(2, 1), get(0, 2) - get(2, 2),
          get(0, 3) - get(2, 3));
      row(1, get(1, 0) + get(2, 0), get(1, 1) + get(2, 1), get(1, 2) + get(2, 2),
          get(1, 3) + get(2, 3));
      row(2, get(2, 0) - get(1, 0), get(2, 1) - get(1, 1), get(2, 2) - get(1, 2),
          get(2, 3) - get(1, 3));
      row(3, get(1, 0) - get(3, 0), get(1, 1) - get(3, 1), get(1, 2) - get(3, 2),
          get(1, 3) - get(3, 3));
    }
  }

  void transform(i64 begin, i64 end, f32* to, f32* zeros) const {
    memset(zeros, 0, pitch * 4);
    for (i64 cell = begin; cell < end; ++cell, to += pitch) {
      i64 line = cell / across, image = line / down;
      i64 top = line % down * 2 - pad_y, left = cell % across * 2 - pad_x;
      const f32* corner = x + ((image * height + top) * width + left) * channels;
      if (top >= 0 && left >= 0 && top + 4 <= height && left + 4 <= width) {
        turn_in([&](int i, int j) { return corner + (i * width + j) * channels; }, to);
        continue;
      }
      const f32* places[4][4];
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
          bool inside = top + i >= 0 && top + i < height && left + j >= 0 && left + j < width;
          places[i][j] = inside ? corner + (i * width + j) * channels : zeros;
        }
      turn_in([&](int i, int j) { return places[i][j]; }, to);
    }
  }

  i64 columns_of(i64 panel) const {
    return out_channels - panel * COLUMNS > LANES ? COLUMNS : LANES;
  }

  // The products of `count` cells, for one point and panel, of which `turned` has the sums.
  void multiply(i64 point, i64 panel, i64 count, const f32* from, const f32* turned,
                f32* to) const {
    i64 parts = up(count, ROWS), done = 0;
    const Tiles& tiles = columns_of(panel) == COLUMNS ? WIDE : NARROW;
    const f32* b = turned + point * slice;
    i64 columns = columns_of(panel), pieces = channels > TERMS * 3 / 2 ? up(channels, TERMS) : 1;
    for (i64 part = 0; part < parts; ++part) {
      i64 next = count * (part + 1) / parts, rows = next - done;
      const f32* a = from + point * plane + done * pitch;
      f32* result = to + point * room + done * COLUMNS;
      for (i64 piece = 0, begin = 0; piece < pieces; ++piece) {
        i64 end = channels * (piece + 1) / pieces;
        Walk walk = {1, end - begin, pitch * 4, NO_OFFSET, false};
        Vector sums[ROWS * COLUMNS / LANES];
        tiles.single[rows](walk, (const char*)(a + begin), 0, b + begin * columns, 0,
                           piece ? (f32*)sums : result, COLUMNS, 0);
        for (i64 row = 0; piece && row < rows; ++row)
          for (i64 v = 0; v < columns / LANES; ++v)
            *(Vector*)(result + row * COLUMNS + v * LANES) += sums[row * COLUMNS / LANES + v];
        begin = end;
      }
      done = next;
    }
  }

  // Where cells of one line are: their pixels `column` and behind it in two rows of the result.
  struct Place {
    i64 line, row, column;
    f32* rows[2];
  };

  Place place_of(i64 cell) const {
    i64 line = cell / across, row = line % down * 2, column = cell % across * 2;
    f32* first = out + ((line / down * out_height + row) * out_width + column) * out_channels;
    bool last = row + 1 == out_height;
    return {line, row, column, {first, last ? 0 : first + out_width * out_channels}};
  }

  // Of a cell, `number` behind the place: products [point][COLUMNS], `room` apart. Something is
  // added to `spoilt` that is zero if all of it is finite.
  void turn_out(const Place& at, i64 number, i64 panel, const f32* from, Vector& spoilt) const {
    i64 first = panel * COLUMNS, left = least(out_channels - first, COLUMNS);
    bool both = at.column + 2 * number + 1 < out_width;
    for (i64 v = 0; v < left; v += LANES) {
      i64 count = least(left - v, LANES);
      f32 edge[LANES] = {};
      for (i64 k = 0; bias && count < LANES && k < count; ++k) edge[k] = bias[first + v + k];
      Vector start = *(const Loose*)(bias && count == LANES ? bias + first + v : edge);
      Vector sums[2][4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        auto get = [&](int i) { return *(const Vector*)(from + (i * 4 + j) * room + v); };
        Vector one = get(1), two = get(2);
        sums[0][j] = get(0) + one + two;
        sums[1][j] = one - two - get(3);
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        if (!at.rows[i]) continue;
        f32* to = at.rows[i] + 2 * number * out_channels + first + v;
        Vector pixel = sums[i][0] + sums[i][1] + sums[i][2] + start;
        spoilt += pixel - pixel;
        store(pixel, to, count);
        if (!both) continue;
        pixel = sums[i][1] - sums[i][2] - sums[i][3] + start;
        spoilt += pixel - pixel;
        store(pixel, to + out_channels, count);
      }
    }
  }

  static void store(const Vector& pixel, f32* to, i64 count) {
    if (count == LANES)
      *(Loose*)to = (Loose)pixel;
    else
      for (i64 k = 0; k < count; ++k) to[k] = pixel[k];
  }

  // The pixels of one cell, one product after the other.
  void bare(const Place& at, i64 number, i64 panel) const {
    i64 first = panel * COLUMNS, left = least(out_channels - first, COLUMNS);
    i64 columns = columns_of(panel), image = at.line / down;
    for (int i = 0; i < 4; ++i) {
      i64 y = i / 2, edge = at.column + 2 * number + i % 2;
      if (!at.rows[y] || edge >= out_width) continue;
      f32 sum[COLUMNS] = {};
      for (i64 k = 0; bias && k < left; ++k) sum[k] = bias[first + k];
      const f32* b = weight + first * TAPS * channels;
      for (i64 t = 0; t < TAPS; ++t, b += columns) {
        i64 row = at.row + y - pad_y + t / 3, column = edge - pad_x + t % 3;
        if (row < 0 || row >= height || column < 0 || column >= width) continue;
        const f32* from = x + ((image * height + row) * width + column) * channels;
        for (i64 c = 0; c < channels; ++c)
          for (i64 k = 0; k < left; ++k) sum[k] += from[c] * b[c * TAPS * columns + k];
      }
      f32* to = at.rows[y] + (edge - at.column) * out_channels + first;
      for (i64 k = 0; k < left; ++k) to[k] = sum[k];
    }
  }

  static bool any(const Vector& spoilt) {
    for (int i = 0; i < LANES; ++i)
      if (spoilt[i] != 0) return true;
    return false;
  }

  // `count` cells of one line.
  void finish(const Place& at, i64 count, i64 panel, const f32* from) const {
    for (int y = 0; y < 2; ++y)  // the next ones
      for (i64 i = 2 * count; at.rows[y] && i < 4 * count; ++i)
        __builtin_prefetch(at.rows[y] + i * out_channels + panel * COLUMNS, 1);
    Vector spoilt = {};
    for (i64 i = 0; i < count; ++i) turn_out(at, i, panel, from + i * COLUMNS, spoilt);
    for (i64 i = 0; i < count && any(spoilt); ++i) {
      Vector here = {};
      turn_out(at, i, panel, from + i * COLUMNS, here);
      if (any(here)) bare(at, i, panel);
    }
    follow(at, count, panel);
  }

  void follow(const Place& at, i64 count, i64 panel) const {
    if (!epilogue) return;
    i64 first = panel * COLUMNS, stop = least(first + COLUMNS, out_channels);
    for (int y = 0; y < 2; ++y) {
      if (!at.rows[y]) continue;
      i64 pixel = (at.rows[y] - out) / out_channels;
      epilogue(data, pixel, pixel + least(2 * count, out_width - at.column), first, stop);
    }
  }

  void run(i64 begin, i64 end, i64 first, i64 last, f32* scratch) const {
    f32 *products = scratch + POINTS * plane, *turned = products + group * POINTS * room;
    f32* zeros = turned + held * POINTS * slice;
    auto turn = [&](i64 from, i64 to) {
      for (i64 panel = from; panel < to; ++panel)
        turn_weight(panel, turned + (panel - from) * POINTS * slice);
    };
    if (kept) turn(first, last);
    for (i64 start = begin; start < end; start += block) {
      i64 stop = least(start + block, end);
      transform(start, stop, scratch, zeros);
      for (i64 from = first; from < last; from += group) {
        i64 to = least(from + group, last);
        if (!kept) turn(from, to);
        for (i64 point = 0; point < POINTS; ++point)
          for (i64 panel = from; panel < to; ++panel)
            multiply(point, panel, stop - start, scratch,
                     turned + (panel - (kept ? first : from)) * POINTS * slice,
                     products + (panel - from) * POINTS * room);
        for (i64 cell = start; cell < stop;) {
          Place at = place_of(cell);
          i64 count = least(least(STEPS_FOLLOWED, stop - cell), across - at.column / 2);
          for (i64 panel = from; panel < to; ++panel)
            finish(at, count, panel,
                   products + (panel - from) * POINTS * room + (cell - start) * COLUMNS);
          cell += count;
        }
      }
    }
  }
};

// As CONVOLUTION, for a window of 3x3 that moves by one pixel, and channels that fill vectors of
// any size. weight: panels of COLUMNS output channels (the last one maybe LANES), side by side for
// each tap of each input channel.
EXPORT void CONVOLUTION_WINOGRAD(const i64* numbers, const f32* x, const f32* weight,
                                 const f32* bias, f32* out, Epilogue epilogue, void** data,
                                 i64 threads) {
  Winograd w = {};
  memcpy(&w, numbers, 7 * sizeof(i64));
  w.pad_y = numbers[11], w.pad_x = numbers[12];
  w.x = x, w.weight = weight, w.bias = bias, w.out = out, w.epilogue = epilogue, w.data = data;
  w.prepare();
  bool fits = threads > 0;
  if (!threads) threads = 1;
  i64 down = 1, best = -1, least_read = 0;
  for (i64 t = 1; t <= threads; ++t) {
    if (threads % t) continue;
    i64 parts = up(up(w.cells, ROWS), t), share = up(w.panels, threads / t);
    i64 cells = parts * ROWS, read = cells + share * COLUMNS;
    i64 work = (cells + TURNED_WEIGHT) * share * TURNED_PIXELS + cells;
    if (best < 0 || work < best || work == best && read < least_read)
      best = work, least_read = read, down = t;
  }
  i64 across = threads / down, units = up(w.cells, ROWS);
  w.share(up(units, down) * ROWS, up(w.panels, across));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    i64 count = omp_get_num_threads();
    f32* scratch = fits ? scratch_of(w.scratch_bytes_wanted()) : 0;
    for (i64 job = omp_get_thread_num(); job < down * across; job += count) {
      i64 jr = job % down, jc = job / down;
      i64 first = w.panels * jc / across, last = w.panels * (jc + 1) / across;
      i64 begin = units * jr / down * ROWS, end = least(units * (jr + 1) / down * ROWS, w.cells);
      if (scratch) {
        w.run(begin, end, first, last, scratch);
        continue;
      }
      for (i64 cell = begin; cell < end; ++cell)
        for (i64 panel = first; panel < last; ++panel) {
          Winograd::Place at = w.place_of(cell);
          w.bare(at, 0, panel);
          w.follow(at, 1, panel);
        }
    }
  }
}
"""
