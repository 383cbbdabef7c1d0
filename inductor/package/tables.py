"""The tables of a package as C++: what `cpp/tables.h` declares.

In: a `Code` for each set of sizes, names and metadata of the arguments, the weights. Out: the text
of `tables.cpp`. All sizes, strides and offsets are numbers of one list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.base.dtype_numbers import NUMBERS
from inductor.package.cpu_graph import ARGUMENT, NONE, WEIGHT, Code, Seen, span_of
from inductor.package.gpu_graph import GpuCode
from inductor.package.gpu_kernels import Binary, Function

ALIGNMENT = 64  # bytes, as `scheduler/memory.py` has it
CUBINS = (
    'asm(".section .rodata\\n.global dynamo_package_cubins\\n.hidden dynamo_package_cubins\\n"\n'
    '    ".balign 64\\ndynamo_package_cubins:\\n.incbin \\"kernels.bin\\"\\n.previous\\n");'
)
KINDS = {ARGUMENT: "kArgument", WEIGHT: "kWeight", "arena": "kArena", "output": "kOutput",
         NONE: "kNone"}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Variant:
    """The code for one set of sizes."""

    code: Code | GpuCode
    arguments: Sequence[Argument]


def weight_places(weights: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """The byte at which each begins, and all bytes."""
    places, at = [], 0
    for weight in weights:
        places.append(at)
        at += -(-span_of(weight) * weight.itemsize // ALIGNMENT) * ALIGNMENT
    return places, at


def print_tables(
    name: str, variants: Sequence[Variant], weights: Sequence[torch.Tensor], machine: str,
    processor: str,
) -> str:
    """The text without the package's id, for which `PACKAGE_ID` stands."""
    places, weight_bytes = weight_places(weights)
    parts = [_print_variant(n, variant, places) for n, variant in enumerate(variants)]
    entries = [f'extern "C" int {entry_name(n)}(packaged::Runtime*);'
               for n, one in enumerate(variants) if isinstance(one.code, Code)]  # fmt: skip
    first = variants[0]
    results = len([one for one in first.code.results if isinstance(one, Seen)])
    fields = ["PACKAGE_ID", *map(_text, (name, machine, processor)), weight_bytes,
              len(first.arguments), results, "variants", len(variants)]  # fmt: skip
    return "\n".join([
        '#include "tables.h"', *entries, "namespace packaged {", "namespace {",
        *[arrays for arrays, _ in parts],
        _array("Tables", "variants", [row for _, row in parts]), "}  // namespace",
        f"const Package package = {{{', '.join(map(str, fields))}}};", "}  // namespace packaged",
        "",
    ])  # fmt: skip


def entry_name(variant: int) -> str:
    """The function of a variant."""
    return f"package_graph_{variant}"


def _print_variant(number: int, variant: Variant, places: list[int]) -> tuple[str, str]:
    """Arrays, and the row of `variants` that names them."""
    code, writer = variant.code, _Writer()
    slots = [writer.slot(row, places) for row in code.spec["slots"]]
    results = [writer.seen(result) for result in code.results if isinstance(result, Seen)]
    given = [f"{{{_text(one.name)}, {writer.meta(one.dtype, one.size, one.stride)}, "
             f"{str(one.written).lower()}}}" for one in variant.arguments]  # fmt: skip
    rows = {"arguments": ("Argument", given), "slots": ("Slot", slots),
            "results": ("View", results), "numbers": ("int64_t", writer.numbers)}  # fmt: skip
    arrays = [_array(kind, f"{name}{number}", items) for name, (kind, items) in rows.items()]
    entry = f"&{entry_name(number)}" if isinstance(code, Code) else "nullptr"
    fields = (entry, code.spec["arena_bytes"], f"arguments{number}",
              f"slots{number}", len(slots), f"results{number}", f"numbers{number}")  # fmt: skip
    return "\n".join(arrays), f"{{{', '.join(map(str, fields))}}}"


def print_launches(
    variants: Sequence[GpuCode], binaries: Mapping[Function, Binary], capability: int
) -> tuple[str, bytes]:
    """What `cpp/gpu_tables.h` declares, and the cubins, which the text takes from a file
    `kernels.bin` beside the headers."""
    numbers = {function: number for number, function in enumerate(binaries)}
    cubins, rows = bytearray(), []
    for one in binaries.values():
        cubins += bytes(-len(cubins) % ALIGNMENT)
        rows.append(f"{{{_text(one.name)}, {len(cubins)}, {len(one.cubin)}, {one.threads}, "
                    f"{one.shared}}}")
        cubins += one.cubin
    arrays, works = [], []
    for number, code in enumerate(variants):
        launches, operands = [], list[str]()
        for function, grid, taken in code.launches:
            launches.append(f"{{{numbers[function]}, {{{', '.join(map(str, grid))}}}, "
                            f"{len(operands)}, {len(taken)}}}")
            operands += [f"{{{slot}, {offset}}}" for slot, offset in taken]
        arrays += [_array("Launch", f"launches{number}", launches),
                   _array("Operand", f"operands{number}", operands)]
        works.append(f"{{launches{number}, {len(launches)}, operands{number}}}")
    text = "\n".join([
        '#include "gpu_tables.h"', CUBINS, "namespace packaged {", "namespace {", *arrays,
        "}  // namespace", f"const Work works[] = {{{', '.join(works)}}};",
        f"const Kernel kernels[] = {{{', '.join(rows) or '{}'}}};",
        f"const int kernel_count = {len(rows)};", f"const int capability = {capability};",
        "}  // namespace packaged", "",
    ])  # fmt: skip
    return text, bytes(cubins) or b"\0"


class _Writer:
    """Collects the numbers."""

    def __init__(self) -> None:
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
        if dtype not in NUMBERS:
            raise NoType(str(dtype))
        return f"{{{NUMBERS[dtype]}, {len(size)}, {self.at((*size, *stride))}}}"

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
