"""Programs of this suite: optimizers."""
