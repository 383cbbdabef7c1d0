"""Compiled graphs as libraries that run without Python: see `cpu_graph.py`, then `folder.py`."""
