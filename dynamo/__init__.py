"""A just-in-time compiler for PyTorch programs.

    >>> import torch, dynamo
    >>> @dynamo.compile(backend="eager")
    ... def f(x):
    ...     return x * 2 + 1
    >>> f(torch.ones(2)).tolist()
    [3.0, 3.0]

The public names are loaded when they are first used: a program that only imports the package, or
one of its leaves, does not wait for the whole of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dynamo.base import extension as extension  # explains a bad build
from dynamo.base.loading import collection_paused

if TYPE_CHECKING:
    from dynamo import background, cache, exc, graphs, lazy, testing, utils
    from dynamo.api import (
        compile,
        compile_in_place,
        cudagraph_mark_step_begin,
        disable,
        graph_break,
        mark_static_address,
        nested_compile_region,
        optimize,
        patch_dynamo_config,
        reset,
        run,
    )
    from dynamo.backends.registry import (
        get_default_backend,
        list_backends,
        lookup_backend,
        register_backend,
        set_default_backend,
    )
    from dynamo.base.comptime import comptime
    from dynamo.base.config import config
    from dynamo.base.counters import compile_times, counters
    from dynamo.base.logs import set_logs
    from dynamo.base.strictness import (
        error_on_graph_break,
        is_compiling,
        is_dynamo_compiling,
        is_exporting,
    )
    from dynamo.diagnose.checked_calls import verify
    from dynamo.exporting.packaged import load_package
    from dynamo.exporting.packaging import package
    from dynamo.exporting.shipped import load_compiled
    from dynamo.exporting.whole_graph import export
    from dynamo.reporting.explanation import explain
    from dynamo.reporting.profiling import profile
    from dynamo.reporting.report import report
    from dynamo.reporting.summary_text import summary
    from dynamo.shapes.marks import Dim
    from dynamo.user_decisions import (
        allow_in_graph,
        assume_constant_result,
        disallow_in_graph,
        mark_dynamic,
        mark_static,
        mark_unbacked,
        maybe_mark_dynamic,
        nonstrict_trace,
        set_stance,
        skip,
        substitute_in_graph,
    )

_HOMES = {
    "dynamo.api": "compile compile_in_place cudagraph_mark_step_begin disable graph_break "
    "mark_static_address nested_compile_region optimize patch_dynamo_config reset run",
    "dynamo.backends.registry": "get_default_backend list_backends lookup_backend register_backend "
    "set_default_backend",
    "dynamo.base.comptime": "comptime",
    "dynamo.base.config": "config",
    "dynamo.base.counters": "compile_times counters",
    "dynamo.base.logs": "set_logs",
    "dynamo.base.strictness": "error_on_graph_break is_compiling is_dynamo_compiling is_exporting",
    "dynamo.diagnose.checked_calls": "verify",
    "dynamo.user_decisions": "allow_in_graph assume_constant_result disallow_in_graph mark_dynamic "
    "mark_static mark_unbacked maybe_mark_dynamic nonstrict_trace set_stance skip "
    "substitute_in_graph",
    "dynamo.reporting.explanation": "explain",
    "dynamo.exporting.packaged": "load_package",
    "dynamo.exporting.packaging": "package",
    "dynamo.reporting.profiling": "profile",
    "dynamo.reporting.report": "report",
    "dynamo.shapes.marks": "Dim",
    "dynamo.exporting.shipped": "load_compiled",
    "dynamo.reporting.summary_text": "summary",
    "dynamo.exporting.whole_graph": "export",
    "dynamo.store.folder": "cache_info clear_cache prune_cache",
    "dynamo.store.artifacts": "load_cache_artifacts save_cache_artifacts",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("background", "cache", "exc", "graphs", "lazy", "testing", "utils")

__all__ = [
    "Dim",
    "allow_in_graph",
    "assume_constant_result",
    "background",
    "cache",
    "cache_info",
    "clear_cache",
    "compile",
    "compile_in_place",
    "compile_times",
    "comptime",
    "config",
    "counters",
    "cudagraph_mark_step_begin",
    "disable",
    "disallow_in_graph",
    "error_on_graph_break",
    "exc",
    "explain",
    "export",
    "get_default_backend",
    "graph_break",
    "graphs",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "lazy",
    "list_backends",
    "load_cache_artifacts",
    "load_compiled",
    "load_package",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nested_compile_region",
    "nonstrict_trace",
    "optimize",
    "package",
    "patch_dynamo_config",
    "profile",
    "prune_cache",
    "register_backend",
    "report",
    "reset",
    "run",
    "save_cache_artifacts",
    "set_default_backend",
    "set_logs",
    "set_stance",
    "skip",
    "substitute_in_graph",
    "summary",
    "testing",
    "utils",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF and name not in _MODULES:
        raise AttributeError(f"module 'dynamo' has no attribute {name!r}")
    # The collector would walk all of torch's objects, for nothing: imports make no garbage.
    with collection_paused():
        if name in _MODULES:
            return importlib.import_module(f"dynamo.{name}")
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
