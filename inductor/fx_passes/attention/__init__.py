"""Passes that find attention in captured graphs, and choose who computes it."""
