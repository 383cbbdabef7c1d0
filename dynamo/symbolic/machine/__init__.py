"""The machine: opcodes, frames, the trace, breaks and inlining. It alone imports all packages.

The imports register the rules of those whose names nothing here mentions.
"""

from dynamo.symbolic import numpy, python, tensors

__all__ = ["numpy", "python", "tensors"]
