"""Whole graphs, files of compiled code, packages."""
