"""`torch.utils.checkpoint.checkpoint`: the function's operations become one node.

The node runs them by torch's own `checkpoint`, so that backward computes them again instead of
keeping what they made. In the graph its target is a `Checkpointed`, whose module a backend
may look into.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from dynamo.base.errors import Break
from dynamo.symbolic.rules import torch_functions
from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.dicts import DictVar
from dynamo.symbolic.variables.lists import ListVar, TupleVar
from dynamo.symbolic.variables.tensor import TensorVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame
    from dynamo.symbolic.trace import Trace

# Without the wrapper that imports torch's own compiler.
RUN = inspect.unwrap(torch.utils.checkpoint.checkpoint)
OPTIONS = frozenset({"use_reentrant", "preserve_rng_state"})


class Checkpointed:
    """Runs a graph without keeping what its backward can compute again.

    module: takes tensors, returns a tuple of tensors. arguments: the first inputs, so many, were
    arguments of the checkpointed function; it read the others from elsewhere, and may write them.
    """

    def __init__(
        self, module: fx.GraphModule, arguments: int, preserve_rng_state: bool, number: int
    ) -> None:
        self.module, self.arguments = module, arguments
        self.preserve_rng_state = preserve_rng_state
        self.__name__ = self.__qualname__ = f"checkpointed_{number}"
        self.__module__ = __name__

    def __call__(self, *inputs: Any) -> Any:
        others = inputs[self.arguments :]
        options: dict[str, Any] = {}
        if self.preserve_rng_state and torch._C._len_torch_dispatch_stack():
            options["context_fn"] = draws_once
        return RUN(
            lambda *arguments: self.module(*arguments, *others),
            *inputs[: self.arguments],
            use_reentrant=False,
            preserve_rng_state=self.preserve_rng_state,
            **options,
        )


def draws_once() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Contexts of forward and of the computation in backward, where a backend records both into one
    graph: setting a generator back is no operation, so the numbers of forward are used again."""
    drawn: list[Any] = []
    return _Draws(drawn, replay=False), _Draws(drawn, replay=True)


class _Draws(TorchDispatchMode):
    """Keeps what operations draw, or gives back what was kept, in order."""

    def __init__(self, drawn: list[Any], replay: bool) -> None:
        super().__init__()
        self.drawn, self.replay = drawn, replay
        self.left: Iterator[Any] = iter(())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its own compiler

    def __enter__(self) -> _Draws:
        self.left = iter(self.drawn)
        return super().__enter__()  # type: ignore[no-any-return]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if self.replay:
            return next(self.left)
        self.drawn.append(func(*args, **(kwargs or {})))
        return self.drawn[-1]


@rule(torch.utils.checkpoint.checkpoint)
def checkpoint(tx: SymbolicFrame, function: Var, *args: Var, **kwargs: Var) -> Var:
    """`checkpoint(function, *args, use_reentrant=False, **kwargs)`; other forms run as they are."""
    trace = tx.trace
    options = {name: kwargs.pop(name).as_constant() for name in OPTIONS & kwargs.keys()}
    special = kwargs.keys() & {"context_fn", "determinism_check", "debug", "early_stop"}
    if options.get("use_reentrant", True) is not False or special or torch_functions.in_transform():
        raise Break("call_disabled", "torch.utils.checkpoint")
    mark, before = trace.graph.mark(), trace.effects.places()
    result = tx.call(function, list(args), kwargs)
    results: list[TensorVar] = []
    collect(result, results)
    check_unseen(trace, result, before)
    body = trace.graph.operations_after(mark)
    made = [var for var in results if var.node in body]
    if not made:
        return result
    given: list[TensorVar] = []
    torch_functions.collect_tensors(TupleVar([*args, *kwargs.values()]), given)
    inputs, module = trace.graph.cut_out(
        body, [var.node for var in made], first=[var.node for var in given]
    )
    number = sum(isinstance(node.target, Checkpointed) for node in trace.graph.graph.nodes)
    arguments = len({var.node for var in given} & set(inputs))
    keeps_rng = bool(options.get("preserve_rng_state", True))
    target = Checkpointed(module, arguments, keeps_rng, number)
    fakes = tuple(var.fake for var in made)
    node = trace.graph.operation("call_function", target, tuple(inputs), {}, fakes)
    for index, var in enumerate(made):
        place = (node, index)
        var.move_to(trace.graph.operation("call_function", operator.getitem, place, {}, var.fake))
    return result


def collect(var: Var, found: list[TensorVar]) -> None:
    """The tensors of a result, each once; Break for what is more than containers of tensors."""
    if isinstance(var, TensorVar):
        if var not in found:
            found.append(var)
    elif isinstance(var, TupleVar | ListVar):
        for item in var.items:
            collect(item, found)
    elif isinstance(var, DictVar):
        for item in var.values():
            collect(item, found)
    elif not var.is_constant():
        raise Break("call_disabled", f"torch.utils.checkpoint of a function that returns {var!r}")


def check_unseen(trace: Trace, result: Var, before: Any) -> None:
    """Break where the function has changed something that is seen after it."""
    changed = trace.effects.targets_since(before)
    if not changed:
        return
    alive = [var for frame in trace.frames for var in frame.alive()]
    reached: set[Var] = set()
    while alive:
        var = alive.pop()
        if var not in reached:
            reached.add(var)
            alive.extend(var.children())
    if any(target is None or target.source is not None or target in reached for target in changed):
        raise Break("call_disabled", "torch.utils.checkpoint of a function that changes objects")
