"""`CompileOptions`: what one `dynamo.compile(...)` was asked for, checked and frozen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dynamo.backends.registry import lookup_backend

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class CompileOptions:
    """backend: the callable; dynamic: None learns from the second size."""

    backend: Callable[..., Any]
    backend_name: str
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fullgraph: bool = False
    dynamic: bool | None = None
    name: str | None = None
    recompile_limit: int | None = None

    def compile_graph(self, module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        """Runs the backend on a captured graph."""
        extra: dict[str, Any] = {}
        if self.mode is not None:
            extra["mode"] = self.mode
        if self.options:
            extra["options"] = dict(self.options)
        return self.backend(module, example_inputs, **extra)


def check_options(
    backend: Any, mode: Any, options: Any, fullgraph: Any, dynamic: Any, name: Any, limit: Any
) -> CompileOptions:
    """Checks each argument of `compile`; TypeError and ValueError say what is accepted."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; modes are {', '.join(MODES)}")
    if mode is not None and options is not None:
        raise ValueError("mode= and options= exclude each other: a mode is a set of options")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options= takes a dict, not {options!r}")
    if not isinstance(fullgraph, bool):
        raise TypeError(f"fullgraph= takes True or False, not {fullgraph!r}")
    if dynamic not in (None, True, False):
        raise TypeError(f"dynamic= takes None, True or False, not {dynamic!r}")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ValueError(f"recompile_limit= takes a positive int, not {limit!r}")
    compiler = lookup_backend(backend)
    mode = None if mode == "default" else mode
    if mode is not None or options:
        parameters = inspect.signature(compiler).parameters.values()
        takes = {p.name for p in parameters}
        wanted = "mode" if mode is not None else "options"
        if wanted not in takes and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise ValueError(f"the backend {backend!r} takes no {wanted}=")
    label = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    return CompileOptions(compiler, label, mode, MappingProxyType(dict(options or {})), fullgraph,
                          dynamic, name, limit)
