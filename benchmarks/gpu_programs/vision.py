"""Programs of this suite: vision."""
