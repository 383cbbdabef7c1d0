"""Functions without Python code that the user compiles by themselves: C functions, torch's own ones
behind wrappers. What has no frame of its own is called by a function that has one, which is traced.
What torch's own compiler has made is compiled as what it was made of.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from dynamo.base.decisions import decisions
from dynamo.frames.libraries import OWN, library_of
from dynamo.symbolic.python.functions import NESTED_REGION, NESTED_REGIONS_FILE

MODULE_OF_TORCH = ".".join(("torch", "_dynamo", "eval_frame", "OptimizedModule"))
WITHOUT_FRAMES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)


def needs_caller(function: Any) -> bool:
    """True for C functions, and for functions of torch and the like behind wrappers.

    >>> needs_caller(torch.sin), needs_caller(torch.nn.functional.gelu), needs_caller(needs_caller)
    (True, True, False)
    """
    if isinstance(function, WITHOUT_FRAMES):
        return True
    if not isinstance(function, types.FunctionType) or not hasattr(function, "__wrapped__"):
        return False
    inner = inspect.unwrap(function)
    if not isinstance(inner, types.FunctionType):
        return isinstance(inner, WITHOUT_FRAMES)
    return library_of(inner.__code__, inner.__globals__) not in (None, OWN)


def behind_torch(model: Any) -> Any:
    """What torch's own compiler was asked to compile, for what it has made of a function or module;
    all else as it is. One that torch.compiler.disable(recursive=False) made is skipped from now on.
    """
    kind = type(model)
    if f"{kind.__module__}.{kind.__name__}" == MODULE_OF_TORCH:
        disabled = type(model.dynamo_ctx).__name__ == "DisableContext"
        return model if disabled else behind_torch(model._orig_mod)
    if kind is not types.FunctionType:
        return model
    marks = model.__dict__
    if NESTED_REGION in marks and model.__code__.co_filename.endswith(NESTED_REGIONS_FILE):
        return behind_torch(marks[NESTED_REGION])
    if marks.get("_torchdynamo_wrapper_id") != id(model):  # copied by functools.wraps
        return model
    original = marks["_torchdynamo_orig_callable"]
    if "_torchdynamo_disable" not in marks:
        return behind_torch(original)
    if not marks.get("_torchdynamo_disable_recursive", True) and hasattr(original, "__code__"):
        decisions.keep("skipped", original.__code__)
    return model


def caller_of(function: Any) -> Callable[..., Any]:
    """A Python function that does nothing but call this one, under its name."""

    call = plain_caller(function)
    name = getattr(function, "__name__", None) or type(function).__name__
    call.__code__ = code_called(name)
    call.__name__ = call.__qualname__ = name
    return call


def plain_caller(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


@functools.lru_cache(256)
def code_called(name: str) -> types.CodeType:
    """The code of callers of that name: one, as entries belong to code objects."""
    return CODE.replace(co_name=name, co_qualname=name)


def is_caller(code: types.CodeType) -> bool:
    """True for the code of what `caller_of` makes."""
    return code.co_filename == CODE.co_filename and code.co_code == CODE.co_code


CODE = plain_caller(len).__code__
