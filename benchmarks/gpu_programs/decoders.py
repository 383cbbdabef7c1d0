"""Programs of this suite: decoders."""
