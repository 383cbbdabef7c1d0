"""`torch.utils.checkpoint.checkpoint`: the function's operations become one node.

The node runs them by torch's own `checkpoint`, so that backward computes them again instead of
keeping what they made. In the graph its target is a `Checkpointed`, whose module a backend
may look into.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import operator
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.base.errors import Break
from dynamo.base.recomputing import recomputation
from dynamo.graph_operators.cuts import expect
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.cached import real_value
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar, inline_polyfill
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.partials import PartialVar
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.tensor import TensorVar

# Without the wrapper that imports torch's own compiler.
RUN = inspect.unwrap(torch.utils.checkpoint.checkpoint)
ContextFunction = Callable[[], tuple[Any, Any]]
# Options, and what they are where they are not given.
OPTIONS: dict[str, Any] = {
    "use_reentrant": None, "preserve_rng_state": True, "determinism_check": "default",
    "debug": False, "early_stop": True,
}


class Checkpointed:
    """Runs a graph without keeping what its backward can recompute.

    module: takes tensors, returns a tuple of tensors. arguments: the first inputs, so many, were
    arguments of the checkpointed function; it read the others from elsewhere, and may write them.
    options: those of `OPTIONS`. context_fn: what the program gave as that, or None.
    """

    def __init__(
        self, module: fx.GraphModule, arguments: int, options: dict[str, Any],
        context_fn: ContextFunction | None, number: int,
    ) -> None:
        self.module, self.arguments, self.context_fn = module, arguments, context_fn
        self.reentrant = options["use_reentrant"]
        self.preserve_rng_state = options["preserve_rng_state"]
        self.further = {name: options[name] for name in ("determinism_check", "early_stop")}
        self.__name__ = self.__qualname__ = f"checkpointed_{number}"
        self.__module__ = __name__

    def __call__(self, *inputs: Any) -> Any:
        others = inputs[self.arguments :]
        recorded = bool(torch._C._len_torch_dispatch_stack())
        options = dict(self.further)
        contexts = self.context_fn
        if self.preserve_rng_state and recorded:
            contexts = functools.partial(both, self.context_fn, draws_once)
        if contexts is not None:
            options["context_fn"] = contexts
        runs = itertools.count()

        def run(*arguments: Any) -> Any:
            with recomputation() if next(runs) else contextlib.nullcontext():
                return self.module(*arguments, *others)

        # Backward inside of backward can't be recorded; the other form has the same gradients.
        return RUN(
            run,
            *inputs[: self.arguments],
            use_reentrant=self.reentrant and not recorded,
            preserve_rng_state=self.preserve_rng_state,
            **options,
        )


def both(first: ContextFunction | None, second: ContextFunction) -> tuple[Any, Any]:
    """Contexts of forward and of backward, each inside of another."""
    if first is None:
        return second()
    pairs = zip(first(), second(), strict=True)
    return tuple(_Nested(*pair) for pair in pairs)  # type: ignore[return-value]


class _Nested(contextlib.ExitStack):
    """One context inside of another, which may be entered more than once."""

    def __init__(self, *contexts: Any) -> None:
        super().__init__()
        self.contexts = contexts

    def __enter__(self) -> _Nested:
        for context in self.contexts:
            self.enter_context(context)
        return super().__enter__()


def draws_once() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Contexts of forward and of the computation in backward, where a backend records both into one
    graph: setting a generator back is no operation, so the numbers of forward are used again."""
    drawn: list[Any] = []
    return _Draws(drawn, replay=False), _Draws(drawn, replay=True)


class _Draws(OwnDispatchMode):
    """Keeps what operations draw, or gives back what was kept, in order."""

    def __init__(self, drawn: list[Any], replay: bool) -> None:
        super().__init__()
        self.drawn, self.replay = drawn, replay
        self.left: Iterator[Any] = iter(())

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
def checkpoint(tx: Frame, /, function: Var, *args: Var, **kwargs: Var) -> Var:
    """`checkpoint(function, *args, use_reentrant=..., **kwargs)`."""
    trace = tx.trace
    options = {name: kwargs.pop(name).as_constant() if name in kwargs else default
               for name, default in OPTIONS.items()}
    given = kwargs.pop("context_fn", None)
    context_fn = None if given is None else made_before(trace, given)
    if options["debug"] is not False or torch_functions.in_transform():
        raise Break("call_disabled", "torch.utils.checkpoint")
    if options["use_reentrant"] is None:
        options["use_reentrant"] = True
        warn_as_torch(tx, ())
    if type(options["use_reentrant"]) is not bool:
        raise Break("call_disabled", "torch.utils.checkpoint")
    if not options["use_reentrant"]:
        return call_checkpointed(tx, function, args, kwargs, options, context_fn)
    if kwargs or context_fn is not None:
        raise Break("call_disabled", "torch.utils.checkpoint")
    if any(isinstance(arg, TensorVar) and arg.fake.requires_grad for arg in args):
        return call_checkpointed(tx, function, args, kwargs, options, context_fn)
    warn_as_torch(tx, (True,))
    return call_without_gradients(tx, function, args)


@functools.cache
def warning_of_torch(reentrant: tuple[bool, ...]) -> tuple[str, type[Warning]]:
    """What torch warns of first, where `use_reentrant` is such, and no tensor needs gradients."""
    with warnings.catch_warnings(record=True) as warned, torch.no_grad():
        warnings.simplefilter("always")
        RUN(lambda: None, **dict(zip(["use_reentrant"], reentrant, strict=False)))
    return str(warned[0].message), warned[0].category


class Open:
    """The calls of `checkpoint` that are being traced: how many, and what is to be warned of behind
    the outermost, whose function must change nothing."""

    def __init__(self, trace: Evaluation) -> None:
        self.depth = 0
        self.warnings: list[tuple[bool, ...]] = []


