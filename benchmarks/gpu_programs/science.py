"""Programs of this suite: science."""
