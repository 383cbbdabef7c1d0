"""Kernels of our own on a CPU, as C++ texts, and the libraries that are built of them."""
