"""From a launcher's description with extents to one with numbers, for the sizes of a call.

In: the `spec` of a wrapper, where sizes, strides, offsets and arguments may be extents, and the
`Sizes` they are made of. Out: `Binder`, two Python functions that were generated once: whether all
assumptions hold at some sizes, and the description for them, memory plan included.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor.ir.extent import Extent, Real, Sizes
from inductor.scheduler.memory import pack_arena

# What the texts of extents and reals call.
k_floordiv_index, k_mod_index, k_real, k_root = operator.floordiv, operator.mod, float, math.sqrt
FUNCTIONS = {
    "k_floordiv_index": k_floordiv_index, "k_mod_index": k_mod_index, "k_real": k_real,
    "k_root": k_root,
}  # fmt: skip
WORD = re.compile(r"\w+")


class Binder:
    """See the top of the file."""

    def __init__(self, spec: dict[str, Any], sizes: Sizes) -> None:
        arguments = ", ".join(sizes.symbols)
        self.holds = where_it_holds(sizes)
        lives = spec["lives"]
        self._slots = [life[0] for life in lives]
        self._steps = spec["steps"]  # texts, in which a symbol's name is none, and two numbers
        sizes_of_steps = _spell([row[-2:] for row in self._steps], {})
        self._sizes_of_steps = _compiled(f"lambda {arguments}: {sizes_of_steps}", {})
        spans = _spell([life[1:] for life in lives], {})
        self._lives = _compiled(f"lambda {arguments}: {spans}", {})
        place_of = {life[0]: f"p[{number}]" for number, life in enumerate(lives)}
        constants: dict[str, Any] = {}
        parts: list[str] = []
        for key, value in spec.items():
            if key == "slots":
                rows = [_spell_slot(row, place_of.get(n), constants) for n, row in enumerate(value)]
                parts.append(f"'slots': [{', '.join(rows)}]")
            elif key not in ("lives", "arena_bytes", "steps"):
                parts.append(f"{key!r}: {_spell(value, constants)}")
        text = f"lambda p, {arguments}: {{{', '.join(parts)}}}"
        self._spec = _compiled(text, constants)
        names = set(WORD.findall(f"{spans} {' '.join(parts)}"))
        # Whether the symbols are nothing but numbers that kernels take: positions, say.
        self.is_fixed = names.isdisjoint(sizes.symbols)

    def bind(self, values: Sequence[int]) -> dict[str, Any]:
        """The description at these values of the symbols."""
        spec = self._plan(values)
        place = ("constant", len(spec["constants"]), torch.int64, (len(values),), (1,))
        spec["slots"].append(place)
        spec["constants"].append(torch.tensor(values, dtype=torch.int64))
        return spec

    def bind_any(self, values: Sequence[int], inputs: int) -> dict[str, Any]:
        """The description for all values, where it is fixed: they are one more input behind the
        `inputs` ones."""
        spec = self._plan(values)
        spec["slots"].append(("input", inputs, torch.int64, (len(values),), (1,)))
        return spec

    def _plan(self, values: Sequence[int]) -> dict[str, Any]:
        spans = self._lives(*values)
        positions, total = pack_arena(spans)
        spec: dict[str, Any] = self._spec(positions, *values)
        lives = [(slot, *span) for slot, span in zip(self._slots, spans, strict=True)]
        sizes = self._sizes_of_steps(*values)
        steps = [(*row[:-2], *own) for row, own in zip(self._steps, sizes, strict=True)]
        spec.update(arena_bytes=total, lives=lives, steps=steps, rows=self._steps)
        return spec


def where_it_holds(sizes: Sizes) -> Callable[..., bool]:
    """Whether all assumptions so far hold, as a function of the symbols."""
    conditions = " and ".join(sizes.assumptions) or "True"
    holds: Callable[..., bool] = _compiled(f"lambda {', '.join(sizes.symbols)}: {conditions}", {})
    return holds


def broken_assumption(sizes: Sizes, values: Sequence[int]) -> str:
    """The first assumption that does not hold at these values; "" where all do."""
    scope = dict(zip(sizes.symbols, values, strict=True))
    return next((text for text in sizes.assumptions if not _compiled(text, scope)), "")


def _compiled(text: str, constants: dict[str, Any]) -> Any:
    return eval(text, {**FUNCTIONS, **constants})  # noqa: S307


def _spell_slot(row: tuple[Any, ...], place: str | None, constants: dict[str, Any]) -> str:
    kind, position, *rest = row
    texts = [repr(kind), place or str(position), *(_spell(item, constants) for item in rest)]
    return f"({', '.join(texts)})"


def _spell(value: Any, constants: dict[str, Any]) -> str:
    """Python text of a value; what has none gets a name in `constants`."""
    if isinstance(value, (Extent, Real, bool, int, str)) or value is None:
        return repr(value)
    if type(value) is tuple:
        return f"({''.join(f'{_spell(item, constants)}, ' for item in value)})"
    if type(value) is list:
        return f"[{', '.join(_spell(item, constants) for item in value)}]"
    name = f"c{len(constants)}"
    constants[name] = value
    return name
