"""The tables of a package as C++: what `cpp/tables.h` declares.

In: a `Code`, names and metadata of the arguments, where weights lie. Out: the text of `tables.cpp`.
All sizes, strides and offsets are numbers of one list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor.package.graph import ARGUMENT, NONE, WEIGHT, Code, Seen

ALIGNMENT = 64
# As torch numbers them; `model.h` and `runtime.cpp` know these.
DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
    torch.float32: 6, torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11,
    torch.bfloat16: 15,
}  # fmt: skip
KINDS = {ARGUMENT: "kArgument", WEIGHT: "kWeight", "arena": "kArena", "output": "kOutput",
         "extern": "kExtern", "sizes": "kSizes", NONE: "kNone"}  # fmt: skip


class NoType(Exception):
    """A dtype that packages don't know."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor of the program's call."""

    name: str
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    written: bool


def weight_places(weights: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """The byte at which each begins, and all bytes."""
    places, at = [], 0
    for weight in weights:
        places.append(at)
        at += -(-span_of(weight) * weight.itemsize // ALIGNMENT) * ALIGNMENT
    return places, at


def span_of(tensor: torch.Tensor) -> int:
    """Elements from the first to the last."""
    if tensor.numel() == 0:
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def print_tables(
    name: str, code: Code, arguments: Sequence[Argument], machine: str, processor: str,
) -> str:
    """The text without the package's id, for which `PACKAGE_ID` stands."""
    writer = _Writer(code)
    places, weight_bytes = weight_places(code.weights)
    slots = [writer.slot(row, places) for row in code.spec["slots"]]
    results = [writer.seen(result) for result in code.results if isinstance(result, Seen)]
    given = [f"{{{_text(one.name)}, {writer.meta(one.dtype, one.size, one.stride)}, "
             f"{str(one.written).lower()}}}" for one in arguments]  # fmt: skip
    fields = [
        "PACKAGE_ID", _text(name), _text(machine), _text(processor), weight_bytes,
        code.spec["arena_bytes"], "arguments", len(given), "slots", len(slots), "nullptr", 0,
        "results", len(results), "numbers", len(writer.numbers), "nullptr", 0, "nullptr", 0,
        "nullptr", "nullptr", "nullptr", 0, "nullptr", "nullptr", "nullptr", "nullptr", '""',
    ]  # fmt: skip
    return "\n".join([
        '#include "tables.h"', "namespace package {", "namespace {",
        _array("Argument", "arguments", given), _array("Slot", "slots", slots),
        _array("View", "results", results), _array("int64_t", "numbers", writer.numbers),
        "}  // namespace", f"const Tables tables = {{{', '.join(map(str, fields))}}};",
        "}  // namespace package", "",
    ])  # fmt: skip


class _Writer:
    """Collects the numbers."""

    def __init__(self, code: Code) -> None:
        self.numbers: list[Any] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def at(self, numbers: tuple[Any, ...]) -> int:
        """Where these stand in the list."""
        if numbers not in self._known:
            self._known[numbers] = len(self.numbers)
            self.numbers += numbers
        return self._known[numbers]

    def meta(self, dtype: torch.dtype, size: Sequence[Any], stride: Sequence[Any]) -> str:
        """Errors: NoType."""
        if dtype not in DTYPES:
            raise NoType(str(dtype))
        return f"{{{DTYPES[dtype]}, {len(size)}, {self.at((*size, *stride))}}}"

    def slot(self, row: tuple[Any, ...], places: list[int]) -> str:
        kind, position, *meta = row
        if kind == WEIGHT:
            position = places[position]
        elif kind == "arena":
            position = self.at((position,))
        return f"{{Kind::{KINDS[kind]}, {position}, {self.meta(*meta)}}}"

    def seen(self, view: Seen) -> str:
        meta = self.meta(view.dtype, view.size, view.stride)
        return f"{{{view.slot}, {self.at((view.offset,))}, {meta}}}"


def _array(kind: str, name: str, rows: Sequence[Any]) -> str:
    """An array, which in C++ has at least one element."""
    if not rows:
        return f"const {kind}* const {name} = nullptr;"
    return f"const {kind} {name}[] = {{\n  {', '.join(map(str, rows))}\n}};"


def _text(text: str) -> str:
    """A literal of C++."""
    return json.dumps(text)
