"""Functions of TorchScript on lazy tensors: each of their operations is recorded.

After some calls, TorchScript runs a function as kernels that it has fused. Those read the memory of
their arguments without a dispatch, and a lazy tensor has none: on a GPU such a read is an illegal
access. So while a mode is on, or where an argument is lazy, a twin of the function runs, made of
the same graph, of which nothing is fused.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynamo.lazy.recorder import MODES
from dynamo.lazy.tensor import LazyTensor

ScriptFunction: Any = torch._C.ScriptFunction  # type: ignore[attr-defined]
AS_IT_IS = ScriptFunction.__call__
TWINS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def install() -> None:
    """From now on, functions of TorchScript look for lazy tensors among their arguments."""
    ScriptFunction.__call__ = _call


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    if not MODES and not any(map(_is_lazy, (*args, *kwargs.values()))):
        return AS_IT_IS(function, *args, **kwargs)
    given = _by_position(function, args, kwargs)
    if given is None:  # the call fails, in TorchScript's words
        return AS_IT_IS(function, *args, **kwargs)
    twin = TWINS.get(function)
    if twin is None:
        graph = function.inlined_graph.copy()
        twin = torch._C._create_function_from_graph(function.name, graph)
        TWINS[function] = twin
    with torch.jit.optimized_execution(False):
        return AS_IT_IS(twin, *given)


def _is_lazy(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_lazy, value))
    if isinstance(value, dict):
        return any(map(_is_lazy, value.values()))
    return isinstance(value, LazyTensor)


def _by_position(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any] | None:
    """All arguments in order, defaults too: a function made of a graph has none."""
    wanted = function.schema.arguments
    given, used = list(args), 0
    for argument in wanted[len(args) :]:
        if argument.name in kwargs:
            given.append(kwargs[argument.name])
            used += 1
        elif argument.has_default_value():
            given.append(argument.default_value)
        else:
            return None
    return given if len(given) == len(wanted) and used == len(kwargs) else None
