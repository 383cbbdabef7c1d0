"""Draws a program from a seed; each statement has run in eager, so that few programs raise.

In: a seed, and which rows are drawn. Out: a `Program`.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests.fuzz_tensors.decisions import DECISIONS
from tests.fuzz_tensors.decisions import HELPERS as DECIDERS
from tests.fuzz_tensors.inputs import make_inputs
from tests.fuzz_tensors.nested import HELPERS, NESTED
from tests.fuzz_tensors.operations import TABLE
from tests.fuzz_tensors.program import PLAIN, Input, Program, Statement
from tests.fuzz_tensors.windows import WINDOWS
from tests.fuzz_tensors.writes import ALIASES as MANY_ALIASES
from tests.fuzz_tensors.writes import HELPERS as WRITERS
from tests.fuzz_tensors.writes import WRITES

FLOATS = ("float32", "float32", "float32", "float32", "float64", "float16", "bfloat16")
OTHERS = ("int64", "int64", "int32", "int16", "int8", "uint8", "bool", "bool", "complex64")
LAYOUTS = ("plain", "plain", "plain", "permuted", "expanded", "strided", "offset", "padded")
ALIASES = ("x", "x.detach()", "x[..., :1]", "x.transpose(0, -1)", "x[1:]", "x.view(-1)", "x[-1]", "x[:-1]")
SCALARS = (
    "0", "1", "2", "-3", "7", "0.5", "-1.5", "2.0", "True", "float('nan')", "float('inf')", "-float('inf')",
    "1e-3", "300", "1j", "-1", "0.0", "-0.0", "3",
)  # fmt: skip
AROUND = (PLAIN,) * 6 + (
    "torch.no_grad()", "torch.no_grad()", "torch.inference_mode()", "torch.autocast('cpu', torch.bfloat16)",
)  # fmt: skip
WITHIN = ("torch.no_grad()", "torch.enable_grad()", "torch.autocast('cpu', torch.bfloat16)", "torch.inference_mode()")
EXTENTS = (1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33)
LONGER = (4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 33)
ROWS = (5, 8, 9, 13, 16, 17, 18, 21, 33, 40)
HALVES = ("float32", "float32", "float32", "bfloat16", "float16")
# How programs are compiled, and for how many sizes, each of which costs a build; others than these: see `generate`.
DYNAMIC: dict[str, tuple[bool | None, ...]] = {"windows": (None, True), "decisions": (None, None, None, False, True)}
COUNTS = {"windows": (2, 3), "decisions": (1, 1, 1, 1, 1, 1, 2, 3)}
LIMIT = 3000
TABLES: dict[str, tuple[Any, ...]] = {"plain": TABLE, "nested": TABLE + NESTED, "windows": WINDOWS, "writes": WRITES, "decisions": DECISIONS}
HOLE = re.compile(r"{(\w+)}")
SCOPE: dict[str, Any] = {"torch": torch, "F": F, "contextlib": contextlib, "math": math}
SCOPE.update({helper.__name__: helper for helper in (*HELPERS, *WRITERS, *DECIDERS)})
Pool = dict[str, torch.Tensor]


def generate(seed: int, rows: str = "plain") -> Program:
    """rows: a key of TABLES. With "windows", sizes are longer, and more of them open; with "writes", more inputs
    share memory; with "decisions", rows are long enough for vectors, fewer sizes are symbolic, and more numbers are of
    half precision."""
    rng = random.Random(seed)
    inputs = _inputs(rng, 0.4, MANY_ALIASES) if rows == "writes" else _inputs(rng, 0.1, ALIASES, rows == "decisions")
    around = rng.choice(AROUND)
    dynamic = rng.choice(DYNAMIC.get(rows, (None, None, False, True)))
    count = 1 if dynamic is False else rng.choice(COUNTS.get(rows, (1, 1, 2, 3)))
    extents = LONGER if rows == "windows" else ROWS if rows == "decisions" else EXTENTS
    sizes = tuple(_sizes(rng, extents) for _ in range(count))
    empty = Program(seed, inputs, (), (), around, (0, 0, ""), dynamic, sizes)
    pool: Pool = dict(zip((i.name for i in inputs), make_inputs(empty, 0).values, strict=True))
    deciding = rows == "decisions"
    statements = _statements(rng, pool, around, TABLES[rows], rng.randint(3, 8 if deciding else 15))
    made = [name for s in statements for name in s.targets]
    known = [*made, *(i.name for i in inputs)]
    kept = sorted({*made[-1:], *rng.sample(known, min(rng.randint(1, 6 if deciding else 3), len(known)))})
    within = (0, 0, "")
    if rng.random() < 0.15:
        first = rng.randrange(len(statements) + 1)
        within = (first, rng.randint(first, len(statements) + 1), rng.choice(WITHIN))
    return Program(seed, inputs, tuple(statements), tuple(kept), around, within, dynamic, sizes)


def _sizes(rng: random.Random, extents: tuple[int, ...]) -> tuple[int, int, int]:
    if rng.random() < 0.05:
        return rng.choice(((0, 2, 3), (2, 0, 3), (1, 1, 1)))
    return rng.choice(extents), rng.choice(extents), rng.choice(extents)


def _inputs(rng: random.Random, shared: float, aliases: Sequence[str], real: bool = False) -> tuple[Input, ...]:
    """real: no integers, and mostly normal numbers with gradients."""
    inputs: list[Input] = []
    base = [rng.choice(("a", "b", "c", "a", "b", 1)) for _ in range(rng.randint(2 if real else 1, 3))]
    for n in range(rng.randint(1, 4)):
        shape = rng.choice((base, base, base[-1:], [1, *base[1:]], base[:-1] + [1], [], base[::-1]))
        dtype = rng.choice(HALVES if real else FLOATS if rng.random() < 0.65 else OTHERS)
        values = rng.choice(("normal", "normal", "normal", "ties", "special"))
        layout, grad, of = rng.choice(LAYOUTS), "", ""
        if dtype in FLOATS:
            grad = rng.choice(("", "leaf", "leaf", "computed") if real else ("", "", "leaf", "computed"))
        if n and rng.random() < shared:
            of, layout, grad = rng.choice(inputs).name, rng.choice(aliases), ""
        inputs.append(Input(f"v{n}", tuple(shape), dtype, layout, values, grad, of))
    return tuple(inputs)


def _statements(
    rng: random.Random, pool: Pool, around: str, table: tuple[Any, ...], wanted: int
) -> list[Statement]:
    """Statements that run on these tensors, which they add to and change."""
    found: list[Statement] = []
    number = len(pool)
    for _ in range(400):
        if len(found) == wanted:
            break
        rows, _, count = rng.choices(table, [weight for _, weight, _ in table])[0]
        text = filled(rng, rng.choice(rows), pool)
        if text is None:
            continue
        results = _tried(text, count, pool, around)
        if results is None:
            continue
        targets = tuple(f"v{number + n}" for n in range(count))
        number += count
        found.append(Statement(targets, text))
        for name, result in zip(targets, results, strict=True):
            if isinstance(result, torch.Tensor):
                pool[name] = result
    return found


def _tried(text: str, count: int, pool: Pool, around: str) -> tuple[Any, ...] | None:
    """What a statement gives; None where it raises or is too large."""
    try:
        with warnings.catch_warnings(), eval(around, SCOPE):
            warnings.simplefilter("ignore")
            result = eval(text, {**SCOPE, **pool})
    except Exception:
        return None
    results = (result,) if count == 1 else tuple(result)
    if len(results) != count:
        return None
    for one in results:
        if isinstance(one, torch.Tensor):
            if one.layout != torch.strided or one.numel() > LIMIT:
                return None
        elif not isinstance(one, (bool, int, float, complex, torch.dtype)):
            return None
    return results


def filled(rng: random.Random, row: str, pool: Pool) -> str | None:
    """The row with its holes filled, None where no tensor fits."""
    chosen: dict[str, str] = {}
    for hole in HOLE.findall(row):
        if hole not in chosen:
            value = _fill(rng, hole, chosen, pool)
            if value is None:
                return None
            chosen[hole] = value
    return row.format(**chosen)


KINDS: dict[str, Any] = {
    "x": lambda x: True,
    "z": lambda x: True,
    "f": lambda x: x.is_floating_point(),
    "i": lambda x: not (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool),
    "b": lambda x: x.dtype is torch.bool,
    "c": lambda x: x.is_complex(),
}


def _fill(rng: random.Random, hole: str, chosen: dict[str, str], pool: Pool) -> str | None:
    first = next((pool[chosen[kind]] for kind in "xficb" if kind in chosen), None)
    if hole in KINDS:
        return _picked(rng, [name for name, x in pool.items() if KINDS[hole](x)])
    if hole == "y":
        fits = [name for name, x in pool.items() if first is None or broadcasts(x, first)]
        return _picked(rng, fits if fits and rng.random() < 0.9 else list(pool))
    rank = max(first.dim() if first is not None else 1, 1)
    if hole in ("d", "e"):
        return str(rng.randrange(-rank, rank))
    if hole == "ds":
        dims = rng.sample(range(rank), rng.randint(1, rank))
        return str(tuple(d - rank if rng.random() < 0.3 else d for d in dims))
    return str(rng.choice(CHOICES[hole]))


DTYPES = tuple(f"torch.{name}" for name in (*dict.fromkeys(FLOATS), *dict.fromkeys(OTHERS)))
CHOICES: dict[str, tuple[Any, ...]] = {
    "s": SCALARS, "s2": SCALARS, "n": (-2, -1, 0, 1, 2, 3, 5), "p": (1, 2, 3, 4), "k": (True, False), "t": DTYPES,
}  # fmt: skip


def _picked(rng: random.Random, names: list[str]) -> str | None:
    """One of the names, rather one of the last."""
    if not names:
        return None
    return rng.choice(names[-4:] if rng.random() < 0.5 else names)


def broadcasts(x: torch.Tensor, y: torch.Tensor) -> bool:
    return all(a in (b, 1) or b == 1 for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))
