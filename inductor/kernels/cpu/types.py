"""Types, functions of C and vectors that our library kernels on a CPU share: C++ text.

No header is included: to read those of the C library takes longer than to compile a short kernel.
"""

from __future__ import annotations

TYPES_TEXT = r"""
typedef long i64;
typedef float f32;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
extern "C" {
void* aligned_alloc(unsigned long, unsigned long);
void free(void*);
void* memcpy(void*, const void*, unsigned long);
void* memset(void*, int, unsigned long);
int omp_get_thread_num();
int omp_get_num_threads();
}
"""

# LANES: numbers of a vector. ROWS of a tile: with two columns of vectors, its sums and what they
# are made of fill the registers (32 with AVX-512, else 16).
VECTORS_TEXT = r"""
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 14 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 6 };
#else
enum { LANES = 4, ROWS = 6 };
#endif
typedef f32 Vector __attribute__((vector_size(LANES * 4)));
typedef f32 Loose __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int Lanes __attribute__((vector_size(LANES * 4)));
"""
