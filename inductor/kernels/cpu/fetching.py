"""What our GEMM reads later, fetched while it computes: C++ text for `gemm.py`.

Operands mostly lie in memory, or in the third cache. Both sides are fetched into the second one, a
few lines at a time.
"""

from __future__ import annotations

FETCHING_TEXT = r"""
// What is read next: `runs` pieces of `lines` lines of a cache, `stride` bytes apart.
struct Next {
  const char* from;
  i64 runs, lines, stride;
};

// It is fetched into the second cache line by line, `rate` lines for every BURST steps of a tile.
// Without, weights come from memory at the moment when they are needed.
struct Ahead {
  const char* next;
  i64 count, left, lines, skip;  // all lines; those of this run, of a whole one; from run to run
  int rate;
};

static Ahead ahead(const Next& next, i64 part, i64 parts, i64 steps) {
  i64 whole = next.runs * next.lines, first = whole * part / parts;
  i64 count = whole * (part + 1) / parts - first;
  if (!count) return {0, 0, 0, 0, 0, 0};
  i64 run = first / next.lines, at = first % next.lines;
  return {next.from + run * next.stride + at * LINE, count, next.lines - at, next.lines,
          next.stride - next.lines * LINE, int(count * BURST / steps + 1)};
}

static inline __attribute__((always_inline)) void fetch(Ahead& more) {
  for (int i = 0; i < more.rate && more.count > 0; ++i) {
    __builtin_prefetch(more.next, 0, 2);
    more.next += LINE;
    --more.count;
    if (--more.left == 0) more.next += more.skip, more.left = more.lines;
  }
}

// What is read after a panel: panels of the right side, and part `part` of `parts` of a left side.
struct Later {
  Next right, left;
  i64 part, parts;
};

// What tile i of `count` fetches of it: the last half of them the left side, where there are both.
static Ahead of_tile(const Later& later, i64 i, i64 count, i64 steps) {
  const i64 lefts = !later.left.runs ? 0 : later.right.runs ? count / 2 : count;
  const i64 rights = count - lefts;
  if (i < rights) return ahead(later.right, i, rights, steps);
  return ahead(later.left, later.part * lefts + i - rights, later.parts * lefts, steps);
}

"""
