"""The default backend: captured graphs become C++/OpenMP or Triton kernels.

    >>> import inductor
    >>> compiled = inductor.compile_fx(graph_module, example_inputs)
    >>> inductor.metrics.snapshot()["kernels"]
    1
"""

from inductor import metrics
from inductor.compile_fx import compile_fx

__all__ = ["compile_fx", "metrics"]
