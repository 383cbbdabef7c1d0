"""Graphs with open sizes and numbers: one program for all, code for each, pieces between data."""
