"""Attention on a CPU, as C++: softmax(cap(q k^T * scale) + bias, masked) v without storing scores.

What is here: the texts of two translation units, for float32 and for bfloat16, and the names of
their functions, which every graph may call. A thread takes blocks of ROWS queries of some heads;
keys and values come in chunks, copied once for each head where they fit (keys turned, so that
vectors run over keys). Scores of a block and a chunk stay in the second cache; the maximum of a row
and the sum of its exponentials are carried from chunk to chunk. All arithmetic is float32, whatever
the tensors hold.

Few queries (decoding) do not repay the copies: then keys and values are read where they lie, and
where there are fewer heads than threads, keys are shared out and the parts put together.
"""

from __future__ import annotations

import hashlib

from inductor.kernels.cpu.registers import REGISTERS
from inductor.kernels.cpu.turns import TURN_TEXT
from inductor.kernels.cpu.types import TYPES_TEXT, VECTORS_TEXT

_HEAD = REGISTERS + TYPES_TEXT + VECTORS_TEXT + TURN_TEXT + r"""
extern "C" float logf(float);
// Rows of scores are LINE apart, so that they do not all fall into the same sets of a cache.
enum { VECTORS = 2, PANEL = LANES * VECTORS, CHUNK = 512, LINE = CHUNK + LANES };
enum { TALL = ROWS * 4, FEW = 4, MOST_COPIED = 1 << 20 };
#define INLINE static inline __attribute__((always_inline))

enum class bf16 : u16 {};
INLINE f32 wide(f32 x) { return x; }
INLINE f32 wide(bf16 x) { return __builtin_bit_cast(f32, (u32)(u16)x << 16); }
INLINE void narrow(f32 x, f32& to) { to = x; }
INLINE void narrow(f32 x, bf16& to) {
  u32 bits = __builtin_bit_cast(u32, x);
  u16 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to = (bf16)(x != x ? (u16)0x7fc0 : rounded);
}
INLINE f32 lowest() { return -__builtin_inff(); }
INLINE i64 up(i64 a, i64 b) { return (a + b - 1) / b; }
INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }
INLINE Vector all(f32 x) { return x - Vector{}; }

struct Facts {
  i64 batch, heads, kv_heads, queries, keys, head, value_head;
  i64 q[3], k[3], v[3], out[3];  // strides of batch, head, length; those of the last axis are 1
  i64 bias[4], mask[4];
  i64 causal, window, nan_rows, fills;
};

// exp of what is not positive; nothing below the normal range
INLINE Vector exp_of(Vector x) {
  Vector t = x * 0x1.715476p0f + 12583039.0f, n = t - 12583039.0f;
  Vector r = x - n * 0x1.62e4p-1f;
  r = r - n * 0x1.7f7d1cp-20f;
  Vector p = all(0.0013814635f);
  p = p * r + 0.00836871f;
  p = p * r + 0.041668385f;
  p = p * r + 0.16666521f;
  p = p * r + 0.49999994f;
  p = (r * r) * p + r + 1.0f;
  Lanes bits = (Lanes)t << 23;
  p = p * (Vector)bits;
  return x < -87.0f ? Vector{} : p;
}
static f32 exp_of(f32 x) { return exp_of(all(x))[0]; }

INLINE Vector tanh_of(Vector x) {
  Vector a = x < 0.0f ? -x : x, s = x * x;
  Vector e = exp_of(-2.0f * a);
  Vector p = all(-0.0059058513f);
  p = p * s + 0.020805372f;
  p = p * s - 0.05378668f;
  p = p * s + 0.13331959f;
  p = p * s - 0.33333299f;
  Vector near_ = a * s * p + a, far = (1.0f - e) / (1.0f + e);
  Vector y = a < 0.6f ? near_ : far;
  return x < 0.0f ? -y : y;
}
"""

