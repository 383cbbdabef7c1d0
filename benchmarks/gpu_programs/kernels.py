"""Programs of this suite: kernels."""
