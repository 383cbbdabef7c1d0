"""Nested tensors of the jagged layout: wrapper subclasses of which one size is a *nested int*.

Such a tensor is made of `_values`, `_offsets` and perhaps `_lengths` and two tensors of no element
whose first size is a sequence length. Its ragged size is an object that stands for the tensor of
offsets (of lengths, where it has them), the *ragged source*: it equals the ragged size of another
nested tensor where both have the same ragged source, and no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nested._internal import nested_tensor
from torch.nested._internal.nested_int import NestedIntNode

Jagged: type[torch.Tensor] = nested_tensor.NestedTensor
SEQUENCE_LENGTHS = ("_min_seqlen_tensor", "_max_seqlen_tensor")


def is_jagged(value: Any) -> bool:
    """True for a nested tensor of the jagged layout."""
    return type(value) is Jagged


def ragged_source(value: Any) -> torch.Tensor:
    """The tensor that its ragged size stands for."""
    source: torch.Tensor = value._offsets if value._lengths is None else value._lengths
    return source


def ragged_size(value: Any) -> torch.SymInt:
    """Its ragged size."""
    size: torch.SymInt = value._size[value._ragged_idx]
    return size


def is_nested_int(number: Any) -> bool:
    """True for a ragged size, or a multiple of one."""
    return isinstance(number, torch.SymInt) and number.node.is_nested_int()


def nested_key(number: torch.SymInt) -> tuple[int, int]:
    """Equal for ragged sizes that are equal: which it is, and its factor."""
    node = number.node
    if not isinstance(node, NestedIntNode) and getattr(node, "hint", None) is not None:
        node = node.hint.node  # a symbol, whose value is a ragged size
    return node.nested_int(), node.nested_int_coeff()


@dataclass(frozen=True, slots=True)
class Ragged:
    """All of a nested tensor but its values."""

    offsets: torch.Tensor
    lengths: torch.Tensor | None
    cache: dict[str, Any]

    @staticmethod
    def of(value: Any) -> Ragged | None:
        """None for what is no nested tensor."""
        if not is_jagged(value):
            return None
        return Ragged(value._offsets, value._lengths, value._metadata_cache)

    def around(self, values: torch.Tensor, ragged_idx: int) -> Any:
        """The nested tensor of other values."""
        make: Any = Jagged
        return make(values, self.offsets, lengths=self.lengths, _ragged_idx=ragged_idx,
                    _metadata_cache=self.cache)


def of_parts(parts: Mapping[str, torch.Tensor], ragged_idx: int) -> Any:
    """The nested tensor of its inner tensors, by name."""
    cache = {
        name.removeprefix("_").removesuffix("_tensor"): parts[name]
        for name in SEQUENCE_LENGTHS if name in parts
    }
    ragged = Ragged(parts["_offsets"], parts.get("_lengths"), cache)
    return ragged.around(parts["_values"], ragged_idx)


def new_nested_int(number: int) -> torch.SymInt:
    """A ragged size of this number."""
    return torch.SymInt(NestedIntNode(number, 1))  # type: ignore[arg-type]


def keep_ragged_size(source: torch.Tensor, size: torch.SymInt) -> None:
    """From now on nested tensors with these offsets (or lengths) have this ragged size."""
    nested_tensor._tensor_symint_registry[source] = size


def said_by(value: Any) -> tuple[Any, ...]:
    """What a graph assumes of a nested tensor beside its inner tensors."""
    cache = value._metadata_cache
    return (value._ragged_idx, value._lengths is None, cache.get("min_seqlen") is None,
            cache.get("max_seqlen") is None, len(value._size))
