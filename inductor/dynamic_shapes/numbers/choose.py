"""What a compile is made for, of the numbers among a graph's inputs: the first row that holds.

In: a captured graph, its inputs, compilers. Out: a callable like the graph.

1. No numbers: sizes alone decide.
2. `steps.py`: a step that computes gradients, and has to know its rates, is compiled for those at
   hand; for others it is cut around what reads them.
3. An int that no tensor holds: one compile for each set of numbers.
4. `lift.py`: numbers that only scale and shift tensors become tensors: one compile for all values.
5. A float is left that an operator has to know: the graph is cut there.
6. What is left: ints are symbols, each float has a compile of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from dynamo.aot.records import Unsupported
from dynamo.base import logs
from inductor.dynamic_shapes.numbers.lift import Lifted, lift_numbers
from inductor.dynamic_shapes.numbers.steps import Step, has_rates
from inductor.dynamic_shapes.specialise import fits
from inductor.dynamic_shapes.subgraph import CompileSubgraph
from inductor.dynamic_shapes.subgraphs import NothingToCompile, reads_floats

Compiled = Callable[..., Any]
CompileGraph = Callable[[fx.GraphModule, list[Any]], Compiled]


@dataclass(frozen=True, slots=True)
class Compilers:
    """for_sizes: symbolic sizes and ints, whatever their values. for_each: each set of sizes and
    numbers by itself. cut: the subgraphs between operators that have to know a number. step:
    a part of a training step, or None where the graph is no whole step."""

    for_sizes: CompileGraph
    for_each: CompileGraph
    cut: Callable[[fx.GraphModule], Compiled]
    step: CompileSubgraph | None = None


def compile_for_numbers(
    gm: fx.GraphModule, inputs: list[Any], compilers: Compilers
) -> Compiled:
    """See the top of the file. What can be compiled now is, so that errors show early."""
    if not any(type(value) in (int, float) for value in inputs):
        return compilers.for_sizes(gm, inputs)
    all_fit = all(map(fits, inputs))
    lifted = lift_numbers(gm) if all_fit else None
    if compilers.step and has_rates(gm, inputs) and (lifted is None or lifted.has_floats()):
        whole = Compilers(compilers.for_sizes, compilers.for_each, compilers.cut)
        return Step(
            gm, inputs, lambda module, given: compile_for_numbers(module, given, whole),
            compilers.step)
    if not all_fit:
        return compilers.for_each(gm, inputs)
    left = inputs if lifted is None else lifted.inputs_of(tuple(inputs))
    if any(type(value) is float for value in left) and reads_floats(gm):
        try:
            return compilers.cut(gm)
        except NothingToCompile:
            logs.log("dynamic").emit("a graph is nothing but operators that ask for a number")
            return gm.forward
        except Unsupported as refusal:
            reason = refusal.reason
            logs.log("dynamic").emit(lambda: f"a graph is compiled for each number: {reason}")
    inner = compilers.for_sizes(gm if lifted is None else lifted.module, left)
    return _checked(gm, inner, lifted)


def _checked(gm: fx.GraphModule, inner: Compiled, lifted: Lifted | None) -> Compiled:
    """The compiled graph for numbers that its tensors hold; the captured one for others, of which
    eager has its own answer."""

    def call(*inputs: Any) -> Any:
        if not all(map(fits, inputs)):
            return gm.forward(*inputs)
        if lifted is None:
            return inner(*inputs)
        try:
            given = lifted.inputs_of(inputs)
        except (OverflowError, RuntimeError):  # beyond the dtypes of its tensors
            return gm.forward(*inputs)
        return inner(*given)

    return call
