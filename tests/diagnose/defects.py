"""Defects that tests seed into the compiler, each with a program that meets it and the operator to blame.

Tables and functions are replaced for one test: what is shipped knows nothing of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from dynamo.aot import runtime
from dynamo.aot.runtime import _Writer
from dynamo.frames import graph_functions
from inductor.lowering.registry import LOWERINGS

aten = torch.ops.aten
COMPILE_FX = importlib.import_module("inductor.driver.compile_fx")
FROM_ATEN = importlib.import_module("inductor.driver.from_aten")
Patch = Callable[[pytest.MonkeyPatch], None]
Program = Callable[..., Any]


@dataclass(frozen=True)
class Defect:
    """operators: any of these names is right; text: of the user's line; stage: as in `Culprit`."""

    name: str
    patch: Patch
    program: Program
    inputs: Callable[[], tuple[Any, ...]]
    operators: tuple[str, ...]
    text: str
    stage: str = "inductor"


DEFECTS: list[Defect] = []


def defect(
    patch: Patch, operators: str, text: str, *shapes: Any, stage: str = "inductor"
) -> Callable[[Program], Program]:
    """The decorated program meets the defect; shapes: of its inputs (or functions that make them)."""

    def enter(program: Program) -> Program:
        def inputs() -> tuple[Any, ...]:
            torch.manual_seed(0)
            return tuple(shape() if callable(shape) else torch.randn(shape) for shape in shapes)

        DEFECTS.append(Defect(program.__name__, patch, program, inputs, tuple(operators.split()), text, stage))
        return program

    return enter


