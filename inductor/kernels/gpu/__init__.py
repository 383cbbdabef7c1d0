"""Kernels of our own on a GPU that are not printed from loops."""
