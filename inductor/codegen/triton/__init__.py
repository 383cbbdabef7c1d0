"""Kernels as Triton. Only generated files and `prelude` import triton."""
