"""The public functions: `compile`, `disable`, `graph_break`, `reset` and their relatives."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch

from dynamo import hook
from dynamo.backends.registry import reset_backends
from dynamo.base import counters
from dynamo.base.config import config
from dynamo.base.environment import warn_of_torch
from dynamo.base.words import described
from dynamo.frames.callers import behind_torch, caller_of, needs_caller
from dynamo.frames.policy import FramePolicy
from dynamo.frames.sharing import regions
from dynamo.graph_operators.regions import mark
from dynamo.options import CompileOptions, check_options
from dynamo.shapes.marks import Dim
from dynamo.user_decisions import set_stance, skip

F = TypeVar("F")


def live_policies() -> list[FramePolicy]:
    """Those of all calls of `compile` whose result lives, oldest first."""
    with regions.lock:
        return sorted(regions.policies, key=lambda policy: policy.number)


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | Mapping[str, Mapping[int, Dim]] | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> Any:
    """Compiles a function or module; same arguments as torch.compile, same meaning.

    model: a function, method or nn.Module; left out, `compile` is a decorator with arguments.
    backend: a name (see `list_backends`) or a callable
        `(graph_module, example_inputs) -> callable`; None is the default (`set_default_backend`).
    fullgraph: True raises at the first graph break; numbers and sizes that the data decide are then
    part of the graph. dynamic: None learns from the second size, True takes all sizes as symbolic
    at once, False none; a dict says which sizes of which arguments change,
    `{"x": {0: Dim("batch", max=64)}}`: fixing one of them is a ConstraintViolation.
    mode: a set of options of the backend by name; options: single ones, by `name: value`.
    disable: True gives `model` back. name: a text that messages about recompiles show.
    recompile_limit: entries that a function keeps, by default `config.recompile_limit`. Calls of
    `compile` for the same code with the same options and settings share their entries;
    isolate_recompiles: True gives this call entries of its own.
    Returns a callable like `model`; a module gives an instance of its class that shares all state
    with it, and whose copies and pickles are not compiled; a class whose instances are called (of
    modules, say) is given back, and their calls are compiled. Errors: TypeError, ValueError,
    InvalidBackend.

    >>> @compile(backend="eager")
    ... def double(x):
    ...     return x * 2
    >>> double(torch.ones(2)).tolist()
    [2.0, 2.0]
    """
    warn_of_torch()
    settings = check_options(backend, mode, options, fullgraph, dynamic, name, recompile_limit)
    settings = replace(settings, isolated=bool(isolate_recompiles))
    if model is None:
        return functools.partial(compile_by, settings=settings, disabled=disable)
    return compile_by(model, settings, disabled=disable)


def compile_by(model: Any, settings: CompileOptions, *, disabled: bool = False) -> Any:
    """`compile` with arguments that are checked already."""
    if not callable(model):
        under = " (compile the function, below the other decorator)"
        hint = under if isinstance(model, classmethod | property) else ""
        given = f"{described(model)}{hint}"
        raise TypeError(f"compile takes a function, a method or an nn.Module, not {given}")
    if disabled or config.disable:
        return model
    if config.report:
        importlib.import_module("dynamo.reporting.report").start()
    model = behind_torch(model)
    if settings.verify:  # rarely, and much code: loaded when it is asked for
        diagnose = importlib.import_module("dynamo.diagnose.checked_calls")
        return diagnose.checked_calls(model, settings)
    called_as = _call_of_instances(model) if isinstance(model, type) else None
    if called_as is not None and settings.dims is not None:
        raise TypeError(f"dynamic= names parameters of a function or module, not of {model!r}; "
                        "compile the instances of the class")
    if settings.dims is not None:
        settings = replace(settings, dims=settings.dims.of(run(model)))
    if isinstance(model, torch.nn.Module):
        return _compiled_module(model, settings)
    if called_as is not None:
        policy = regions.policy_for(model, settings)
        model.__call__ = hook.Compiled(policy.region, called_as)
        model.__call__.__dict__["_policy"] = policy
        return model
    function = model.__wrapped__ if isinstance(model, hook.Compiled) else model
    plain = function.func if isinstance(function, functools.partial) else function
    called = caller_of(function) if needs_caller(plain) else function
    target = plain if called is function else called
    target = target.__func__ if isinstance(target, MethodType) else target
    has_code = isinstance(target, FunctionType) and not hasattr(target, "__wrapped__")
    policy = regions.policy_for(called, settings, target.__code__ if has_code else None)
    compiled = hook.Compiled(policy.region, called)
    policy.add_compiled(getattr(function, "__self__", function), compiled)
    compiled.__dict__.update(
        _policy=policy, __wrapped__=function, aot_compile=_shipper(lambda: function, settings))
    return compiled


def _compiled_module(module: torch.nn.Module, settings: CompileOptions) -> torch.nn.Module:
    """The twin of a module; the one that is there, as entries are for its class."""
    policy = regions.policy_for(module, settings)
    if getattr(type(module), "_policy", None) is policy:
        return module
    twin = None if policy.twin is None else policy.twin()
    if twin is None:
        module = run(module)
        called_as = _call_of_instances(type(module)) or torch.nn.Module._call_impl
        call = hook.Compiled(policy.region, MethodType(called_as, module))
        forward = hook.Compiled(policy.region, _forward_of(module))
        twin = module_twin(module, call, policy, _forward=forward,
                           aot_compile=_shipper(lambda: module, settings))
        policy.twin = weakref.ref(twin)  # which does not keep the module alive
    return twin


def _shipper(model: Callable[[], Any], settings: CompileOptions) -> Callable[..., Any]:
    def aot_compile(*args: Any, **kwargs: Any) -> Any:
        """Compiles for these arguments; the result's `save(path)` writes a file for
        `dynamo.load_compiled`. Errors: Unsupported."""
        # Rarely: loaded when it is asked for.
        shipping = importlib.import_module("dynamo.exporting.shipping")
        return shipping.aot_compile(model(), settings, args, kwargs)

    return aot_compile


def _call_of_instances(cls: type) -> Any:
    """The function that runs when an instance is called, None where there is none in Python."""
    found = next((vars(c)["__call__"] for c in cls.__mro__ if "__call__" in vars(c)), None)
    found = found.__wrapped__ if isinstance(found, hook.Compiled) else found
    if found is vars(torch.nn.Module)["__call__"]:
        return torch.nn.Module._call_impl
    return found if isinstance(found, FunctionType) else None


def module_twin(
    module: torch.nn.Module, call: hook.Compiled, policy: FramePolicy | None, **methods: Any
) -> torch.nn.Module:
    """An instance of the module's class that shares its `__dict__`: one state, called two ways.

    call: gets the arguments alone; what it calls sees the module itself as `self`, which the
    program may have stored. methods: others that differ. They are the twin's own, as is the module
    (slots): a class lives until the garbage is collected, and would keep the module as long.
    """
    cls = type(module)

    def reduce(self: torch.nn.Module, protocol: int) -> Any:
        """Copied and pickled as what it is without the compiler, in the way of its own class."""
        how = _sharing(cls, self).__reduce_ex__(protocol)
        if isinstance(how, tuple) and how[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            how = (cls.__new__, *how[1:])  # the pickler compares that one's class with self's
        return how

    own = {"_original": module, "__call__": call, **methods}
    functions = {"forward": _calling_own_forward(cls)} if "_forward" in own else {}
    twin_class = type(cls.__name__, (cls,), {
        "__slots__": tuple(own), "__module__": cls.__module__, "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__, "__reduce_ex__": reduce, "_policy": policy,
        "__signature__": _SignatureOfOriginal(), **functions,
    })
    twin = _sharing(twin_class, module)
    for name, value in own.items():
        object.__setattr__(twin, name, value)
    composable = sys.modules.get("torch.distributed._composable_state")
    state = composable and composable._get_module_state(module)
    if composable and state:  # `fully_shard` keeps its state by the module's identity
        composable._insert_module_state(twin, state)
    return twin


class _SignatureOfOriginal:
    """What `inspect.signature` gives for a twin: it finds no function in the slot `__call__`."""

    def __get__(self, twin: Any, cls: type) -> inspect.Signature:
        if twin is None:  # then it is how the class is called
            raise AttributeError("__signature__")
        return inspect.signature(twin._original)


def _calling_own_forward(cls: Any) -> Callable[..., Any]:
    """`forward` of a twin's class: a function, as those expect who look at classes."""

    @functools.wraps(cls.forward)
    def forward(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    return forward


def _forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    """`module.forward`, as it is when it is called."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return module.forward(*args, **kwargs)

    forward.__wrapped__ = module.forward  # type: ignore[attr-defined]
    return forward


def _sharing(cls: type, module: torch.nn.Module) -> torch.nn.Module:
    """An instance of the class with the very state of the module."""
    other: torch.nn.Module = object.__new__(cls)
    object.__setattr__(other, "__dict__", module.__dict__)
    return other


def compile_in_place(module: torch.nn.Module, **arguments: Any) -> torch.nn.Module:
    """Like `nn.Module.compile`: the same object, its class and state_dict keys unchanged.

    arguments: those of `compile`. A copy or pickle of the module is not compiled. Errors: those of
    `compile`; TypeError for what is no module.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"compile_in_place takes an nn.Module, not {module!r}")
    made = compile(**arguments).keywords
    settings: CompileOptions = made["settings"]
    if made["disabled"] or config.disable:
        return module
    if settings.dims is not None:
        settings = replace(settings, dims=settings.dims.of(module))
    policy = regions.policy_for_alike(module, settings)
    call = hook.Compiled(policy.region, module._call_impl)
    policy.add_compiled(module, call)
    call.__dict__["_policy"] = policy
    module._compiled_call_impl = call
    return module


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function is never traced; with recursive=True nothing that it calls is either.

    A module gives an instance of its class that shares all state with it; a class whose instances
    are called is given back, and their calls are not traced.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(fn):
        raise TypeError(f"disable takes a callable, not {fn!r}")
    if not recursive:
        return skip(fn)
    fn = run(fn) if isinstance(fn, torch.nn.Module) else fn
    cls = fn if isinstance(fn, type) else type(fn)
    of_instances = _call_of_instances(cls) if isinstance(fn, type | torch.nn.Module) else None
    function = of_instances or (fn.__wrapped__ if isinstance(fn, hook.Compiled) else fn)
    if isinstance(fn, torch.nn.Module) and of_instances is not None:
        function = MethodType(of_instances, fn)
    result = hook.Compiled(None, function)
    result.__dict__["_disabled_because"] = reason or "dynamo.disable"
    if of_instances is None:
        return result
    result.__dict__["__qualname__"] = cls.__qualname__
    if isinstance(fn, torch.nn.Module):
        return module_twin(fn, result, None)
    fn.__call__ = result
    return fn


