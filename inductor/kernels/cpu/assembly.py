"""The inner loop of our GEMM for AVX-512, as assembly: C++ text for `gemm.py`.

`sum_chain<R>` computes `to` [R, 32] = `from` [R, 32] + a [R, depth] b [depth, 32], for R from
LOWEST to 14. b is dense; rows of the others are so many bytes apart as the record `Chain` says;
`depth` is 16 * bursts + rest. Meanwhile it fetches what `more` says. `from` may be `to`.

A compiler keeps neither the 28 sums nor the addresses in the registers in which they begin, and
what it moves about at the ends of a chain of 192 terms takes as long as 10 of them.
"""

from __future__ import annotations

ASSEMBLY_TEXT = r"""
enum { LOWEST = 5 };
#if defined(__AVX512F__)
struct Chain {
  const f32* a;
  i64 lda;
  const f32* b;
  i64 bursts, rest;
  const f32* from;
  i64 from_apart;
  f32* to;
  i64 to_apart;
  Ahead* more;
};

// Rows of a: the first seven from rax on, the others from rbx on; rcx, rdx and rsi are one, three
// and five rows. A row of b is zmm28 and zmm29. Sums of row r are zmm(2 r) and zmm(2 r + 1).
#define ROW(at, where, left, s, t)                                         \
  "vbroadcastss 4*" #at "(" where "), %%" left "\n"                        \
  "vfmadd231ps %%" left ", %%zmm28, %%zmm" #s "\n"                         \
  "vfmadd231ps %%" left ", %%zmm29, %%zmm" #t "\n"
#define ROWS_5(at)                                                         \
  ROW(at, "%%rax", "zmm30", 0, 1)                                          \
  ROW(at, "%%rax,%%rcx", "zmm31", 2, 3)                                    \
  ROW(at, "%%rax,%%rcx,2", "zmm30", 4, 5)                                  \
  ROW(at, "%%rax,%%rdx", "zmm31", 6, 7)                                    \
  ROW(at, "%%rax,%%rcx,4", "zmm30", 8, 9)
#define ROWS_6(at) ROWS_5(at) ROW(at, "%%rax,%%rsi", "zmm31", 10, 11)
#define ROWS_7(at) ROWS_6(at) ROW(at, "%%rax,%%rdx,2", "zmm30", 12, 13)
#define ROWS_8(at) ROWS_7(at) ROW(at, "%%rbx", "zmm31", 14, 15)
#define ROWS_9(at) ROWS_8(at) ROW(at, "%%rbx,%%rcx", "zmm30", 16, 17)
#define ROWS_10(at) ROWS_9(at) ROW(at, "%%rbx,%%rcx,2", "zmm31", 18, 19)
#define ROWS_11(at) ROWS_10(at) ROW(at, "%%rbx,%%rdx", "zmm30", 20, 21)
#define ROWS_12(at) ROWS_11(at) ROW(at, "%%rbx,%%rcx,4", "zmm31", 22, 23)
#define ROWS_13(at) ROWS_12(at) ROW(at, "%%rbx,%%rsi", "zmm30", 24, 25)
#define ROWS_14(at) ROWS_13(at) ROW(at, "%%rbx,%%rdx,2", "zmm31", 26, 27)
#define STEP(rows, at)                                                     \
  "vmovups 128*" #at "(%%r8), %%zmm28\n"                                   \
  "vmovups 128*" #at "+64(%%r8), %%zmm29\n" rows(at)
#define GO_ON(steps) \
  "add $4*" #steps ", %%rax\n add $4*" #steps ", %%rbx\n add $128*" #steps ", %%r8\n"

#define CLEAR(s) "vpxord %%zmm" #s ", %%zmm" #s ", %%zmm" #s "\n"
#define STORE(s, t)                                                        \
  "vaddps (%%rax), %%zmm" #s ", %%zmm" #s "\n"                             \
  "vaddps 64(%%rax), %%zmm" #t ", %%zmm" #t "\n"                           \
  "vmovups %%zmm" #s ", (%%rbx)\n vmovups %%zmm" #t ", 64(%%rbx)\n"        \
  "add %%rcx, %%rax\n add %%rdx, %%rbx\n"
#define ALL_5(DO) DO(0, 1) DO(2, 3) DO(4, 5) DO(6, 7) DO(8, 9)
#define ALL_6(DO) ALL_5(DO) DO(10, 11)
#define ALL_7(DO) ALL_6(DO) DO(12, 13)
#define ALL_8(DO) ALL_7(DO) DO(14, 15)
#define ALL_9(DO) ALL_8(DO) DO(16, 17)
#define ALL_10(DO) ALL_9(DO) DO(18, 19)
#define ALL_11(DO) ALL_10(DO) DO(20, 21)
#define ALL_12(DO) ALL_11(DO) DO(22, 23)
#define ALL_13(DO) ALL_12(DO) DO(24, 25)
#define ALL_14(DO) ALL_13(DO) DO(26, 27)
#define CLEAR_BOTH(s, t) CLEAR(s) CLEAR(t)

// What `more` says, which is at r15: next, count and left are r10, r11 and r12; lines, skip and
// rate stay in memory. No copy is made of it: where it is read in larger pieces than it was written
// in, a processor waits until all earlier stores, those of the tile before, are in the cache.
#define FETCH                                                              \
  "movslq 40(%%r15), %%r13\n"                                              \
  "2: dec %%r11\n js 4f\n"                                                 \
  "prefetcht1 (%%r10)\n add $64, %%r10\n"                                  \
  "dec %%r12\n jnz 3f\n"                                                   \
  "add 32(%%r15), %%r10\n mov 24(%%r15), %%r12\n"                          \
  "3: dec %%r13\n jnz 2b\n 4:\n"
#define BEGIN                                                              \
  "mov (%%rdi), %%rax\n mov 8(%%rdi), %%rcx\n"                             \
  "lea (%%rcx,%%rcx,2), %%rdx\n lea (%%rcx,%%rcx,4), %%rsi\n"              \
  "lea (%%rdx,%%rcx,4), %%rbx\n add %%rax, %%rbx\n"                        \
  "mov 16(%%rdi), %%r8\n mov 24(%%rdi), %%r9\n"                            \
  "mov 72(%%rdi), %%r15\n"                                                 \
  "mov (%%r15), %%r10\n mov 8(%%r15), %%r11\n mov 16(%%r15), %%r12\n"
#define KEEP "mov %%r10, (%%r15)\n mov %%r11, 8(%%r15)\n mov %%r12, 16(%%r15)\n"
#define ENDS                                                               \
  "mov 40(%%rdi), %%rax\n mov 48(%%rdi), %%rcx\n"                          \
  "mov 56(%%rdi), %%rbx\n mov 64(%%rdi), %%rdx\n"

template <int R>
static void sum_chain(Chain& chain);
#define SUM_CHAIN(R)                                                                   \
  template <>                                                                          \
  __attribute__((noinline)) void sum_chain<R>(Chain & chain) {                         \
    asm volatile(                                                                      \
        ALL_##R(CLEAR_BOTH) BEGIN "test %%r9, %%r9\n jz 6f\n"                          \
        "1:\n" FETCH "mov $4, %%r14\n"                                                 \
        "5:\n" STEP(ROWS_##R, 0) STEP(ROWS_##R, 1) STEP(ROWS_##R, 2) STEP(ROWS_##R, 3) \
        GO_ON(4) "dec %%r14\n jnz 5b\n dec %%r9\n jnz 1b\n" KEEP                       \
        "6: mov 32(%%rdi), %%r9\n test %%r9, %%r9\n jz 8f\n"                           \
        "7:\n" STEP(ROWS_##R, 0) GO_ON(1) "dec %%r9\n jnz 7b\n"                        \
        "8:\n" ENDS ALL_##R(STORE)                                                     \
        :                                                                              \
        : "D"(&chain)                                                                  \
        : "memory", "cc", "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", \
          "r12", "r13", "r14", "r15", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5",  \
          "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", \
          "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22",      \
          "zmm23", "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29", "zmm30",      \
          "zmm31");                                                                    \
  }
SUM_CHAIN(5)
SUM_CHAIN(6)
SUM_CHAIN(7)
SUM_CHAIN(8)
SUM_CHAIN(9)
SUM_CHAIN(10)
SUM_CHAIN(11)
SUM_CHAIN(12)
SUM_CHAIN(13)
SUM_CHAIN(14)
static_assert(__builtin_offsetof(Chain, more) == 72 && __builtin_offsetof(Ahead, rate) == 40);

// Of LOWEST rows and more.
static void (*const SUM_CHAINS[])(Chain&) = {
    sum_chain<5>,  sum_chain<6>,  sum_chain<7>,  sum_chain<8>,  sum_chain<9>,
    sum_chain<10>, sum_chain<11>, sum_chain<12>, sum_chain<13>, sum_chain<14>};

// to [rows, 32] = from [rows, 32] + a [rows, depth] b [depth, 32], chain by chain. The lines of the
// result are fetched to be written, some before each chain: a processor waits where it is asked for
// more at once than it can await.
static inline __attribute__((always_inline)) void add_chains(
    i64 rows, i64 depth, const f32* a, i64 lda, const f32* b, const f32* from, i64 from_apart,
    f32* to, i64 to_apart, Ahead& more) {
  f32 held[14 * COLUMNS] __attribute__((aligned(64)));
  const i64 chains = (depth + CHAIN - 1) / CHAIN;
  for (i64 i = 0; i < chains; ++i) {
    for (i64 r = rows * i / chains; r < rows * (i + 1) / chains; ++r) {
      __builtin_prefetch(to + r * to_apart, 1);
      __builtin_prefetch(to + r * to_apart + COLUMNS - 1, 1);
    }
    const i64 done = i * CHAIN, terms = depth - done < CHAIN ? depth - done : CHAIN;
    const bool last = i + 1 == chains;
    Chain chain = {a + done, lda * 4, b + done * COLUMNS, terms / BURST, terms % BURST,
                   i ? held : from, i ? COLUMNS * 4 : from_apart * 4,
                   last ? to : held, last ? to_apart * 4 : COLUMNS * 4, &more};
    SUM_CHAINS[rows - LOWEST](chain);
  }
}
#endif
"""
