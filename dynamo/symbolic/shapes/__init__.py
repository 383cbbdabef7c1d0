"""Symbolic and unbacked numbers: names of sizes, what is assumed of them, texts with them."""
