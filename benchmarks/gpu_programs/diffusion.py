"""Programs of this suite: diffusion."""
