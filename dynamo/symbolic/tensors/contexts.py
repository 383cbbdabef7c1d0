"""Context managers that are entered and left by nodes of the graph.

While tracing, the real one is entered too, so that fakes behave alike. Where a trace would end
inside of one, it is made again and ends before the context is entered.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention
from torch import fx

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import has_rule, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar, NamedMethodVar, inline_polyfill
from dynamo.symbolic.python.lists import ListVar
from dynamo.symbolic.python.polyfills import make_manager
from dynamo.symbolic.tensors.modes import SETTERS, keep_modes
from dynamo.symbolic.tensors.state import tensor_state


def make_attention_kernel(names: tuple[str, ...], set_priority: bool) -> Any:
    """`sdpa_kernel` by the names of its backends."""
    backends = [getattr(torch.nn.attention.SDPBackend, name) for name in names]
    return torch.nn.attention.sdpa_kernel(backends, set_priority)


MODE_NODES = frozenset({torch._C._set_grad_enabled, *SETTERS})
MAKERS: dict[str, Callable[..., Any]] = {
    "inference_mode": torch._C._InferenceMode,
    "sdpa_kernel": make_attention_kernel,
    "record_function": torch.profiler.record_function,
}


def enter(kind: str, *args: Any) -> Any:
    """Enters a context of `MAKERS`, in a graph; the result is for `leave`."""
    context = MAKERS[kind](*args)
    context.__enter__()
    _entered().append(context)
    return context


def leave(context: Any) -> None:
    """Goes back to what was before."""
    _entered().remove(context)
    context.__exit__(None, None, None)


_thread = threading.local()


def _entered() -> list[Any]:
    """The contexts that graphs of this thread have entered and not left."""
    if not hasattr(_thread, "entered"):
        _thread.entered = []
    return _thread.entered  # type: ignore[no-any-return]


def leaves_on_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """A graph's function that leaves what it has entered, and puts modes back, when it raises."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        entered, restore = _entered(), keep_modes()
        depth = len(entered)
        try:
            return function(*args)
        except BaseException:
            while len(entered) > depth:
                leave(entered[-1])
            restore()
            raise

    return call


def changes_modes(graph: fx.Graph) -> bool:
    """True where a node of the graph enters or sets a mode of torch."""
    return any(node.target is enter or node.target in MODE_NODES for node in graph.nodes)


class GraphContextVar(Var):
    """A context manager of `MAKERS` with constant arguments, made in the trace.

    step: where it was entered, None while it is not. in_trace: enter a real one while tracing.
    """

    lets_errors_pass = True

    def __init__(self, kind: str, args: tuple[Any, ...], in_trace: bool) -> None:
        super().__init__()
        self.kind, self.args, self.in_trace = kind, args, in_trace
        self.step: int | None = None
        self._node: fx.Node | None = None
        self._real: Any = None

    def describe(self) -> str:
        return f"{self.kind}{self.args}{', entered' if self.step is not None else ''}"

    def truth(self, tx: Frame) -> bool:
        return True

    def on_enter(self, trace: Evaluation) -> None:
        """What entering does to the trace."""
        if self.in_trace:
            self._real = enter(self.kind, *self.args)
            tensor_state(trace).contexts.append(self._real)

    def on_exit(self, trace: Evaluation) -> None:
        """What leaving does to the trace."""
        if self.in_trace:
            assert tensor_state(trace).contexts[-1] is self._real
            leave(tensor_state(trace).contexts.pop())

    def entered(self) -> Var:
        """What `with ... as` gives."""
        return self

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        trace = tx.trace
        if name == "__enter__" and self.step is None:
            values = (self.kind, *self.args)
            self._node = trace.graph.operation("call_function", enter, values, {}, None)
            trace.effects.tick()
            self.step = tx.step_at_start
            self.on_enter(trace)
            return self.entered()
        if name == "__exit__" and self.step is not None:
            trace.graph.operation("call_function", leave, (self._node,), {}, None)
            trace.effects.tick()
            self.step = None
            self.on_exit(trace)
            return ConstVar(None)
        return super().call_method(tx, name, args, kwargs)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name in ("__enter__", "__exit__"):
            return NamedMethodVar(self, name)
        raise Break("attribute_unknown", f"{name} of {self!r}")


class AttentionKernelVar(GraphContextVar):
    """`sdpa_kernel(...)`."""

    def entered(self) -> Var:
        return DictVar()


# The second is what a decorator calls.
@rule([torch.nn.attention.sdpa_kernel, inspect.unwrap(torch.nn.attention.sdpa_kernel)])
def attention_kernel(tx: Frame, backends: Var, set_priority: Var = ConstVar(False)) -> Var:  # noqa: B008
    items = backends.items if isinstance(backends, ListVar) else [backends]
    values = [item.as_constant() for item in items]
    if not all(isinstance(value, torch.nn.attention.SDPBackend) for value in values):
        raise Break("argument_mismatch", f"sdpa_kernel of {backends!r}")
    choice = (tuple(value.name for value in values), set_priority.truth(tx))
    return AttentionKernelVar("sdpa_kernel", choice, in_trace=True)


@rule(torch.profiler.record_function)
def record_function(tx: Frame, name: Var, args: Var = ConstVar(None)) -> Var:  # noqa: B008
    values = (name.as_constant(), args.as_constant())
    return GraphContextVar("record_function", values, in_trace=False)


@rule(contextlib._BaseExitStack.pop_all)  # type: ignore[attr-defined]
def pop_all(tx: Frame, stack: Var) -> Var:
    """What a real stack holds (suspended generators, for one) dies with the new one, which is real
    too: the program may let go of it in this part."""
    if stack.source is not None:
        raise Break("call_of_unknown_function", f"pop_all() of {stack!r}")
    function = tx.trace.wrap(contextlib._BaseExitStack.pop_all, None)  # type: ignore[attr-defined]
    assert isinstance(function, FunctionVar)
    return tx.inline(function, [stack], {})


RECREATE: Any = contextlib._GeneratorContextManager._recreate_cm


@rule(RECREATE)
def recreate(tx: Frame, manager: Var) -> Var:
    """What a decorator enters at each call: a context of the graph, where the generator function
    that it was made of is known as one."""
    known = tx.trace.call(tx, getattr, manager, ConstVar("func"))
    if isinstance(known, FunctionVar) and has_rule(known.real):
        return inline_polyfill(tx, make_manager, [manager], {})
    function = tx.trace.wrap(RECREATE, None)
    assert isinstance(function, FunctionVar)
    return tx.inline(function, [manager], {})
