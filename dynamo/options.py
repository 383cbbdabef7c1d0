"""`CompileOptions`: what one `dynamo.compile(...)` was asked for, checked and frozen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, MappingProxyType
from typing import Any

import torch

from dynamo.backends.registry import get_default_backend, lookup_backend
from dynamo.backends.services import service
from dynamo.base.config import config
from dynamo.base.errors import ConstraintViolation
from dynamo.base.fallbacks import site_now
from dynamo.graph_operators.gradients import own_saved_tensor_hooks
from dynamo.shapes.marks import Dim, Mark

MODES = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class DeclaredDims:
    """`dynamic={"x": {0: Dim("batch")}}`: dimensions of tensors among a function's arguments.

    code: of the frame that gets the arguments; signature: what names them, without the first
    `skipped` (self).
    """

    dims: Mapping[str, Mapping[int, Dim]]
    code: CodeType | None = None
    signature: inspect.Signature | None = None
    skipped: int = 0

    def of(self, model: Any) -> DeclaredDims:
        """The same for a function or module. Errors: ValueError for a name that is no parameter."""
        module = isinstance(model, torch.nn.Module)
        signature = inspect.signature(model.forward if module else model)
        code = getattr(torch.nn.Module._call_impl if module else model, "__code__", None)
        skipped = int(module or inspect.ismethod(model))
        for name in self.dims:
            if name not in signature.parameters:
                raise ValueError(
                    f"dynamic= names {name!r}, which is no parameter; "
                    f"there are {', '.join(signature.parameters)}")
        return DeclaredDims(self.dims, code, signature, skipped)

    def marks(self, code: CodeType, values: Mapping[str, Any]) -> dict[int, Mapping[int, Mark]]:
        """The marks of the tensors in a frame of this code, by their identities."""
        if code is not self.code or self.signature is None:
            return {}
        names, rest, others = inspect.getargs(code)
        args = [values[name] for name in names[: code.co_argcount]]
        kwargs = {name: values[name] for name in names[code.co_argcount :]}
        args += values[rest] if rest is not None else ()
        kwargs.update(values[others] if others is not None else {})
        found: dict[int, Mapping[int, Mark]] = {}
        given = self.signature.bind(*args[self.skipped :], **kwargs).arguments
        for name, axes in self.dims.items():
            value = given.get(name)
            if value is None:
                continue
            rank = value.dim() if isinstance(value, torch.Tensor) else 0
            if not all(-rank <= axis < rank for axis in axes):
                raise ConstraintViolation(
                    f"dynamic= declares dimensions {list(axes)} of {name!r}, which is here "
                    f"a {type(value).__name__} of {rank} dimensions.\n"
                    "  Call it with a tensor of that many dimensions, or declare others.")
            found[id(value)] = {axis % rank: dim.mark() for axis, dim in axes.items()}
        return found


@dataclass(frozen=True)
class CompileOptions:
    """backend: the callable; dynamic: None learns from the second size.

    dims: what `dynamic=` said of dimensions. verify: each call is compared with eager. background:
    calls run as captured until the compile is done; the call number `background_calls` waits for it
    (0: none does). isolated: no other call of `compile` uses its entries. settle: makes another
    trace of the one of a frame, for an export.
    """

    backend: Callable[..., Any]
    backend_name: str
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fullgraph: bool = False
    dynamic: bool | None = None
    name: str | None = None
    recompile_limit: int | None = None
    dims: DeclaredDims | None = None
    verify: bool = False
    background: bool = False
    background_calls: int = 0
    isolated: bool = False
    settle: Callable[[Any, Any], Any] | None = None

    def extra(self) -> dict[str, Any]:
        """What the backend gets beside the graph and its inputs."""
        extra: dict[str, Any] = {}
        if self.mode is not None:
            extra["mode"] = self.mode
        if self.options:
            extra["options"] = dict(self.options)
        return extra

    def compile_graph(self, module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        """Runs the backend on a captured graph."""
        extra = self.extra()
        with own_saved_tensor_hooks():
            if config.debug_dir:
                scripts = service("debug_scripts")
                scripts.keep_graph(module, example_inputs, site_now().place)
            if config.repro:  # rarely: loaded when it is asked for
                minify = service("minifier")
                return minify.compile_and_minify(  # type: ignore[no-any-return]
                    module, example_inputs, self.backend, self.backend_name, extra, config.repro)
            return self.backend(module, example_inputs, **extra)  # type: ignore[no-any-return]


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
    options = dict(options or {})
    verify = _popped(options, "verify", False)
    background = _popped(options, "background", config.background)
    calls = _popped(options, "background_calls", config.background_calls)
    if not isinstance(fullgraph, bool):
        raise TypeError(f"fullgraph= takes True or False, not {fullgraph!r}")
    dims = DeclaredDims(check_dims(dynamic)) if isinstance(dynamic, Mapping) else None
    dynamic = dynamic if dims is None else None
    if dynamic not in (None, True, False):
        raise TypeError(
            "dynamic= takes None, True, False or a dict like {'x': {0: Dim('batch')}}, not "
            f"{dynamic!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name= takes a text, not {name!r}")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ValueError(f"recompile_limit= takes a positive int, not {limit!r}")
    backend = get_default_backend() if backend is None else backend
    compiler = lookup_backend(backend)
    mode = None if mode == "default" else mode
    if mode is not None or options:
        parameters = inspect.signature(compiler).parameters.values()
        takes = {p.name for p in parameters}
        wanted = "mode" if mode is not None else "options"
        if wanted not in takes and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise ValueError(f"the backend {backend!r} takes no {wanted}=")
    check = getattr(compiler, "check_options", None)
    if check is not None:
        check(mode, options)
    label = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    return CompileOptions(compiler, label, mode, MappingProxyType(options), fullgraph,
                          dynamic, name, limit, dims, verify, background, calls)


def _popped(options: dict[str, Any], name: str, default: Any) -> Any:
    """The value of an option that is none of the backend's. Errors: TypeError."""
    value = options.pop(name, default)
    if type(value) is not type(default):
        kind = "True or False" if type(default) is bool else "an int"
        raise TypeError(f"options={{{name!r}: ...}} takes {kind}, not {value!r}")
    return value


def check_dims(dims: Mapping[Any, Any]) -> Mapping[str, Mapping[int, Dim]]:
    """A frozen copy of `dynamic={"x": {0: Dim("batch")}}`. Errors: TypeError."""
    for name, axes in dims.items():
        right = isinstance(name, str) and isinstance(axes, Mapping) and all(
            isinstance(axis, int) and isinstance(dim, Dim) for axis, dim in axes.items())
        if not right:
            raise TypeError(
                "dynamic= takes names of parameters with dimensions, {'x': {0: Dim('batch')}}, "
                f"not {name!r}: {axes!r}")
    return MappingProxyType({name: MappingProxyType(dict(axes)) for name, axes in dims.items()})
