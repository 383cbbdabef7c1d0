"""The tensor class of `FakeWorld`, and the signals of operations that can't be run on such tensors.

Modules outside of this folder import both from `dynamo.shapes.fake`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynamo.base.errors import Signal
from dynamo.base.subclasses import PLAIN, is_foreign
from dynamo.shapes.facts import Facts


class DataDependent(Signal):
    """The result's shape or value depends on data (`item()`, `nonzero()`, a mask as an index)."""

    def __init__(self, op: Any) -> None:
        super().__init__(str(op))
        self.op = op


class NoFakeKernel(Signal):
    """The operation can't be run on fake tensors."""

    def __init__(self, op: Any, why: str) -> None:
        super().__init__(f"{op}: {why}")
        self.op = op
        self.why = why


class NotSymbolic(Signal):
    """An operation failed with symbolic sizes; static ones may work, or fail as eager does.

    place: the program's line, where it is known.
    """

    place = ""


class Undecided(Signal):
    """An operation needs to know of numbers what only the running program knows.

    expression: of SymPy; names: of the symbols in it.
    """

    def __init__(self, expression: Any, names: Sequence[str]) -> None:
        super().__init__(str(expression))
        self.expression = expression
        self.names = tuple(names)


class Unprintable(Signal):
    """An assumption that is no expression of the guards' language; symbols: names in it."""

    def __init__(self, expression: Any, symbols: Sequence[str]) -> None:
        super().__init__(str(expression))
        self.symbols = tuple(symbols)


class StorageToken:
    """Identity of a storage that does not exist; `meta` is a storage of the meta device."""

    __slots__ = ("_meta", "nbytes")

    def __init__(self, nbytes: int, meta: torch.UntypedStorage | None = None) -> None:
        self.nbytes = nbytes
        self._meta = meta

    def meta(self) -> torch.UntypedStorage:
        if self._meta is None:
            self._meta = torch.UntypedStorage(self.nbytes, device="meta")
        return self._meta


class Fake(torch.Tensor):
    """A tensor without data. Made by a `FakeWorld` only.

    facts: its metadata as one interned record; token: its storage's identity. world: the
        `FakeWorld`, which this module can't name.
    """

    facts: Facts
    token: StorageToken
    world: Any

    # torch's stubs know these three as plain functions of other arguments.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):
            return NotImplemented
        for arg in (*args, *(kwargs or {}).values()):
            for item in arg if isinstance(arg, (list, tuple)) else (arg,):
                if type(item) is Fake:
                    return item.world.dispatch(func, args, kwargs or {})
        raise NoFakeKernel(func, "no fake tensor among the arguments")

    def __repr__(  # type: ignore[override]
        self, *, tensor_contents: Any = None
    ) -> str:
        extra = ", requires_grad=True" if self.requires_grad else ""
        return f"Fake({self.facts}{extra})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    @property
    def meta_tensor(self) -> torch.Tensor:
        """A tensor of the meta device with these facts; fakes that alias share its storage."""
        meta: torch.Tensor | None = self.__dict__.get("_meta")
        if meta is None:
            with torch._C._DisableTorchDispatch():
                meta = _meta_over(self.token.meta(), self.facts)
            self.__dict__["_meta"] = meta
        return meta

    @property
    def storage_key(self) -> int:
        """Equal for fakes that share a storage."""
        return id(self.token)


PLAIN.add(Fake)
Fake.__name__ = "Tensor"  # errors that operations raise name their arguments' classes


def _meta_over(storage: torch.UntypedStorage, facts: Facts) -> torch.Tensor:
    with torch.no_grad():
        meta = torch.empty(0, dtype=facts.dtype, device="meta")
        meta.set_(storage, facts.offset, facts.size, facts.stride)  # type: ignore[call-overload]
        if facts.is_conj:
            torch._C._set_conj(meta, True)
        if facts.is_neg:
            torch._C._set_neg(meta, True)
    return meta
