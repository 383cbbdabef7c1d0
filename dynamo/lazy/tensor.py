"""The tensor that programs hold: metadata in C++, and a `Value` for what it stands for.

It sits below autograd: `loss.backward()` calls the same dispatch as the forward did, so that a
backward is traced like anything else (LazyTensor paper, section 4). What reads memory without a
dispatch (`numpy`, `tolist`, `data_ptr`, pickling) is overridden here, and ends the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo.lazy.values import Value, facts_of


class Hooks:
    """What is known only after this module: set by `lazy.recorder`."""

    dispatch: Callable[..., Any]
    real: Callable[..., torch.Tensor]
    settle: Callable[[], None]


class LazyTensor(torch.Tensor):
    """A tensor whose value is computed when somebody looks at it; made by `lazy.tensor`, or by
    operations in `lazy.mode`."""

    _lazy: Value

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return Hooks.dispatch(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    # -- looks -----------------------------------------------------------------------------------

    def numpy(self, *, force: bool = False) -> Any:
        """As `Tensor.numpy`."""
        real = Hooks.real(self, "numpy")
        with _disable_current_modes():
            if self.requires_grad and not force:
                return real.detach().requires_grad_().numpy()  # raises
            return real.numpy(force=force)

    def tolist(self) -> Any:
        """As `Tensor.tolist`."""
        real = Hooks.real(self, "tolist")
        with _disable_current_modes():
            return real.tolist()

    def data_ptr(self) -> int:
        """The address of the memory that the tensor has now."""
        return Hooks.real(self, "data_ptr").data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage of the memory that the tensor has now."""
        return Hooks.real(self, "untyped_storage").untyped_storage()

    def storage(self) -> Any:
        """As `Tensor.storage`."""
        return Hooks.real(self, "storage").storage()

    def _typed_storage(self) -> Any:
        return Hooks.real(self, "storage")._typed_storage()

    def __array__(self, dtype: Any = None) -> Any:
        if dtype is None:
            return self.numpy()
        return self.numpy().astype(dtype, copy=False)

    def __dlpack__(self, *args: Any, **options: Any) -> Any:
        real = Hooks.real(self, "dlpack")
        with _disable_current_modes():
            return real.__dlpack__(*args, **options)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        real = Hooks.real(self, "print")
        with _disable_current_modes():
            text = repr(real)
        if self.grad_fn is not None:
            return f"{text[:-1]}, grad_fn=<{self.grad_fn.name()}>)"
        return f"{text[:-1]}, requires_grad=True)" if self.requires_grad else text

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if self.dim() == 0:
            return self.item().__format__(spec)
        return object.__format__(self, spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        real = Hooks.real(self, "a copy")
        with _disable_current_modes():
            same = real.detach().requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                same = torch.nn.Parameter(same, self.requires_grad)
            return same.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyTensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        with torch.no_grad():
            copy: Any = self.detach().clone()
        copy.requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copy._is_param = True
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copy
        return copy  # type: ignore[no-any-return]

    def share_memory_(self) -> Any:
        """Refused: other processes would not see what a trace still has to write."""
        raise RuntimeError("lazy tensors can't be shared; use lazy.eager(x) for the tensor itself")

    # -- swaps -----------------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """As `Tensor.data`."""
        return torch._C.TensorBase.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: Any) -> None:
        Hooks.settle()
        if type(other) is not LazyTensor:
            other = Hooks.dispatch(torch.ops.aten.clone.default, (wrap_real(other),), {})
        torch._C.TensorBase.data.__set__(self, other)  # type: ignore[attr-defined]
        self._lazy = other._lazy


LazyTensor.__name__ = "Tensor"  # errors that operations raise name their arguments' classes
_make = torch.Tensor._make_wrapper_subclass


def wrap(value: Value) -> LazyTensor:
    """A tensor that stands for the value."""
    facts = value.facts
    tensor = _make(
        LazyTensor, facts.size, facts.stride, facts.offset,
        dtype=facts.dtype, device=facts.device,
    )  # fmt: skip
    tensor._lazy = value
    if facts.bits:
        torch._C._set_conj(tensor, facts.is_conj)
        torch._C._set_neg(tensor, facts.is_neg)
    return tensor  # type: ignore[no-any-return]


def wrap_real(real: torch.Tensor) -> LazyTensor:
    """A tensor that stands for an ordinary one, whose memory it shares."""
    return wrap(Value(facts_of(real), real.detach(), borrowed=True))
