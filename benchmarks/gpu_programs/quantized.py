"""Programs of this suite: quantized."""
