"""What clang's OpenMP calls, on top of GCC's runtime, which is torch's: a translation unit of C++.

clang makes calls of LLVM's runtime. Beside torch's that would be a second pool of threads in the
process, and `omp_get_thread_num` would be asked of the wrong one. So each library that clang builds
gets this unit instead (`runtime/build.py`). A region that runs on one thread because of its `if` is
a team of its own, which GCC's runtime does not hear of: `alone` counts those.
"""

from __future__ import annotations

OPENMP_UNIT = r"""
typedef int i32;
typedef long i64;
extern "C" {
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
void GOMP_barrier();
void GOMP_critical_start();
void GOMP_critical_end();
int omp_get_level();
int omp_get_ancestor_thread_num(int);
int omp_get_team_size(int);
void abort();
}
#define LIBRARY extern "C" __attribute__((visibility("hidden")))
static thread_local int wanted = 0, alone = 0;

LIBRARY int omp_get_thread_num() {
  return alone ? 0 : omp_get_ancestor_thread_num(omp_get_level());
}
LIBRARY int omp_get_num_threads() { return alone ? 1 : omp_get_team_size(omp_get_level()); }

enum { FEW = 16, MANY = 64, MOST = 256 };
typedef void Function(i32*, i32*, ...);
struct Region {
  Function* function;
  int count;
  void* arguments[MOST];
};

template <int... I>
struct Places {};
template <int N, int... I>
struct UpTo : UpTo<N - 1, N - 1, I...> {};
template <int... I>
struct UpTo<0, I...> {
  typedef Places<I...> Type;
};

template <int I>
struct Pointer {
  typedef void* Type;
};

// Those beyond the ones that it has a function does not read.
template <int... I>
static void call(Region& r, Places<I...>) {
  i32 number = omp_get_thread_num(), zero = 0;
  typedef void Fixed(i32*, i32*, typename Pointer<I>::Type...);
  ((Fixed*)r.function)(&number, &zero, r.arguments[I]...);
}

static void run(void* data) {
  Region& r = *(Region*)data;
  const int before = alone;
  alone = 0;
  if (r.count <= FEW) call(r, UpTo<FEW>::Type());
  else if (r.count <= MANY) call(r, UpTo<MANY>::Type());
  else call(r, UpTo<MOST>::Type());
  alone = before;
}

LIBRARY void __kmpc_fork_call(void*, i32 count, Function* function, ...) {
  if (count > MOST) abort();
  Region r;
  r.function = function, r.count = count;
  __builtin_va_list list;
  __builtin_va_start(list, function);
  for (int i = 0; i < count; ++i) r.arguments[i] = __builtin_va_arg(list, void*);
  __builtin_va_end(list);
  const int threads = wanted;
  wanted = 0;
  GOMP_parallel(run, &r, threads, 0);
}
LIBRARY i32 __kmpc_global_thread_num(void*) { return 0; }
LIBRARY void __kmpc_push_num_threads(void*, i32, i32 threads) { wanted = threads; }
LIBRARY void __kmpc_serialized_parallel(void*, i32) { ++alone, wanted = 0; }
LIBRARY void __kmpc_end_serialized_parallel(void*, i32) { --alone; }
LIBRARY void __kmpc_barrier(void*, i32) {
  if (!alone) GOMP_barrier();
}

// The part of this thread of lower..upper, both in it: one run of neighbours.
template <class T>
static void share(i32* last, T* lower, T* upper, T step) {
  const i64 count = *upper < *lower ? 0 : (i64)((*upper - *lower) / step + 1);
  const i64 threads = omp_get_num_threads(), number = omp_get_thread_num();
  const i64 first = count * number / threads, end = count * (number + 1) / threads;
  if (last) *last = end == count && end > first;
  const T begin = *lower;
  *lower = begin + (T)first * step;
  *upper = begin + (T)end * step - step;
  if (end == first) *lower = 1, *upper = 0;
}

// Whatever the schedule: chunks are no part of what a program means, and `stride` is then not used.
#define STATIC(NAME, T, S)                                                                \
  LIBRARY void __kmpc_for_static_init_##NAME(                                             \
      void*, i32, i32, i32* last, T* lower, T* upper, S* stride, S step, S) {             \
    *stride = (S)(*upper - *lower) + step;                                                \
    share<T>(last, lower, upper, (T)step);                                                \
  }
STATIC(4, i32, i32)
STATIC(4u, unsigned, i32)
STATIC(8, i64, i64)
STATIC(8u, unsigned long, i64)
LIBRARY void __kmpc_for_static_fini(void*, i32) {}

// A dynamic schedule is one share for each thread, too.
static thread_local i64 dispatched[3];
static thread_local bool is_left;
LIBRARY void __kmpc_dispatch_init_8(void*, i32, i32, i64 lower, i64 upper, i64 step, i64) {
  share<i64>(0, &lower, &upper, step);
  dispatched[0] = lower, dispatched[1] = upper, dispatched[2] = step;
  is_left = lower <= upper;
}
LIBRARY i32 __kmpc_dispatch_next_8(void*, i32, i32* last, i64* lower, i64* upper, i64* step) {
  const bool found = is_left;
  is_left = false;
  *last = 0, *lower = dispatched[0], *upper = dispatched[1], *step = dispatched[2];
  return found;
}

// One thread at a time adds what it has to the result.
typedef void Join(void*, void*);
LIBRARY i32 __kmpc_reduce_nowait(void*, i32, i32, unsigned long, void*, Join*, void*) {
  GOMP_critical_start();
  return 1;
}
LIBRARY void __kmpc_end_reduce_nowait(void*, i32, void*) { GOMP_critical_end(); }
LIBRARY i32 __kmpc_reduce(void* at, i32 id, i32 n, unsigned long size, void* data, Join* join,
                          void* lock) {
  return __kmpc_reduce_nowait(at, id, n, size, data, join, lock);
}
LIBRARY void __kmpc_end_reduce(void* at, i32 id, void* lock) {
  GOMP_critical_end();
  __kmpc_barrier(at, id);
}
"""