def lowered(op: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch:
    return lambda patch: patch.setitem(LOWERINGS, op, change(LOWERINGS[op]))


def as_other(op: Any, other: Any) -> Patch:
    return lambda patch: patch.setitem(LOWERINGS, op, LOWERINGS[other])


def with_args(change: Callable[..., tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda right: lambda call, *args, **kwargs: right(call, *change(*args), **kwargs)


# -- lowerings -----------------------------------------------------------------------------------


@defect(as_other(aten.sub.Tensor, aten.add.Tensor), "sub", "y = a - 1", (4, 5))
def wrong_lowering(x: torch.Tensor) -> Any:
    a = x.sin()
    y = a - 1
    return y.cos() * 2, a


@defect(as_other(aten.sin.default, aten.cos.default), "sin", "torch.sin(x)", (4, 5))
def wrong_function(x: torch.Tensor) -> Any:
    y = x.tanh()
    return torch.sin(x) + y


@defect(lowered(aten.flip.default, lambda right: lambda call, x, dims: x), "flip", "x.flip(0)", (5, 3))
def bad_index(x: torch.Tensor) -> Any:
    y = x * 2
    return y.relu() + x.flip(0)


@defect(lowered(aten.index_select.default, with_args(lambda x, dim, index: (x, 1 - dim, index))), "index_select",
        "rows = x.index", (4, 4), lambda: torch.tensor([1, 0, 3, 2]))
def bad_rows(x: torch.Tensor, index: torch.Tensor) -> Any:
    y = x.exp() + 1
    rows = x.index_select(0, index)
    return rows * y


@defect(lowered(aten._to_copy.default, lambda right: lambda call, x, **kwargs: x), "half to", "x.half()", (64,))
def dropped_cast(x: torch.Tensor) -> Any:
    a = x.abs()
    y = x.half().float()
    return a + y


@defect(lowered(aten.where.self, with_args(lambda test, a, b: (test, b, a))), "where", "torch.where", (4, 5))
def swapped_operands(x: torch.Tensor) -> Any:
    y = torch.where(x > 0, x, x * 3)
    return y + 1


@defect(lowered(aten.clamp.default, with_args(lambda x, low=None, high=None: (x, None, high))), "clamp", "x.clamp(-0.1",
        (4, 5))
def lost_bound(x: torch.Tensor) -> Any:
    return x.clamp(-0.1, 0.1) * 2


@defect(lowered(aten.cat.default, with_args(lambda tensors, dim=0: (tensors[::-1], dim))), "cat", "torch.cat", (3, 4), (3, 4))
def wrong_order(x: torch.Tensor, y: torch.Tensor) -> Any:
    both = torch.cat([x.sin(), y], 0)
    return both * both


@defect(as_other(aten.mean.dim, aten.sum.dim_IntList), "mean", "z.mean(1)", (6, 7))
def wrong_reduction(x: torch.Tensor) -> Any:
    z = x.cos()
    return z.mean(1) + z.sum(1)


@defect(as_other(aten.amax.default, aten.amin.default), "amax", "torch.amax", (6, 7))
def wrong_extremum(x: torch.Tensor) -> Any:
    return torch.amax(x * 2, 1) - 1


@defect(lowered(aten._softmax.default, with_args(lambda x, dim, half: (x, 0, half))), "softmax", "torch.softmax", (5, 5))
def wrong_dimension(x: torch.Tensor) -> Any:
    y = torch.softmax(x * 3, 1)
    return y.log()


@defect(lowered(aten.gather.default, with_args(lambda x, dim, index: (x, 1 - dim, index))), "gather", "x.gather",
        (3, 3), lambda: torch.tensor([[2, 1, 0], [0, 0, 1], [1, 2, 2]]))
def wrong_axis(x: torch.Tensor, index: torch.Tensor) -> Any:
    return x.gather(0, index).sin()


@defect(as_other(aten.pow.Tensor_Scalar, aten.mul.Scalar), "pow __pow__", "x**3", (4, 5))
def wrong_power(x: torch.Tensor) -> Any:
    y = x.exp()
    return x**3 + y


@defect(lowered(aten.tril.default, with_args(lambda x, diagonal=0: (x, diagonal - 1))), "tril", "x.tril()", (5, 5))
def off_by_one(x: torch.Tensor) -> Any:
    return (x.tril() * 2).sum(0)


# -- gradients -----------------------------------------------------------------------------------


@defect(lowered(aten.tanh_backward.default, with_args(lambda grad, out: (out, grad))), "tanh", "torch.tanh(w)",
        lambda: torch.randn(5, requires_grad=True))
def wrong_gradient(w: torch.Tensor) -> Any:
    h = torch.tanh(w)
    return h * 3


# -- around the graph ----------------------------------------------------------------------------


def without_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime, "write", lambda target, value: None)
    whole = COMPILE_FX.compile_inference

    def compile_inference(*args: Any, **kwargs: Any) -> Any:
        return whole(*args, **{**kwargs, "epilogue_in_graph": False})

    patch.setattr(COMPILE_FX, "compile_inference", compile_inference)


@defect(without_writes, "mul_", "x.mul_(2)", (4,), stage="aot_eager")
def lost_mutation(x: torch.Tensor) -> Any:
    y = x + 1
    x.mul_(2)
    return y.sin()


def copied_views(patch: pytest.MonkeyPatch) -> None:
    right = _Writer._view
    patch.setattr(_Writer, "_view", lambda self, *given: f"{right(self, *given)}.clone()")


@defect(copied_views, "view reshape __getitem__", "x.view(6)", (2, 3), stage="aot_eager")
def lost_alias(x: torch.Tensor) -> Any:
    y = x.sin() + 1
    return y.cos(), x.view(6)


def dense_results(patch: pytest.MonkeyPatch) -> None:
    right = FROM_ATEN.tensors_only

    def contiguous(*args: Any) -> Any:
        call = right(*args)
        return lambda *inputs: tuple(result.contiguous() for result in call(*inputs))

    patch.setattr(FROM_ATEN, "tensors_only", contiguous)


@defect(dense_results, "t", "z = y.t()", (3, 4))
def wrong_stride(x: torch.Tensor) -> Any:
    y = x * 2
    z = y.t()
    return z.relu()


def wrong_decomposition(patch: pytest.MonkeyPatch) -> None:
    table = dict(COMPILE_FX.decompositions())
    table[aten.lerp.Scalar] = lambda a, b, weight: b + weight * (a - b)
    patch.delitem(LOWERINGS, aten.lerp.Scalar)
    patch.setattr(COMPILE_FX, "decompositions", lambda: table)


@defect(wrong_decomposition, "lerp", "torch.lerp", (4,), (4,), stage="aot_eager")
def wrong_parts(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = torch.lerp(x, y, 0.25)
    return z.exp()


# -- capture -------------------------------------------------------------------------------------


def other_function_captured(patch: pytest.MonkeyPatch) -> None:
    right = graph_functions.prune

    def prune(graph: torch.fx.Graph) -> None:
        right(graph)
        for node in graph.nodes:
            if node.target is torch.exp:
                node.target = torch.expm1

    patch.setattr(graph_functions, "prune", prune)


@defect(other_function_captured, "exp", "torch.exp(y)", (4,), stage="capture")
def wrong_capture(x: torch.Tensor) -> Any:
    y = x.sin()
    z = torch.exp(y)
    return z - 1


def number_captured(patch: pytest.MonkeyPatch) -> None:
    right = graph_functions.prune

    def prune(graph: torch.fx.Graph) -> None:
        right(graph)
        for node in graph.nodes:
            if node.op.startswith("call_") and 0.75 in node.args:
                node.args = tuple(0.5 if given == 0.75 else given for given in node.args)

    patch.setattr(graph_functions, "prune", prune)


@defect(number_captured, "mul __mul__", "y * 0.75", (4,), stage="capture")
def wrong_constant(x: torch.Tensor) -> Any:
    y = x.cos()
    z = y * 0.75
    return z.abs()


# -- scripts that show them ------------------------------------------------------------------------

WHOLE = {"lost_mutation", "lost_alias"}


def longer(seeded: Defect) -> Program:
    """The defect's program with operations before and behind it, which a small script leaves out."""

    def program(*args: Any) -> Any:
        first = args[0] * 1.5 if args[0].is_floating_point() and seeded.name not in WHOLE else args[0]
        result = seeded.program(first, *args[1:])
        last = result[0] if isinstance(result, tuple) else result
        return result, (last.sigmoid() + 2).tanh().abs()

    return program


def operations_in(text: str) -> int:
    """Of the graph in a script."""
    body = text.partition("def forward")[2].partition("return")[0]
    return sum(" = " in line for line in body.splitlines())
