"""Flex attention as Triton: templates, and what the program's functions do to a tile of scores."""
