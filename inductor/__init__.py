"""The default backend: captured graphs become C++/OpenMP or Triton kernels.

    >>> import inductor
    >>> compiled = inductor.compile_fx(graph_module, example_inputs)
    >>> inductor.metrics.snapshot()["kernels"]
    1
"""

from dynamo.store.artifacts import load_cache_artifacts, save_cache_artifacts
from inductor import config, metrics
from inductor.config import list_mode_options, list_options
from inductor.driver.compile_fx import compile_fx
from inductor.driver.compile_fx import compile_fx as compile
from inductor.driver.compile_fx import compile_fx as standalone_compile

__all__ = [
    "compile", "compile_fx", "config", "list_mode_options", "list_options", "load_cache_artifacts",
    "metrics", "save_cache_artifacts", "standalone_compile",
]
