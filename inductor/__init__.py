"""The default backend: loop IR, fusion, C++ and Triton kernels."""
