"""Graphs with symbolic sizes and numbers: one program for all, code for each, subgraphs between
data."""
