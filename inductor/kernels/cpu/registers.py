"""How tiles keep their sums in registers: C++ text for the kernels that sum products up.

A compiler left alone reads operands again from memory where there are 16 registers, and moves sums
from one register to another. These instructions count where another thread shares the core.
"""

REGISTERS = r"""
// HOLD: a value is wanted in a register now. ADD_GEMM: sum += left * right, in the same register
// (with an operation of three operands, the compiler would rename sums and move them back).
#if defined(__AVX512F__)
#define HOLD(value) asm("" : "+v"(value))
#elif defined(__AVX__)
#define HOLD(value) asm("" : "+x"(value))
#else
#define HOLD(value)
#endif
#if defined(__AVX512F__)
#define ADD_GEMM(sum, left, right) \
  asm("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(left), "v"(right))
#elif defined(__FMA__)
#define ADD_GEMM(sum, left, right) \
  asm("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(left), "x"(right))
#else
#define ADD_GEMM(sum, left, right) \
  sum += left * right;                \
  HOLD(sum)
#endif
"""
