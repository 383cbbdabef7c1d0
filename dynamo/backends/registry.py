"""Backends by name. A backend takes `(graph_module, example_inputs)` and returns a callable.

Rows are callables or "module:name" strings (imported at first use); packages add theirs through
the entry point group `dynamo_backends`, and those that have registered one for torch.compile
(`torch_dynamo_backends`) need do no more. A backend's attribute `check_options(mode, options)`, if
there is one, is called by `dynamo.compile`: what it raises is the user's error. Its attribute
`begin()` is called when a frame is about to be traced: the backend can start what takes a while.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from traceback import walk_tb
from typing import Any

import torch
from torch._subclasses import schema_check_mode
from torch._subclasses.schema_check_mode import SchemaCheckMode

from dynamo.base.errors import BackendError, InternalError, InvalidBackend
from dynamo.base.loading import collection_paused
from dynamo.base.words import nearest

OWN = ("dynamo", "inductor")  # packages whose backends return what they should
Backend = Callable[..., Callable[..., Any]]


def eager(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the captured graph as it is: for measuring and testing the capture alone."""
    return module.forward


def eager_noexcept(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Like `eager`; an error in the graph is an InternalError: for programs that raise none."""

    def call(*inputs: Any) -> Any:
        try:
            return module.forward(*inputs)
        except Exception as error:
            raise InternalError(f"a captured graph raised {type(error).__name__}") from error

    return call


def eager_debug(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Like `eager`; an operator with writes or aliases that its schema does not tell of is a
    BackendError."""

    def call(*inputs: Any) -> Any:
        try:
            with SchemaCheckMode():
                return module.forward(*inputs)
        except RuntimeError as error:
            frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
            if frames[-1] == schema_check_mode.__file__:
                raise BackendError(f"an operator does not do what its schema says: {error}"
                                   ) from error
            raise

    return call


GROUP, GROUP_OF_TORCH = "dynamo_backends", "torch_dynamo_backends"
ENGINES = "dynamo.backends.engines.libraries"
_backends: dict[str, Backend | str] = {
    "aot_eager": "inductor.driver.compile_fx:aot_eager",
    "aot_eager_decomp_partition": "inductor.driver.compile_fx:aot_eager",
    "dynamo_accuracy_minifier_backend": "dynamo.diagnose.minify:accuracy_backend",
    "dynamo_minifier_backend": "dynamo.diagnose.minify:crash_backend",
    "eager": eager,
    "eager_debug": eager_debug,
    "eager_noexcept": eager_noexcept,
    "inductor": "inductor.driver.compile_fx:compile_fx",
    **{name: f"{ENGINES}:{name}"
       for name in ("cudagraphs", "onnxrt", "openvino", "tensorrt", "tvm")},
}

_of_ours = frozenset(_backends)


def is_installed(name: str, backend: Backend) -> bool:
    """Whether each process finds this backend by that name: it is one of ours, or a package's."""
    found = name in _of_ours or name in _entry_points()
    return found and lookup_backend(name) is backend


def is_own(backend: Callable[..., Any]) -> bool:
    """True for backends that come with the compiler."""
    return str(getattr(backend, "__module__", None)).partition(".")[0] in OWN


def register_backend(backend: Backend | None = None, *, name: str | None = None) -> Any:
    """Makes a backend known by name; a decorator with or without arguments."""
    if backend is None:
        return lambda function: register_backend(function, name=name)
    if not callable(backend):
        raise TypeError(f"a backend is a callable (graph_module, example_inputs), not {backend!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name= takes a text, not {name!r}")
    _backends[name or backend.__name__] = backend
    return backend


DEFAULT_BACKEND = "inductor"
_default: list[str | Backend] = [DEFAULT_BACKEND]


def set_default_backend(backend: str | Backend | None) -> None:
    """What `compile` takes from now on where it is given no `backend=`; None is "inductor" again.

    Functions that are compiled already keep theirs. Errors: TypeError, InvalidBackend.
    """
    if backend is not None:
        lookup_backend(backend)
    _default[0] = DEFAULT_BACKEND if backend is None else backend


def get_default_backend() -> str | Backend:
    """What `compile` takes where it is given no `backend=`.

    >>> get_default_backend()
    'inductor'
    """
    return _default[0]


_at_reset: list[Callable[[], None]] = []


def at_reset(function: Callable[[], None]) -> None:
    """Call `function` whenever `dynamo.reset()` is called: for memory that a backend keeps."""
    if function not in _at_reset:
        _at_reset.append(function)


def reset_backends() -> None:
    """Have the backends give back what they keep."""
    for function in _at_reset:
        function()


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """By name; ours for torch.compile are left out, and `GROUP` goes before torch's."""
    found = {
        point.name: point for point in importlib.metadata.entry_points(group=GROUP_OF_TORCH)
        if not point.value.startswith("dynamo.")}
    found.update((point.name, point) for point in importlib.metadata.entry_points(group=GROUP))
    return found


def list_backends() -> list[str]:
    """Names of all backends, sorted."""
    return sorted({*_backends, *_entry_points()})


def lookup_backend(backend: str | Backend) -> Backend:
    """The backend of that name; a callable is taken as it is. Errors: InvalidBackend."""
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise TypeError(f"backend= takes a name or a callable, not {backend!r}")
    if backend not in _backends:
        point = _entry_points().get(backend)
        if point is None:
            raise InvalidBackend(
                f"there is no backend {backend!r}{nearest(backend, list_backends())}; known are "
                f"{', '.join(list_backends())}"
            )
        _backends[backend] = point.load()
    found = _backends[backend]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        with collection_paused():
            found = _backends[backend] = getattr(importlib.import_module(module), attribute)
    return found
