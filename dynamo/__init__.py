"""A just-in-time compiler for PyTorch programs.

    >>> import torch, dynamo
    >>> @dynamo.compile(backend="eager")
    ... def f(x):
    ...     return x * 2 + 1
    >>> f(torch.ones(2)).tolist()
    [3.0, 3.0]
"""

from dynamo.base.loading import collection_paused

# The collector would walk all of torch's objects, for nothing: imports make no garbage.
with collection_paused():
    from dynamo.base import extension as extension  # isort: skip  # first: explains a bad build
    from dynamo import exc, testing
    from dynamo.api import (
        compile,
        compile_in_place,
        disable,
        graph_break,
        is_compiling,
        reset,
        run,
    )
    from dynamo.backends.registry import list_backends, lookup_backend, register_backend
    from dynamo.base.config import config
    from dynamo.base.counters import compile_times, counters
    from dynamo.base.logs import set_logs
    from dynamo.decide import (
        allow_in_graph,
        assume_constant_result,
        disallow_in_graph,
        mark_dynamic,
        mark_static,
        maybe_mark_dynamic,
        set_stance,
        skip,
        substitute_in_graph,
    )
    from dynamo.explain import explain
    from dynamo.export import export

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_in_place",
    "compile_times",
    "config",
    "counters",
    "disable",
    "disallow_in_graph",
    "exc",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "list_backends",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "register_backend",
    "reset",
    "run",
    "set_logs",
    "set_stance",
    "skip",
    "substitute_in_graph",
    "testing",
]
