"""The way of one graph through the backend: `compile_fx` first, then `from_aten`."""