def warn_as_torch(tx: Frame, reentrant: tuple[bool, ...]) -> None:
    """A warning that is shown once, so that the recomputation need not repeat it."""
    state = tx.trace.state(Open)
    if state.depth:
        state.warnings.append(reentrant)
        return
    text, category = warning_of_torch(reentrant)
    tx.trace.call(tx, warnings.warn, ConstVar(text), tx.trace.wrap(category, None))


def without_gradients(function: Any, *args: Any) -> Any:
    with torch.no_grad():
        return function(*args)


def call_without_gradients(tx: Frame, function: Var, args: tuple[Var, ...]) -> Var:
    """The form that runs backward inside of backward, where no argument needs gradients: it makes
    results without, whatever else the function reads."""
    mark = tx.trace.graph.mark()
    result = inline_polyfill(tx, without_gradients, [function, *args], {})
    found: list[TensorVar] = []
    collect(result, found)
    body = tx.trace.graph.operations_after(mark)
    if any(var.node not in body for var in found):  # others are given back, of the same values
        raise Break("call_disabled", "torch.utils.checkpoint of a function that gives what it gets")
    return result


def call_checkpointed(
    tx: Frame, function: Var, args: tuple[Var, ...], kwargs: dict[str, Var],
    options: dict[str, Any], context_fn: ContextFunction | None,
) -> Var:
    """Traces the function, and makes one node of its operations."""
    trace = tx.trace
    mark, before, state = trace.graph.mark(), trace.effects.places(), trace.state(Open)
    state.depth += 1
    try:
        result = tx.call(function, list(args), kwargs)
    finally:
        state.depth -= 1
    results: list[TensorVar] = []
    collect(result, results)
    check_unseen(trace, result, before)
    body = trace.graph.operations_after(mark)
    if any(node.target is expect for node in body):
        raise Break("call_disabled", "torch.utils.checkpoint with a branch on a tensor")
    if options["use_reentrant"] and torch.is_grad_enabled():
        check_reentrant(result, body)
    made = [var for var in results if var.node in body]
    while state.warnings and not state.depth:
        warn_as_torch(tx, state.warnings.pop(0))
    if not made:
        return result
    tensors: list[TensorVar] = []
    torch_functions.collect_tensors(TupleVar([*args, *kwargs.values()]), tensors)
    inputs, module = trace.graph.cut_out(
        body, [var.node for var in made], first=[var.node for var in tensors]
    )
    number = sum(isinstance(node.target, Checkpointed) for node in trace.graph.graph.nodes)
    arguments = len({var.node for var in tensors} & set(inputs))
    target = Checkpointed(module, arguments, options, context_fn, number)
    fakes = tuple(var.fake for var in made)
    node = trace.graph.operation("call_function", target, tuple(inputs), {}, fakes)
    for index, var in enumerate(made):
        place = (node, index)
        var.move_to(trace.graph.operation("call_function", operator.getitem, place, {}, var.fake))
    return result


def made_before(trace: Evaluation, var: Var) -> Any:
    """The real object of a value that the trace has not made, or has made of such values alone."""
    if trace.effects.has_outside():  # it might read what was changed
        raise Break("call_disabled", "torch.utils.checkpoint with contexts, after changes")
    if isinstance(var, PartialVar):
        parts = (var.function, var.args, var.keywords)
        function, args, keywords = (made_before(trace, part) for part in parts)
        return functools.partial(function, *args, **keywords)
    if type(var) is TupleVar:
        return tuple(made_before(trace, item) for item in var.items)
    if type(var) is DictVar and var.kind is dict:
        names = (key.as_constant() for key in var.keys())
        values = (made_before(trace, value) for value in var.values())
        return dict(zip(names, values, strict=True))
    if isinstance(var, ListVar):
        return [made_before(trace, item) for item in var.items]
    if isinstance(var, FunctionVar) and var.real is None and not tuple(var.children()):
        return types.FunctionType(var.code, var.globals, var.name)
    return real_value(trace, var)


def check_reentrant(result: Var, body: dict[fx.Node, None]) -> None:
    """Break where the form that runs backward inside of backward has other gradients: only what is
    a tensor, or stands in a tuple, has any, and all of these have."""
    results = result.items if type(result) is TupleVar else [result]
    made = all(
        var.is_constant() or isinstance(var, TensorVar) and var.node in body
        and (var.fake.requires_grad or not is_differentiable(var.fake)) for var in results
    )
    outside = {
        storage_of(fake) for node in body for given in node.all_input_nodes
        if given not in body and isinstance(fake := given.meta["example_value"], torch.Tensor)
    }
    written = {storage_of(fake) for node in body for fake in node.meta.get("changed", ())}
    if not (made and outside.isdisjoint(written)):
        raise Break("call_disabled", "torch.utils.checkpoint with use_reentrant=True")


def is_differentiable(fake: Any) -> bool:
    return bool(fake.is_floating_point() or fake.is_complex())


def collect(var: Var, tensors: list[TensorVar]) -> None:
    """The tensors of a result, each once; Break for what is more than containers of tensors."""
    if isinstance(var, TensorVar):
        if var not in tensors:
            tensors.append(var)
    elif isinstance(var, TupleVar | ListVar):
        for item in var.items:
            collect(item, tensors)
    elif isinstance(var, DictVar):
        for item in var.values():
            collect(item, tensors)
    elif not var.is_constant():
        raise Break("call_disabled", f"torch.utils.checkpoint of a function that returns {var!r}")


def check_unseen(
    trace: Evaluation, result: Var, before: Any, what: str = "torch.utils.checkpoint of a function"
) -> None:
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
        raise Break("call_disabled", f"{what} that changes objects")
