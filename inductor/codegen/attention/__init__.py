"""Attention on a GPU: the texts of its Triton kernels, and what they are rendered for."""
