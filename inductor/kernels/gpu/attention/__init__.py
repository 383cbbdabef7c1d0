"""Attention on a GPU, plain and flex: Triton texts, and what launches them."""
