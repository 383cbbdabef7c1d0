"""Compiled graphs as libraries that run without Python: see `graph.py`, then `folder.py`."""
