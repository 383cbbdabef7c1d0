"""Python's own values: containers, classes, functions, iterators, text, exceptions, operators.

Loading the package registers what its modules know of real values and of calls.
"""

from dynamo.base.loading import load_all

# In the order in which their rows are asked; a `first_rule` is asked before all rows before it.
load_all(__name__, """
    ranges lists classes dicts sets objects thread_locals cells functions aliases
    binders supers builtin_attributes dict_views partials polyfills weakrefs
    python_random cached iteration builtins
    python_modules texts operators comparisons containers set_methods deques context_variables
    dispatching folding foreign identity pickles symbolic_texts
    standard_library polyfill_iterators polyfill_heaps exception_rules attributes
    construction
""")
