"""Autograd functions of the program in a second derivative: which of them may not run twice.

In: a captured program that runs again to be differentiated (`second_order.py`), which calls such
functions. One call of `apply` is then two nodes of autograd's graph: what the compiled program's
own node differentiates, and what the gradients of the second run depend on. Eager has one node for
it, to which the sum of both parts of a gradient comes. The sum of two results is the same only
where a backward is linear in its gradient; another one raises where both of its nodes would run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.function_backwards import contexts_of, functions_of, in_order, with_backward
from dynamo.aot.joint import JointGraph
from dynamo.aot.lazy_backward import is_in_transform
from dynamo.base.autograd_apply import AUTOGRAD_FUNCTION
from dynamo.base.fallbacks import line_of

NOT_LINEAR = (
    "the backward of {name} is not linear in its gradient, or not known to be, and this second "
    "derivative (create_graph=True, double backward) needs it for two parts of one gradient. "
    "Compile the program with backend=\"eager\", or call the function outside of compiled code "
    "(dynamo.disable)"
)

graph_task = torch._C._current_graph_task_id  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class NonlinearCalls:
    """The calls whose backward may not run for two parts of a gradient.

    outputs: for each, by its place in program order, the outputs whose gradients come there.
    values: the outputs that have a gradient.
    """

    outputs: tuple[tuple[int, frozenset[int]], ...]
    values: tuple[int, ...]

    def reached(self, grads: Sequence[Any]) -> list[int]:
        """The calls that run for these gradients of the outputs."""
        there = {at for at, grad in enumerate(grads) if grad is not None}
        return [call for call, outputs in self.outputs if not outputs.isdisjoint(there)]

    def watch(
        self, runs: FunctionRuns, gm: fx.GraphModule, values: Sequence[Any],
        inputs: Iterable[torch.Tensor],
    ) -> None:
        """From now on `runs` notes which functions' nodes run behind these values."""
        results = [values[at] for at in self.values]
        contexts = in_order(contexts_of(results, inputs), functions_of(gm))
        for call, _ in self.outputs:
            function = contexts[call]._forward_cls
            runs.functions[call] = gm, function
            contexts[call]._forward_cls = with_backward(
                function, functools.partial(runs.run, call))


def nonlinear_calls(joint: JointGraph) -> NonlinearCalls | None:
    """None where there are none."""
    if not joint.nonlinear:
        return None
    values = tuple([tangent.output for tangent in joint.tangents])
    return NonlinearCalls(tuple(sorted(joint.nonlinear.items())), values)


class FunctionRuns:
    """Of one call of a compiled program: in which backward pass each function has run last.

    functions: by the places of their calls, with the program.
    """

    def __init__(self) -> None:
        self.functions: dict[int, tuple[fx.GraphModule, Any]] = {}
        self._last: dict[int, int] = {}
        self._outer: int | None = None

    def note(self, calls: Iterable[int]) -> None:
        """These run now. Errors: RuntimeError where one has run in this backward pass."""
        now = graph_task() if self._outer is None else self._outer
        for call in calls:
            if self._last.get(call) == now and call in self.functions:
                raise RuntimeError(self._text(call))
            self._last[call] = now

    def run(
        self, call: int, inner: Callable[..., Any], context: Any, grads: tuple[Any, ...]
    ) -> Any:
        """A function's backward. What makes zeros of zeros adds nothing."""
        found = inner(context, *grads)
        given = found if isinstance(found, (tuple, list)) else (found,)
        if not (_are_zeros(grads) and _are_zeros(given)):
            self.note([call])
        return found

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Backward passes inside of the block are part of the one that runs now."""
        outer, self._outer = self._outer, graph_task()
        try:
            yield
        finally:
            self._outer = outer

    def _text(self, call: int) -> str:
        gm, function = self.functions[call]
        nodes = [node for node in gm.graph.nodes
                 if getattr(node.target, AUTOGRAD_FUNCTION, None) is function]  # fmt: skip
        line = line_of(nodes)
        return (line + "\n  " if line else "") + NOT_LINEAR.format(name=function.__qualname__)


def _are_zeros(values: Iterable[Any]) -> bool:
    if is_in_transform():  # where no number can be read
        return False
    return not any(bool(value.any()) for value in values if isinstance(value, torch.Tensor))
