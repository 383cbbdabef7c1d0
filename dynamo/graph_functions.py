"""A captured graph and its function: compiled by the backend now, or in the background.

In: the graph, its inputs, what the user asked for. Out: what the new bytecode calls, with all that
is done around a compiled function: its results are checked, modes are put back after errors, and
what raises is looked at.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.backends.rescue import rescued
from dynamo.backends.results import checked, is_own
from dynamo.base.config import config
from dynamo.base.errors import BackendError, DynamoError
from dynamo.base.shortfalls import GRAPH, Site, compiling_at, refused
from dynamo.base.signals import is_of_signal
from dynamo.options import CompileOptions
from dynamo.symbolic.tensors.contexts import changes_modes, leaves_on_error
from dynamo.symbolic.tensors.repeating import errors_to_undo, may_run_twice, puts_back

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class GraphCompiler:
    """again: the part of the program runs once more when it raises; tensors: which outputs of the
    graph are tensors."""

    module: fx.GraphModule
    options: CompileOptions
    site: Site
    again: bool
    tensors: list[bool]

    def compile(self, inputs: list[Any]) -> Call:
        """What is called; see the top of the file. Errors: DynamoError."""
        wrap = self._wrapper()
        if self.options.background:
            return self._in_background(inputs, wrap)
        return wrap(self._by_backend(self.module, inputs))

    def _in_background(self, inputs: list[Any], wrap: Callable[[Call], Call]) -> Call:
        background = importlib.import_module("dynamo.background.graphs")
        options = self.options
        return background.compile_later(  # type: ignore[no-any-return]
            self.module, inputs, options.backend, options.extra(), self._by_backend, wrap,
            self._tell, options.background_calls)

    def _tell(self, error: Exception) -> None:
        """Counts an error of a compile in the background. Errors: it, where the user wants one."""
        if self.site.strict or not config.suppress_errors:
            raise error
        reason = str(error).removeprefix(self.site.place).strip()
        refused(GRAPH, reason.rstrip("."), self.site.place, strict=False)

    def _by_backend(self, module: fx.GraphModule, inputs: list[Any]) -> Call:
        """The backend's function. Errors: DynamoError."""
        name = self.options.backend_name
        try:
            with compiling_at(self.site):
                compiled = self.options.compile_graph(module, inputs)
            if not callable(compiled):
                raise TypeError(f"a backend returns a callable, not {compiled!r}")
        except DynamoError:
            raise
        except Exception as error:
            if is_of_signal(error):
                raise
            failure = backend_failure(error, self.site.place, name, module)
            raise failure from (None if is_explained(error) else error)
        return compiled

    def _wrapper(self) -> Callable[[Call], Call]:
        """What goes around the backend's function; made before the backend, which may change the
        graph."""
        module, site, backend = self.module, self.site, self.options.backend
        undone = errors_to_undo(module.graph, self.again)
        twice = may_run_twice(module.graph)
        changes = changes_modes(module.graph)
        tensors = self.tensors

        def wrap(compiled: Call) -> Call:
            captured: Call = module.forward
            if tensors and not is_own(backend):
                compiled = checked(compiled, tensors, site.place, self.options.backend_name)
            looked_at = is_own(backend) and compiled != captured
            if changes:
                compiled, captured = leaves_on_error(compiled), leaves_on_error(captured)
            if undone:
                compiled, captured = puts_back(compiled, undone), puts_back(captured, undone)
            if looked_at:
                compiled = rescued(compiled, captured, module.graph, site, twice)
            return compiled

        return wrap


def is_explained(error: Exception) -> bool:
    """True for an error whose text says all, as that there is no compiler."""
    return bool(getattr(error, "explained", False))


def backend_failure(
    error: Exception, place: str, backend: str, module: torch.fx.GraphModule
) -> BackendError:
    """What a user is told of a backend's error."""
    if is_explained(error):
        text = f"{place}\n  The backend {backend!r} failed: {error}"
    else:
        text = (
            f"{place}\n  The backend {backend!r} failed: {type(error).__name__}: {error}\n"
            f"  The graph that it was compiling:\n{module.code.strip()}")
    failure = BackendError(text)
    failure.graph_module = module
    return failure