def optimize(
    backend: str | Callable[..., Any] = "inductor", *, nopython: bool = False,
    disable: bool = False, dynamic: bool | None = None,
) -> Any:
    """The old spelling: `optimize("eager", nopython=True)(f)` is
    `compile(f, backend="eager", fullgraph=True)`."""
    return compile(backend=backend, fullgraph=nopython, disable=disable, dynamic=dynamic)


def patch_dynamo_config(
    changes: Mapping[str, Any] | str | None = None, /, *value: Any, **more: Any
) -> Any:
    """`config.patch`, for a `with` block or a decorated function around compiled calls.

    >>> with patch_dynamo_config(recompile_limit=2):
    ...     config.recompile_limit
    2
    """
    return config.patch(changes, *value, **more)


def graph_break(msg: str = "") -> None:
    """Ends the current graph here; does nothing in a program that is not compiled.

    msg: what logs and `explain` give as the reason.
    """


def cudagraph_mark_step_begin() -> None:
    """Does nothing: results of recorded CUDA graphs are copied out, so that no step overwrites what
    an earlier one returned."""


def mark_static_address(tensor: torch.Tensor) -> None:
    """Does nothing: recorded CUDA graphs read tensors in place whose address stays, and see it at
    the call where one moves."""


def nested_compile_region(fn: Any = None, *, max_reuse_entries: int = 8) -> Any:
    """Marks a function that a program calls again and again, a layer of a model for instance: it is
    compiled once for all calls that are alike. A decorator with or without parentheses.

    The default backend compiles each call's operations for themselves, not together with what is
    around them; the first of a kind is compiled, the others use what it made. Other backends get
    one graph. max_reuse_entries: how many kinds of calls a graph may have; more are a
    RuntimeError, since the mark does not help there. Errors: TypeError for what is no function.
    """
    if fn is None:
        return functools.partial(nested_compile_region, max_reuse_entries=max_reuse_entries)
    return mark(fn, max_reuse_entries)


def run(fn: Any = None) -> Any:
    """The original function or module behind a compiled or disabled one.

    Without an argument, for a `with` block or as a decorator `@run()`: calls in it use what is
    compiled already, and run eagerly where nothing fits; nothing new is compiled.
    """
    if fn is None:
        return _run_what_is_compiled()
    if isinstance(fn, torch.nn.Module):
        while "_original" in vars(type(fn)):
            fn = fn._original
        return fn
    return getattr(fn, "__wrapped__", fn)


@contextlib.contextmanager
def _run_what_is_compiled() -> Iterator[None]:
    with set_stance("eager_on_recompile"):
        yield


def reset() -> None:
    """Forgets all compiled code, all counters and the memory that backends keep."""
    regions.forget()
    reset_backends()
    counters.reset()
