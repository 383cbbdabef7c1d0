"""Functions without Python code that the user compiles by themselves: C functions, torch's own ones
behind wrappers. What has no frame of its own is called by a function that has one, which is traced.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from dynamo.libraries import OWN, library_of

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


def caller_of(function: Any) -> Callable[..., Any]:
    """A Python function that does nothing but call this one, under its name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    name = getattr(function, "__name__", None) or type(function).__name__
    call.__code__ = call.__code__.replace(co_name=name, co_qualname=name)
    call.__name__ = call.__qualname__ = name
    return call


def is_caller(code: types.CodeType) -> bool:
    """True for the code of what `caller_of` makes."""
    return code.co_filename == CODE.co_filename and code.co_code == CODE.co_code


CODE = caller_of(len).__code__