_TILES = r"""
// c [R, V vectors] = a [R, depth] b [depth, V vectors], added to what is there
template <int R, int V>
static void tile(i64 depth, const f32* a, i64 lda, const f32* b, i64 ldb, f32* c, i64 ldc,
                 bool add) {
  Vector sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sum[r][v] = add ? (Vector) * (const Loose*)(c + r * ldc + v * LANES) : Vector{};
#pragma GCC unroll 2
  for (i64 p = 0; p < depth; ++p) {
    Vector right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      right[v] = (Vector) * (const Loose*)(b + p * ldb + v * LANES);
      HOLD(right[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      Vector left = all(a[r * lda + p]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        ADD_GEMM(sum[r][v], left, right[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) *(Loose*)(c + r * ldc + v * LANES) = (Loose)sum[r][v];
}

template <int V>
static void tiles(i64 rows, i64 depth, const f32* a, i64 lda, const f32* b, i64 ldb, f32* c,
                  i64 ldc, bool add) {
  auto part = [&](auto* run, int count) {
    for (; rows >= count; rows -= count) {
      run(depth, a, lda, b, ldb, c, ldc, add);
      a += count * lda, c += count * ldc;
    }
  };
  part(tile<ROWS, V>, ROWS);
#if defined(__AVX512F__)
  part(tile<8, V>, 8);
#endif
  part(tile<4, V>, 4);
  part(tile<2, V>, 2);
  part(tile<1, V>, 1);
}

// Rows of a tensor as float32, zeros behind their ends.
template <class T>
INLINE void copy_rows(const T* from, i64 step, i64 rows, i64 width, f32* to, i64 line) {
  for (i64 i = 0; i < rows; ++i) {
    for (i64 j = 0; j < width; ++j) to[i * line + j] = wide(from[i * step + j]);
    for (i64 j = width; j < line; ++j) to[i * line + j] = 0;
  }
}

// Keys as panels [head, PANEL], `head` rounded up to LANES.
template <class T>
static void copy_keys(const T* from, i64 step, i64 keys, i64 head, f32* to, f32* rows) {
  i64 line = up(head, LANES) * LANES;
  for (i64 j = 0; j < keys; j += PANEL, to += line * PANEL) {
    i64 count = least(PANEL, keys - j);
    copy_rows(from + j * step, step, count, head, rows, line);
    for (i64 n = count * line; n < PANEL * line; ++n) rows[n] = 0;
    for (int v = 0; v < VECTORS; ++v)
      for (i64 d = 0; d < line; d += LANES) {
        Vector x[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) x[i] = *(const Vector*)(rows + (v * LANES + i) * line + d);
        turn(x);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) *(Vector*)(to + (d + i) * PANEL + v * LANES) = x[i];
      }
  }
}

// Scores of one query with keys that are read where they lie.
static void dots(const f32* q, const f32* k, i64 step, i64 keys, i64 head, f32* to) {
  for (i64 j = 0; j < keys; j += LANES) {
    Vector x[LANES] = {};
    if (keys - j >= LANES) {
      for (i64 d = 0; d < head; d += LANES) {
        Vector left = *(const Vector*)(q + d);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
          x[i] += left * (Vector) * (const Loose*)(k + (j + i) * step + d);
      }
    } else {
      for (i64 d = 0; d < head; d += LANES)
        for (int i = 0; i < keys - j; ++i)
          x[i] += *(const Vector*)(q + d) * (Vector) * (const Loose*)(k + (j + i) * step + d);
    }
    turn(x);
#pragma GCC unroll 16
    for (int i = 1; i < LANES; ++i) x[0] += x[i];
    *(Vector*)(to + j) = x[0];
  }
}
"""

