"""A just-in-time compiler for PyTorch programs."""
