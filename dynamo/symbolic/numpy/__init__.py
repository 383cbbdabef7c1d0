"""Arrays and numbers of numpy, which are tensors and constants of the trace.

Loading the package registers what its modules know of real values and of calls.
"""

from dynamo.base.loading import load_all

# In the order in which their rows are asked; a `first_rule` is asked before all rows before it.
load_all(__name__, """
    array scalars arrays array_functions array_rearranging array_products array_indices
    array_tensors
""")
