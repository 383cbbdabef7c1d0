"""Tools that find the culprit: comparison with eager, bisection, minimal scripts, reports.

In: a function or module of the program, or a captured graph. Out: records that print as text.
"""
