"""Losses over large vocabularies, for a part of the rows at a time."""