_SOFTMAX = r"""
// What a row knows of the chunks so far: its largest score, and the sum of exponentials.
struct Row {
  f32 top, sum;
};

// The row's scores become exponentials; gives what the former sums are to be multiplied with.
// first, last: the keys of the chunk that the row sees; extra: what is added, tail: its last LANES;
// fills: a number that large and negative replaces the score.
template <bool CAPPED, bool ADDED>
static f32 weigh(f32* s, i64 keys, i64 first, i64 last, const f32* extra, const f32* tail,
                 bool fills, f32 cap, Row& row) {
  i64 whole = up(keys, LANES) * LANES;
  Vector top = all(lowest());
  if (CAPPED || ADDED)
    for (i64 j = 0; j < whole; j += LANES) {
      Vector x = *(Vector*)(s + j);
      if (CAPPED) x = tanh_of(x / cap) * cap;
      if (ADDED) {
        Vector e = (Vector) * (const Loose*)(j + LANES <= keys ? extra + j : tail);
        x = fills ? (e <= -1e30f ? e : x + e) : x + e;
      }
      *(Vector*)(s + j) = x;
    }
  for (i64 j = 0; j < first; ++j) s[j] = lowest();
  for (i64 j = last; j < whole; ++j) s[j] = lowest();
  for (i64 j = 0; j < whole; j += LANES) {
    Vector x = *(Vector*)(s + j);
    top = x > top ? x : top;
  }
  f32 best = top[0];
  for (int i = 1; i < LANES; ++i) best = top[i] > best ? top[i] : best;
  f32 former = row.top;
  if (best < former) best = former;
  f32 base = best == lowest() ? 0.0f : best;
  Vector sum = {};
  for (i64 j = 0; j < whole; j += LANES) {
    Vector x = *(Vector*)(s + j);
    x = exp_of(x - base);
    *(Vector*)(s + j) = x;
    sum += x;
  }
  f32 total = 0;
  for (int i = 0; i < LANES; ++i) total += sum[i];
  f32 factor = former == best ? 1.0f : former == lowest() ? 0.0f : exp_of(former - base);
  row.top = best;
  row.sum = row.sum * factor + total;
  return factor;
}
"""

