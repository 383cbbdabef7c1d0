"""Example inputs of a graph as plain data, and tensors that are like them made of it.

In: the real inputs. Out: rows, and from them substitutes: other tensors with the same dtype, sizes,
strides, history and places in storages. Exists because a compile that goes on while the program
runs must not see what the program changes meanwhile (gradients come, weights are given other data),
and because another process has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import (  # type: ignore[attr-defined]
    CreationMeta,
    _get_creation_meta,
    _set_creation_meta,
)

from dynamo.base.value_types import NAMED, VALUES

PLAIN = (*VALUES, *NAMED)


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor. storage: its number; grad: that of a leaf; view: how it was made if
    it is one, else ""."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    parameter: bool
    requires_grad: bool
    leaf: bool
    view: str
    inference: bool
    grad: TensorRow | None


@dataclass(frozen=True, slots=True)
class Examples:
    """places: of each input, the number of its tensor, or the value itself in a tuple of one.
    storages: (bytes, device) of each."""

    places: tuple[Any, ...]
    tensors: tuple[TensorRow, ...]
    storages: tuple[tuple[int, torch.device], ...]


MakeStorage = Callable[[int], torch.UntypedStorage]


class _Reader:
    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.rows: list[TensorRow] = []
        self.storages: list[torch.UntypedStorage] = []
        self.places: dict[int, int] = {}

    def place(self, value: Any) -> Any:
        """Errors: Unlike."""
        if not isinstance(value, torch.Tensor):
            if type(value) not in PLAIN:
                raise Unlike(type(value).__name__)
            return (value,)
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.rows)
            self.rows.append(self.row(value))
        return number

    def row(self, value: torch.Tensor) -> TensorRow:
        if not is_plain(value):
            raise Unlike(type(value).__name__)
        storage = value.untyped_storage()
        number = self.places.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
        grad = value.grad if value.is_leaf else None
        return TensorRow(
            number, value.dtype, tuple(value.shape), value.stride(), int(value.storage_offset()),
            isinstance(value, torch.nn.Parameter), value.requires_grad, value.is_leaf,
            _creation(value), value.is_inference(), None if grad is None else self.row(grad))


class Unlike(Exception):
    """An input that no substitute is like."""


def is_plain(value: torch.Tensor) -> bool:
    """True for a tensor of which a row tells all that a compile may ask for."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    if value.is_quantized or value.is_conj() or value.is_neg() or value._is_zerotensor():
        return False
    if value.device.type not in ("cpu", "cuda") or value._backward_hooks or value.output_nr:
        return False
    hooks = getattr(value, "_post_accumulate_grad_hooks", None)
    return not hooks and not (value.requires_grad and value.retains_grad)


def snapshot(values: Sequence[Any]) -> tuple[Examples, MakeStorage]:
    """The rows of these inputs, and what gives their own storages. Errors: Unlike."""
    reader = _Reader()
    places = tuple([reader.place(value) for value in values])
    storages = tuple([(storage.nbytes(), storage.device) for storage in reader.storages])
    return Examples(places, tuple(reader.rows), storages), reader.storages.__getitem__


def stand_ins(values: Sequence[Any]) -> list[Any]:
    """Inputs like these, in the same memory. Errors: Unlike."""
    examples, storage_of = snapshot(values)
    made = make(examples, storage_of)
    for value, other in zip(values, made, strict=True):
        if isinstance(value, torch.Tensor) and facts(value) != facts(other):
            raise Unlike(f"{facts(value)}, not {facts(other)}")
    return made


def facts(value: torch.Tensor) -> tuple[Any, ...]:
    """What a substitute must have in common with its tensor, beside what a row holds."""
    return (type(value), value.requires_grad, value.is_leaf, _creation(value),
            value.is_inference(), value.shape, value.stride(), value.storage_offset())


def _creation(value: torch.Tensor) -> str:
    """Under which modes a view was made, as writes into it ask; "" for what is no view."""
    if not value._is_view():
        return ""
    meta: str = _get_creation_meta(value).name
    return meta


def make(examples: Examples, storage_of: MakeStorage) -> list[Any]:
    """Tensors of these rows. storage_of: gives the storage of a number."""
    made = [_tensor(row, examples, storage_of) for row in examples.tensors]
    return [made[place] if type(place) is int else place[0] for place in examples.places]


def _tensor(row: TensorRow, examples: Examples, storage_of: MakeStorage) -> torch.Tensor:
    device = examples.storages[row.storage][1]

    def fresh() -> torch.Tensor:
        empty = torch.empty(0, dtype=row.dtype, device=device)
        return empty.set_(storage_of(row.storage), row.offset, row.size, row.stride)  # type: ignore[call-overload,no-any-return]

    if row.inference:
        with torch.inference_mode():
            return fresh()
    with torch.inference_mode(False):
        if row.view:
            made = _view(row, fresh)
        elif row.requires_grad and not row.leaf:
            made = _computed(fresh)
        else:
            with torch.no_grad():
                made = fresh()
            made.requires_grad_(row.requires_grad)
            if row.parameter:
                made = torch.nn.Parameter(made, row.requires_grad)
        if row.grad is not None:
            made.grad = _tensor(row.grad, examples, storage_of)
    return made


def _view(row: TensorRow, fresh: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.enable_grad():
        base = fresh() if not row.requires_grad else _computed(fresh)
        made = base.as_strided(row.size, row.stride, row.offset)
    if row.parameter or row.requires_grad and row.leaf:
        raise Unlike("a leaf that is a view")
    _set_creation_meta(made, getattr(CreationMeta, row.view))
    return made


class _Computed(torch.autograd.Function):
    """Gives what `fresh` makes a history."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, leaf: torch.Tensor, fresh: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        return fresh()


def _computed(fresh: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.enable_grad():
        made = _Computed.apply(torch.empty(0, requires_grad=True), fresh)
    return made  # type: ignore[no-any-return]
