"""Attention on a CPU: its C++ text, and the library that is built of it."""
