"""Convolutions of our own, one behind another, in strips of lines that stay in a cache: C++.

What is here: the text of a function of the library of convolutions (`convolution.py`). Each thread
computes some lines of the last result at a time, and before that, of each result that is read, the
lines which those need and which are not there from the strip before. The lines of a result that
only the next convolution reads stand one behind another in a window: a part of its memory for each
thread, used again for each strip. What follows a convolution is called as ever; pointers into such
a result are moved so that the place of a pixel is the one in the window.
"""

from __future__ import annotations

from inductor.ir.convolutions import MOST_LINKS, MOST_POINTERS
from inductor.kernels.cpu.types import TYPES_TEXT

CHAIN_STRUCT = """\
struct ConvolutionStage {
  const long* sizes;
  const float *x, *weight, *bias;
  float* out;
  const float* bounds;
  void (*epilogue)(void**, long, long, long, long);
  void** data;
  long count, inner;
  bool depthwise;
};
"""
"""A convolution of a chain. x counts for the first one only. bounds: of what is stored, or 0. data:
the `count` pointers (at most MOST_POINTERS) that the epilogue gets; inner: bit n for those into
`out`."""

# Functions of the other units: lines [begin, end) of all images' lines of the result.
CHAIN_PARTS = """
void lines_of_convolution(const long* numbers, const float* x, const float* weight,
                          const float* bias, float* out, const float* bounds,
                          void (*epilogue)(void**, long, long, long, long), void** data, long begin,
                          long end);
void lines_by_channels(const long* numbers, const float* x, const float* weight, const float* bias,
                       float* out, const float* bounds,
                       void (*epilogue)(void**, long, long, long, long), void** data, long begin,
                       long end);
"""

CHAIN = (
    TYPES_TEXT
    + 'extern "C" void* memmove(void*, const void*, unsigned long);\n'
    + CHAIN_PARTS
    + CHAIN_STRUCT
    + f"enum {{ MOST_LINKS = {MOST_LINKS}, MOST_POINTERS = {MOST_POINTERS} }};\n"
    + r"""
// Bytes of all windows of a thread.
enum { STRIP = 500 << 10 };
static i64 least(i64 a, i64 b) { return a < b ? a : b; }
static i64 most(i64 a, i64 b) { return a > b ? a : b; }

// A stage and what a thread has of its result: lines [first, last) of an image.
struct Part {
  ConvolutionStage stage;
  i64 height, out_height, tall, step, pad, apart, line, images;
  f32* window;  // 0 for the last result, which is stored whole
  i64 image, first, last;

  void prepare(const ConvolutionStage& from) {
    const i64* n = from.sizes;
    stage = from;
    images = n[0], height = n[1], out_height = n[4], line = n[5] * n[6], tall = n[7];
    step = n[9], pad = n[11], apart = n[13];
    window = 0, image = -1, first = last = 0;
  }

  // The lines [begin, end) that its lines [*begin, *end) read.
  void lines_read(i64& begin, i64& end) const {
    begin = most(begin * step - pad, 0);
    end = most(least((end - 1) * step - pad + (tall - 1) * apart + 1, height), begin);
    begin = least(begin, height);
    end = most(least(end, height), begin);
  }

  // How many lines at most are read for so many.
  i64 most_read(i64 count) const {
    return least((count - 1) * step + (tall - 1) * apart + 1, height);
  }

  // Where line 0 of image 0 would be.
  f32* base() const {
    return window ? window - (image * out_height + first) * line : stage.out;
  }
};

struct Chain {
  Part parts[MOST_LINKS];
  i64 count;

  // Bytes of the windows, and numbers of each, for strips of so many lines.
  i64 sizes_for(i64 lines, i64* elements) const {
    i64 bytes = 0;
    for (i64 n = count - 1; n > 0; --n) {
      lines = parts[n].most_read(lines);
      elements[n - 1] = lines * parts[n - 1].line;
      bytes += elements[n - 1] * 4;
    }
    return bytes;
  }

  void run(i64 number, const f32* x, i64 begin) {
    Part& part = parts[number];
    const ConvolutionStage& s = part.stage;
    f32* out = part.base();
    void* data[MOST_POINTERS];
    for (i64 n = 0; n < s.count; ++n)
      data[n] = s.inner >> n & 1 ? (void*)((f32*)s.data[n] + (out - s.out)) : s.data[n];
    i64 top = part.image * part.out_height, end = top + part.last;
    (s.depthwise ? lines_by_channels : lines_of_convolution)(
        s.sizes, x, s.weight, s.bias, out, s.bounds, s.epilogue, data, top + begin, end);
  }

  // The lines [begin, end) of an image of a result.
  void need(i64 number, i64 image, i64 begin, i64 end) {
    Part& part = parts[number];
    i64 start = begin;
    if (part.image == image && begin >= part.first && begin <= part.last) {
      if (part.window && begin > part.first)
        memmove(part.window, part.window + (begin - part.first) * part.line,
                (part.last - begin) * part.line * 4);
      start = part.last;
    }
    part.image = image, part.first = begin, part.last = most(start, end);
    if (start >= end) return;
    const f32* x = part.stage.x;
    if (number) {
      i64 top = start, bottom = end;
      part.lines_read(top, bottom);
      need(number - 1, image, top, bottom);
      x = parts[number - 1].base();
    }
    run(number, x, start);
  }
};

// The result of the last stage, from the x of the first one.
extern "C" __attribute__((visibility("default"))) void CONVOLUTION_CHAIN(
    const ConvolutionStage* stages, i64 count, i64 threads) {
  Chain whole = {};
  whole.count = count;
  for (i64 n = 0; n < count; ++n) whole.parts[n].prepare(stages[n]);
  const Part& last = whole.parts[count - 1];
  i64 strip = 1, elements[MOST_LINKS], total = last.images * last.out_height;
  if (threads < 1) threads = 1;
  while (strip < last.out_height && whole.sizes_for(strip + 1, elements) <= STRIP) ++strip;
  whole.sizes_for(strip, elements);
  for (i64 n = 0; n + 1 < count; ++n) {
    const Part& part = whole.parts[n];
    while (threads > 1 && part.images * part.out_height * part.line / threads < elements[n] + 16)
      --threads;
  }
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    i64 me = omp_get_thread_num(), all = omp_get_num_threads();
    Chain mine = whole;
    for (i64 n = 0; n + 1 < count; ++n) {
      Part& part = mine.parts[n];
      part.window = part.stage.out + part.images * part.out_height * part.line * me / all / 16 * 16;
    }
    i64 end = total * (me + 1) / all;
    for (i64 l = total * me / all; l < end;) {
      i64 image = l / last.out_height, from = l % last.out_height;
      i64 stop = least(least(from + strip, last.out_height), from + end - l);
      mine.need(count - 1, image, from, stop);
      l += stop - from;
    }
  }
}
"""
)