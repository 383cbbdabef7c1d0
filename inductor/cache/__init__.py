"""Compiled graphs on disk: keys, records, and what is read back."""
