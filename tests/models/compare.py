"""Runs a program's training as eager, in float64 and compiled, and says how far results and weights are apart.

`python -m tests.models.compare [NAME ...]` prints each program's distances, graphs and first seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import dynamo
from dynamo.base.counters import counters
from tests.models.research import Research

STEPS = 5
Compile = Callable[..., Any]


@dataclass(frozen=True)
class Outcome:
    """values: of each step's results, then the weights and buffers; seconds: of the first step.

    graphs: that were compiled; breaks: why there is more than one.
    """

    values: list[Any]
    seconds: float
    graphs: int = 0
    breaks: tuple[str, ...] = ()
    not_compiled: tuple[str, ...] = ()


def train(program: Research, whole: Compile | None = None, part: Compile | None = None) -> Outcome:
    """Five steps, of which the step itself or the program's parts are compiled."""
    dynamo.reset()
    torch.default_generator.manual_seed(1)
    if part is not None:
        for name in program.parts:
            setattr(program, name, part(getattr(program, name)))
    step = whole(program.step) if whole is not None else program.step
    values: list[Any] = []
    first = 0.0
    for _ in range(STEPS):
        start = time.perf_counter()
        result = step(*program.batch())
        first = first or time.perf_counter() - start
        values += [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in tree_leaves(result)]
    for module in program.modules().values():
        values += [v.detach().clone() for v in module.state_dict().values() if isinstance(v, torch.Tensor)]
    return Outcome(values, first, counters["stats"]["graphs"], tuple(counters["graph_break"]),
                   tuple(counters["not_compiled"]))


def distance(found: Any, exact: Any) -> float:
    """Relative to the greatest value of a tensor; infinite where kinds, sizes or plain values differ."""
    if not isinstance(exact, torch.Tensor) or not isinstance(found, torch.Tensor):
        return distance(torch.tensor(found), torch.tensor(exact)) if isinstance(exact, float) else (
            0.0 if found == exact else float("inf"))
    if found.shape != exact.shape or found.is_floating_point() != exact.is_floating_point():
        return float("inf")
    if not exact.is_floating_point():
        return 0.0 if torch.equal(found, exact) else float("inf")
    found, exact = found.double(), exact.double()
    good = exact.isfinite()
    if not torch.equal(good, found.isfinite()):
        return float("inf")
    return float((found - exact)[good].abs().max() / exact[good].abs().max().clamp(min=1e-3)) if good.any() else 0.0


def worst(found: Outcome, exact: Outcome) -> float:
    if len(found.values) != len(exact.values):
        return float("inf")
    return max(map(distance, found.values, exact.values))


def check(kind: type[Research], **how: Compile) -> tuple[list[str], Outcome]:
    """What is wrong with a program compiled this way, against eager in float64."""
    exact, plain = train(kind(torch.float64)), train(kind())
    compiled = train(kind(), **how)
    error, allowed = worst(compiled, exact), max(kind.tolerance, 4 * worst(plain, exact))
    told = [] if error <= allowed else [f"{kind.__name__} {[*how]}: {error:.1e} from float64, allowed {allowed:.1e}"]
    told += [f"{kind.__name__} {[*how]}: {why}" for why in compiled.not_compiled]
    return told, compiled


def main(names: list[str], programs: dict[str, type[Research]]) -> int:
    wrong = 0
    for name in names or programs:
        for how in ("whole", "part"):
            try:
                told, outcome = check(programs[name], **{how: dynamo.compile})
            except Exception as error:
                told, outcome = [f"{name} {how}: {type(error).__name__}: {error}"], Outcome([], 0.0)
            wrong += bool(told)
            print(f"{name:20s} {how:6s} graphs {outcome.graphs:3d} first {outcome.seconds:5.1f} s",
                  *told, *outcome.breaks, sep="\n    ", flush=True)
    return wrong


if __name__ == "__main__":
    from tests.models.programs import PROGRAMS

    sys.exit(main(sys.argv[1:], PROGRAMS))