_ATTENTION = r"""
template <class T, class B>
struct Attention {
  const Facts& f;
  const T *q, *k, *v;
  const B* bias;
  const u8* mask;
  T* out;
  f32* lse;
  f32 scale, cap;
  i64 line, width, group, rows, tall, blocks, parts;
  bool direct, kept;

  Attention(const Facts& facts, const T* q_, const T* k_, const T* v_, const B* bias_,
            const u8* mask_, T* out_, f32* lse_, f32 scale_, f32 cap_, i64 threads)
      : f(facts), q(q_), k(k_), v(v_), bias(bias_), mask(mask_), out(out_), lse(lse_),
        scale(scale_), cap(cap_) {
    line = up(f.head, LANES) * LANES, width = up(f.value_head, LANES) * LANES;
    group = f.heads / f.kv_heads, rows = group * f.queries;
    i64 pairs = f.batch * f.kv_heads;
    direct = rows <= FEW && sizeof(T) == 4 && line == f.head && width == f.value_head;
    tall = TALL;
    while (tall > ROWS && pairs * up(rows, tall) < 2 * threads) tall /= 2;
    tall = up(up(rows, up(rows, tall)), ROWS) * ROWS;
    blocks = up(rows, tall);
    i64 chunks = up(f.keys, CHUNK);
    kept = !direct && chunks * CHUNK * (line + width) <= MOST_COPIED;
    parts = direct ? least(chunks, up(threads, pairs)) : 1;
  }

  i64 jobs() const { return f.batch * f.kv_heads * blocks * parts; }
  i64 partial() const { return tall * (width + 2); }  // numbers that a part of a block leaves
  i64 scratch() const {
    i64 slots = direct ? 0 : kept ? up(f.keys, CHUNK) : 1;
    return tall * (line + LINE + width + 2) + LINE + PANEL * line + slots * CHUNK * (line + width);
  }

  // The keys from first to last that some query among those of a row block sees.
  void seen(i64 r0, i64 r1, i64& first, i64& last) const {
    first = 0, last = f.keys;
    if (r0 / f.queries != (r1 - 1) / f.queries) return;
    i64 q0 = r0 % f.queries, q1 = (r1 - 1) % f.queries;
    if (f.causal) last = least(last, q1 + 1);
    if (f.window) first = most(0, q0 - f.window + 1);
    if (first > last) first = last;
  }

  i64 cost(i64 block) const {
    i64 first, last;
    seen(block * tall, least(rows, (block + 1) * tall), first, last);
    return last - first + 16;
  }

  // What is added to the scores of a row: bias, and -inf where the mask is false.
  void extras(i64 b, i64 h, i64 m, i64 j0, i64 keys, f32* to) const {
    if (bias) {
      const B* from = bias + b * f.bias[0] + h * f.bias[1] + m * f.bias[2] + j0 * f.bias[3];
      if (f.bias[3] == 1)
        for (i64 j = 0; j < keys; ++j) to[j] = wide(from[j]);
      else
        for (i64 j = 0; j < keys; ++j) to[j] = wide(from[j * f.bias[3]]);
    } else {
      for (i64 j = 0; j < keys; ++j) to[j] = 0;
    }
    if (mask) {
      const u8* from = mask + b * f.mask[0] + h * f.mask[1] + m * f.mask[2] + j0 * f.mask[3];
      if (f.mask[3] == 1)
        for (i64 j = 0; j < keys; ++j) to[j] = from[j] ? to[j] : lowest();
      else
        for (i64 j = 0; j < keys; ++j) to[j] = from[j * f.mask[3]] ? to[j] : lowest();
    }
  }

  // Scores of a block and a chunk, turned into weights; sums so far are scaled.
  void softmax(i64 b, i64 hk, i64 r0, i64 r1, i64 j0, i64 keys, f32* s, f32* sums, Row* state,
               f32* extra) const {
    bool added = bias || mask, same = false;
    // A bias of float32 is read where it lies, without what would be behind its end.
    bool lies = bias && !mask && sizeof(B) == 4 && f.bias[3] == 1;
    i64 end = keys / LANES * LANES;
    f32 tail[LANES] = {};
    const f32* from = extra;
    for (i64 r = r0; r < r1; ++r, s += LINE, sums += width, ++state) {
      i64 h = hk * group + r / f.queries, m = r % f.queries, first = 0, last = keys;
      if (f.causal) last = most(0, least(last, m + 1 - j0));
      if (f.window) first = least(last, most(0, m - f.window + 1 - j0));
      if (lies) {
        from = (const f32*)bias + b * f.bias[0] + h * f.bias[1] + m * f.bias[2] + j0;
        for (i64 j = end; j < keys; ++j) tail[j - end] = from[j];
      } else if (added && !same) {
        extras(b, h, m, j0, keys, extra);
        for (i64 j = end; j < keys; ++j) tail[j - end] = extra[j];
      }
      same = (!bias || (f.bias[2] == 0 && (group == 1 || f.bias[1] == 0))) &&
             (!mask || (f.mask[2] == 0 && (group == 1 || f.mask[1] == 0)));
      auto* run = cap != 0 ? (added ? weigh<true, true> : weigh<true, false>)
                           : (added ? weigh<false, true> : weigh<false, false>);
      f32 factor = run(s, keys, first, last, from, tail, f.fills, cap, *state);
      if (factor != 1.0f)
        for (i64 d = 0; d < width; d += LANES) *(Vector*)(sums + d) *= factor;
    }
  }

  void products(i64 count, i64 keys, const f32* s, const f32* values, i64 step, f32* sums) const {
    i64 d = 0;
    for (; d + PANEL <= width; d += PANEL)
      tiles<VECTORS>(count, keys, s, LINE, values + d, step, sums + d, width, true);
    for (; d < width; d += LANES)
      tiles<1>(count, keys, s, LINE, values + d, step, sums + d, width, true);
  }

  void store(i64 b, i64 hk, i64 r0, i64 r1, const f32* sums, const Row* state) const {
    for (i64 r = r0; r < r1; ++r, sums += width, ++state) {
      i64 h = hk * group + r / f.queries, m = r % f.queries;
      f32 empty = f.nan_rows ? __builtin_nanf("") : 0.0f;
      f32 share = state->sum == 0 ? empty : 1.0f / state->sum;
      T* to = out + b * f.out[0] + h * f.out[1] + m * f.out[2];
      for (i64 d = 0; d < f.value_head; ++d) narrow(sums[d] * share, to[d]);
      if (lse) lse[(b * f.heads + h) * f.queries + m] = state->top + logf(state->sum);
    }
  }

  // Jobs of one thread. partials: where parts of blocks go, or null. kept_pair: whose keys and
  // values the copies hold.
  struct Thread {
    const Attention& a;
    f32* memory;
    f32* partials;
    i64 kept_pair = -1, kept_to = 0;

    void run(i64 job) {
      const Facts& f = a.f;
      i64 part = job % a.parts, block = job / a.parts % a.blocks, pair = job / a.parts / a.blocks;
      i64 b = pair / f.kv_heads, hk = pair % f.kv_heads;
      i64 r0 = block * a.tall, r1 = least(a.rows, r0 + a.tall), count = r1 - r0;
      f32 *left = memory, *s = left + a.tall * a.line, *sums = s + a.tall * LINE;
      f32* extra = sums + a.tall * a.width;
      f32 *turned = extra + LINE, *copies = turned + PANEL * a.line;
      i64 slots = a.direct ? 0 : a.kept ? up(f.keys, CHUNK) : 1;
      Row* state = (Row*)(copies + slots * CHUNK * (a.line + a.width));
      for (i64 r = r0; r < r1; ++r) {
        i64 h = hk * a.group + r / f.queries, m = r % f.queries;
        f32* row = left + (r - r0) * a.line;
        copy_rows(a.q + b * f.q[0] + h * f.q[1] + m * f.q[2], 0, 1, f.head, row, a.line);
        for (i64 d = 0; d < a.line; d += LANES) *(Vector*)(row + d) *= a.scale;
        state[r - r0] = {lowest(), 0};
      }
      for (i64 n = 0; n < count * a.width; ++n) sums[n] = 0;
      i64 first, last;
      a.seen(r0, r1, first, last);
      i64 chunks = up(last, CHUNK), begin = first / CHUNK;
      i64 c0 = begin + (chunks - begin) * part / a.parts;
      i64 c1 = begin + (chunks - begin) * (part + 1) / a.parts;
      const T *keys = a.k + b * f.k[0] + hk * f.k[1], *values = a.v + b * f.v[0] + hk * f.v[1];
      for (i64 c = c0; c < c1; ++c) {
        i64 j0 = c * CHUNK, n = least(CHUNK, f.keys - j0), seen = least(n, last - j0);
        const f32* right;
        i64 step;
        if (a.direct) {
          for (i64 r = 0; r < count; ++r)
            dots(left + r * a.line, (const f32*)(keys + j0 * f.k[2]), f.k[2], seen, a.line,
                 s + r * LINE);
          right = (const f32*)(values + j0 * f.v[2]), step = f.v[2];
        } else {
          f32* copy = copies + (a.kept ? c : 0) * CHUNK * (a.line + a.width);
          if (!a.kept || !has(pair, c)) {
            copy_keys(keys + j0 * f.k[2], f.k[2], n, f.head, copy, turned);
            copy_rows(values + j0 * f.v[2], f.v[2], n, f.value_head, copy + CHUNK * a.line,
                      a.width);
          }
          for (i64 j = 0; j < seen; j += PANEL)
            tiles<VECTORS>(count, a.line, left, a.line, copy + j * a.line, PANEL, s + j, LINE,
                           false);
          right = copy + CHUNK * a.line, step = a.width;
        }
        a.softmax(b, hk, r0, r1, j0, seen, s, sums, state, extra);
        a.products(count, seen, s, right, step, sums);
      }
      if (!partials) return a.store(b, hk, r0, r1, sums, state);
      f32* to = partials + job * a.partial();
      for (i64 n = 0; n < count * a.width; ++n) to[n] = sums[n];
      for (i64 r = 0; r < count; ++r) ((Row*)(to + a.tall * a.width))[r] = state[r];
    }

    // Whether the copy of a chunk is there; else it will be.
    bool has(i64 pair, i64 c) {
      if (kept_pair != pair) kept_pair = pair, kept_to = kept_from = c;
      if (c >= kept_from && c < kept_to) return true;
      if (c != kept_to) kept_to = kept_from = c;
      kept_to = c + 1;
      return false;
    }
    i64 kept_from = 0;
  };

  // Parts of a block together.
  void join(i64 block, f32* from) const {
    f32* to = from + block * parts * partial();
    Row* row = (Row*)(to + tall * width);
    i64 pair = block / blocks, r0 = block % blocks * tall, r1 = least(rows, r0 + tall);
    for (i64 part = 1; part < parts; ++part) {
      const f32* other = to + part * partial();
      const Row* its = (const Row*)(other + tall * width);
      for (i64 r = 0; r < r1 - r0; ++r) {
        f32 top = its[r].top > row[r].top ? its[r].top : row[r].top;
        f32 base = top == lowest() ? 0.0f : top;
        f32 mine = exp_of(row[r].top - base), theirs = exp_of(its[r].top - base);
        row[r] = {top, row[r].sum * mine + its[r].sum * theirs};
        for (i64 d = 0; d < width; ++d)
          to[r * width + d] = to[r * width + d] * mine + other[r * width + d] * theirs;
      }
    }
    store(pair / f.kv_heads, pair % f.kv_heads, r0, r1, to, row);
  }

  int run(i64 threads) const {
    i64 total = 0, count = jobs(), failed = 0;
    for (i64 block = 0; block < blocks; ++block) total += cost(block);
    total *= f.batch * f.kv_heads * parts;
    // A thread has at least some 2 million operations.
    threads = least(threads, most(1, total * tall / 1024 * (line + width) / 1024));
    f32* partials = 0;
    if (parts > 1 && !(partials = (f32*)aligned_alloc(64, up(count * partial(), 16) * 64)))
      return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      i64 size = up(scratch(), 16) * 64, n = omp_get_thread_num(), all_ = omp_get_num_threads();
      f32* memory = (f32*)aligned_alloc(64, size);
      if (!memory) {
        failed = 1;
      } else {
        Thread thread{*this, memory, partials};
        i64 before = 0;
        for (i64 job = 0; job < count; ++job) {
          i64 middle = before + cost(job / parts % blocks) / 2;
          before += cost(job / parts % blocks);
          if (middle * all_ / total == n) thread.run(job);
        }
        free(memory);
      }
    }
    if (partials && !failed)
      for (i64 block = 0; block < count / parts; ++block) join(block, partials);
    free(partials);
    return failed;
  }
};

template <class T, class B>
static int start(const Facts& f, const void* q, const void* k, const void* v, const void* bias,
                 const void* mask, void* out, f32* lse, double scale, double cap, i64 threads) {
  Attention<T, B> attention(f, (const T*)q, (const T*)k, (const T*)v, (const B*)bias,
                            (const u8*)mask, (T*)out, lse, (f32)scale, (f32)cap, threads);
  return attention.run(threads);
}

// half_bias: the bias is bfloat16, as are q, k, v and out of HALF. bias, mask, lse may be null.
// Returns 0, or 1 where there is no memory.
extern "C" __attribute__((visibility("default"))) int ATTENTION(
    const i64* facts, i64 half_bias, const void* q, const void* k, const void* v,
    const void* bias, const void* mask, const void* out, f32* lse, double scale,
    double cap, i64 threads) {
  const Facts& f = *(const Facts*)facts;
#ifdef HALF
  auto* run = half_bias ? start<bf16, bf16> : start<bf16, f32>;
#else
  auto* run = start<f32, f32>;
#endif
  return run(f, q, k, v, bias, mask, (void*)out, lse, scale, cap, threads);
}
"""

ATTENTION_TEXT = _HEAD + _TILES + _SOFTMAX + _ATTENTION
_DIGEST = hashlib.sha256(ATTENTION_TEXT.encode()).hexdigest()[:16]


def attention_name(half: bool) -> str:
    """The function for q, k and v of bfloat16, or of float32."""
    return f"attention_half_{_DIGEST}" if half else f"attention_{_DIGEST}"


def attention_unit(half: bool) -> str:
    """What it is built of: one kind alone takes half of the time."""
    kind = "#define HALF\n" if half else ""
    return f"#define ATTENTION {attention_name(half)}\n{kind}{ATTENTION_TEXT}"


def attention_declaration(half: bool) -> str:
    """For those who call it, where it is there."""
    return (
        f'extern "C" __attribute__((weak)) int {attention_name(half)}(const i64*, i64, '
        "const void*, const void*, const void*, const void*, const void*, const void*, f32*, "
        "double, double, i64);"
    )
