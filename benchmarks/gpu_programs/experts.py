"""Programs of this suite: experts."""
