"""`torch.autograd.Function.apply` as it lies in its class: newer torch has it built in.

    >>> class Double(torch.autograd.Function): pass
    >>> is_apply(Double.apply), is_apply(torch.sin)
    (True, False)
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch


def unbound(method: Any, owner: type) -> Callable[..., Any]:
    """What a class method is made of: a function, or a method of a built-in class."""
    if isinstance(method, types.MethodType):
        return method.__func__
    found = next(base.__dict__[method.__name__] for base in owner.__mro__
                 if method.__name__ in base.__dict__)
    assert isinstance(found, types.ClassMethodDescriptorType), found
    return found


AUTOGRAD_FUNCTION = "autograd_function"  # on a function of a graph: the class that it applies
APPLY = unbound(torch.autograd.Function.apply, torch.autograd.Function)


def is_apply(value: Any) -> bool:
    """True for `SomeFunction.apply`, of a class that has no other."""
    receiver = getattr(value, "__self__", None)
    return (isinstance(value, types.MethodType | types.BuiltinMethodType)
            and isinstance(receiver, type) and issubclass(receiver, torch.autograd.Function)
            and value.__name__ == "apply" and unbound(value, receiver) is APPLY)
