"""Functional tensors with a class in Python, for programs with wrapper subclasses.

C++ functionalization wraps the results of what it runs; where an argument has a dispatch of its own
(a wrapper subclass), the result would be hidden in such a wrapper. So programs with wrapper
subclasses run on tensors of a class above it: an operation with a wrapper subclass among its
arguments is left to that class, and what its dispatch calls is functionalized here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

from dynamo.aot.records import Unsupported
from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.base.subclasses import is_elsewhere, is_foreign

_functional: Any = torch  # torch's stubs lack its private functions
KEY = torch._C.DispatchKey.Functionalize
aten = torch.ops.aten
OF_MASK = {"dtype": torch.bool}
LIFTS = frozenset((aten.lift_fresh.default, aten.lift.default))
BITS = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate).add(
    torch._C.DispatchKey.Negative)


class FunctionalTensor(torch.Tensor):
    """A tensor of a program that is recorded; functional: the C++ one below it."""

    functional: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(inner: torch.Tensor) -> FunctionalTensor:
        """The tensor over a C++ functional tensor."""
        made: FunctionalTensor = torch.Tensor._make_wrapper_subclass(
            FunctionalTensor, inner.shape, inner.stride(), inner.storage_offset(), None,
            inner.dtype, torch.strided, inner.device, False, False,
        )  # fmt: skip
        made.functional = inner
        if inner.dtype.is_complex and inner.is_conj():
            torch._C._set_conj(made, True)
        if inner.is_neg():
            torch._C._set_neg(made, True)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):
            return NotImplemented
        raise Unsupported(f"{func} outside of the recording")


class FunctionalMode(OwnDispatchMode):
    """Sends what runs on such tensors through C++ functionalization."""

    def _without_dropout(self, types: Any, given: Any) -> Any:
        """What a dropout gives that is not for training: its argument on a CPU, else a copy."""
        same = given if inner_of(given).device.type == "cpu" else (
            self.__torch_dispatch__(aten.clone.default, types, (given,)))
        return same, self.__torch_dispatch__(aten.ones_like.default, types, (given,), OF_MASK)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):
            return NotImplemented
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # C++ asks it of fakes with symbolic sizes
            return inner_of(args[0]).device
        if is_elsewhere():
            return func(*args, **kwargs)
        if func is aten.native_dropout.default and args[2] is False:
            return self._without_dropout(types, args[0])
        known: dict[int, FunctionalTensor] = {}

        def unwrap(tensor: FunctionalTensor) -> torch.Tensor:
            known[id(tensor.functional)] = tensor
            return tensor.functional

        given, named = pytree.tree_map_only(FunctionalTensor, unwrap, (args, kwargs))
        include = torch._C._dispatch_tls_local_include_set().add(KEY)
        exclude = torch._C._dispatch_tls_local_exclude_set().remove(KEY) - BITS
        with torch._C._ForceDispatchKeyGuard(include, exclude):
            before = _functional._functionalize_enable_reapply_views(True)
            try:
                result = func._op_dk(KEY, *given, **named)
            finally:
                _functional._functionalize_enable_reapply_views(before)
        wrapped = pytree.tree_map_only(  # what changes nothing gives the same object
            torch.Tensor, lambda tensor: known[id(tensor)] if id(tensor) in known else (
                wrap(tensor)), result)
        leaves = pytree.tree_leaves(wrapped)
        if func in LIFTS or not any(isinstance(leaf, FunctionalTensor) for leaf in leaves):
            return wrapped
        if torch.Tag.inplace_view in func.tags and func is not aten.set_.source_Tensor:
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def wrap(tensor: torch.Tensor) -> torch.Tensor:
    """The Python tensor over a C++ functional one; others stay."""
    return FunctionalTensor.of(tensor) if torch._is_functional_tensor(tensor) else tensor


def inner_of(tensor: torch.Tensor) -> torch.Tensor:
    """The C++ functional tensor of a value of the program."""
    return tensor.functional if type(tensor) is FunctionalTensor else tensor


def value_of(tensor: torch.Tensor) -> Any:
    """The present value (a fake) of a functional tensor."""
    functional = inner_of(tensor)
    _functional._sync(functional)
    return _functional._from_functional_tensor(functional)
