"""`torch.autograd.Function.apply` as it lies in its class: newer torch has it built in.

    >>> class Double(torch.autograd.Function): pass
    >>> is_apply(Double.apply), is_apply(torch.sin)
    (True, False)
"""

from __future__ import annotations

import sys
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


# On a function of a graph: the class that it applies, and whether it calls `torch.compile`.
AUTOGRAD_FUNCTION, COMPILES = "autograd_function", "calls_torch_compile"
RUNS_PROGRAM = "_runs_program"  # on a function of a graph that calls code of the program
APPLY = unbound(torch.autograd.Function.apply, torch.autograd.Function)


def is_apply(value: Any) -> bool:
    """True for `SomeFunction.apply`, of a class that has no other."""
    receiver = getattr(value, "__self__", None)
    return (isinstance(value, types.MethodType | types.BuiltinMethodType)
            and isinstance(receiver, type) and issubclass(receiver, torch.autograd.Function)
            and value.__name__ == "apply" and unbound(value, receiver) is APPLY)


def apply_in_graph(function: type[torch.autograd.Function], compiles: bool = False) -> Any:
    """A plain function that applies one autograd function. compiles: it calls `torch.compile`,
    which does nothing while the call is recorded."""

    def apply(*args: Any) -> Any:
        if compiles and torch._C._len_torch_dispatch_stack():
            with torch.compiler.set_stance("force_eager"):
                return function.apply(*args)  # type: ignore[no-untyped-call]
        return function.apply(*args)  # type: ignore[no-untyped-call]

    apply.__name__ = apply.__qualname__ = f"apply_{function.__name__}"
    apply.__module__ = __name__  # fx takes functions of torch's modules for attributes of them
    setattr(apply, RUNS_PROGRAM, True)
    setattr(apply, AUTOGRAD_FUNCTION, function)
    setattr(apply, COMPILES, compiles)
    return apply


MATERIALIZES = "materializes"  # in the attributes of a context


def note_materializing(function: type[torch.autograd.Function]) -> None:
    """From now on the contexts of a function tell whether its backward gets zeros for what is
    missing: torch has no reader of that."""
    context: Any = function._backward_cls  # type: ignore[attr-defined]
    if MATERIALIZES in vars(context):
        return

    def set_materialize_grads(ctx: Any, value: bool) -> None:
        ctx.materialize_grads = value
        ctx.__dict__[MATERIALIZES] = value

    context.set_materialize_grads = set_materialize_grads
    setattr(context, MATERIALIZES, True)


def materializes(context: Any) -> bool:
    """True where the backward of this call gets zeros for what is missing."""
    return bool(getattr(context, MATERIALIZES))


def place_of_apply(function: Any) -> tuple[str, str, bool] | None:
    """The module and the name of the class that a function of a graph applies, for another process;
    None for other functions, and where no module has the class by its name."""
    cls = getattr(function, AUTOGRAD_FUNCTION, None)
    if cls is None or _class_at(cls.__module__, cls.__qualname__) is not cls:
        return None
    return cls.__module__, cls.__qualname__, getattr(function, COMPILES)


def apply_at(module: str, name: str, compiles: bool) -> Any:
    """The function that `place_of_apply` has named. Errors: LookupError."""
    cls = _class_at(module, name)
    if not isinstance(cls, type) or not issubclass(cls, torch.autograd.Function):
        raise LookupError(f"{module} has no autograd function {name} now")
    return apply_in_graph(cls, compiles)


def _class_at(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found
