"""A subgraph between numbers and sizes that only the running program knows.

In: a captured graph whose placeholders have sizes in symbols of its capture, known or not, and a
compiler for graphs with symbolic sizes. Out: a callable that compiles at its first call, when the
symbols have values, and for each *form* of its inputs again: which symbolic sizes are 0 or 1 (these
are constants of the code), how strides follow from sizes, and which tensors require gradients. What
a compile assumes beyond that is checked where it belongs (`symbolic.py`). Other calls, inputs whose
sizes are not related as the capture says among them, run as captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import expression_of, is_symbolic_number
from dynamo.aot.joint import dense_stride
from dynamo.aot.records import Unsupported
from dynamo.base import logs
from dynamo.base.fallbacks import SUBGRAPH, line_of, place_of, refused
from dynamo.base.graph_copies import copy_graph
from dynamo.base.subclasses import is_wrapper, layout_of
from dynamo.shapes.fake import Fake

Compiled = Callable[..., Any]
CompileSubgraph = Callable[[fx.GraphModule, list[Any]], Compiled]
Form = tuple[Any, ...]
MOST_FORMS = 8  # of one subgraph, as `recompile_limit` has of frames
MOST_KNOWN = 4096  # sets of sizes whose form is cached; chosen, not measured


class Subgraph:
    """module: the graph. guarded: which inputs have the metadata of the capture in all calls."""

    def __init__(
        self, name: str, module: fx.GraphModule, guarded: list[bool],
        compile_subgraph: CompileSubgraph,
    ) -> None:
        self.__name__ = name
        self.module = module
        self.compile_subgraph = compile_subgraph
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.shown = [node.meta.get("example_value") for node in places]
        unknown = [at for at, known in enumerate(guarded) if not known or self._is_symbolic(at)]
        self.watched = unknown
        self.known: dict[Any, Compiled] = {}
        self.forms: dict[Form, Compiled] = {}
        self.lock = threading.Lock()

    def _is_symbolic(self, at: int) -> bool:
        return any(map(is_symbolic_number, getattr(self.shown[at], "shape", ())))

    def __call__(self, *inputs: Any) -> Any:
        key = tuple([_key(inputs[at]) for at in self.watched])
        compiled = self.known.get(key)
        return self._first(key, inputs) if compiled is None else compiled(*inputs)

    def _first(self, key: Any, inputs: tuple[Any, ...]) -> Any:
        with self.lock:
            form = self._form(inputs)
            compiled = None if form is None else self.forms.get(form)
            if form is None:
                compiled = self._as_captured("sizes are not related as they were when captured")
            elif compiled is None:
                compiled = self._compile(form, inputs)
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            self.known[key] = compiled
        return compiled(*inputs)

    def _compile(self, form: Form, inputs: tuple[Any, ...]) -> Compiled:
        if len(self.forms) == MOST_FORMS:
            return self._as_captured(f"it is compiled for {MOST_FORMS} forms of inputs")
        try:
            compiled = self.compile_subgraph(self._module_for(form, inputs), list(inputs))
        except Unsupported as refusal:
            compiled = self._as_captured(refusal.reason, place_of(refusal, ()))
        self.forms[form] = compiled
        return compiled

    def _as_captured(self, why: str, place: str = "") -> Compiled:
        logs.log("dynamic").emit(lambda: f"{self.__name__} runs as captured: {why}")
        refused(SUBGRAPH, why, place or line_of(self.module.graph.nodes), strict=False)
        return self.module.forward

    def _module_for(self, form: Form, inputs: tuple[Any, ...]) -> fx.GraphModule:
        """A copy of the graph whose placeholders show the sizes and strides of a form."""
        graph = copy_graph(self.module.graph)
        values = self._values(inputs)
        constants = {symbol: value for symbol, value in values.items() if value < 2}  # in the form
        places = [node for node in graph.nodes if node.op == "placeholder"]
        for node, shown, row, real in zip(places, self.shown, form, inputs, strict=True):
            node.meta["example_value"] = shown if type(shown) is Fake else real
            if isinstance(real, torch.Tensor) and hasattr(shown, "fake_mode"):  # one of torch's
                node.meta["example_value"] = _remade(shown, row, constants)
        return fx.GraphModule(self.module, graph)

    # -- forms ----------------------------------------------------------------------------------

    def _form(self, inputs: tuple[Any, ...]) -> Form | None:
        """The form of these inputs; None where the sizes are not as shown."""
        values = self._values(inputs)
        rows: list[Any] = []
        for shown, real in zip(self.shown, inputs, strict=True):
            row: Any = real if type(real) is bool else type(real)
            if is_wrapper(real):  # compiled for each set of sizes
                row = layout_of(real), real.requires_grad
            elif isinstance(real, torch.Tensor):
                row = _row(shown, real, values)
                if row is None:
                    return None
            rows.append(row)
        return tuple(rows)

    def _values(self, inputs: Sequence[Any]) -> dict[Any, int]:
        """The value of each symbol that is a size of an input."""
        values: dict[Any, int] = {}
        for shown, real in zip(self.shown, inputs, strict=True):
            if isinstance(shown, torch.Tensor) and isinstance(real, torch.Tensor) and (
                    not is_wrapper(real)):
                for size, value in zip(shown.shape, real.shape, strict=False):
                    if is_symbolic_number(size) and expression_of(size).is_Symbol:
                        values.setdefault(expression_of(size), int(value))
        return values


def _key(value: Any) -> Any:
    """What tells the form of an input, and more."""
    if is_wrapper(value):
        return layout_of(value), value.requires_grad
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.requires_grad)
    return value if type(value) is bool else type(value)


def _row(shown: Any, real: torch.Tensor, values: dict[Any, int]) -> tuple[Any, ...] | None:
    """(sizes that are 0 or 1 though open, strides, whether it requires gradients) of a tensor.

    strides: None where they are as shown; else the dimensions from the longest stride to the
    shortest, or the strides themselves. None for a tensor that is not as shown.
    """
    if not isinstance(shown, torch.Tensor) or shown.dtype is not real.dtype:
        return None
    sizes = [_at(size, values) for size in shown.shape]
    if len(sizes) != real.dim() or any(
        known not in (None, size) for known, size in zip(sizes, real.shape, strict=True)
    ):
        return None
    symbolic = list(map(is_symbolic_number, shown.shape))
    small = tuple([n if o and n < 2 else None for n, o in zip(real.shape, symbolic, strict=True)])
    strides: Any = None
    if [_at(step, values) for step in shown.stride()] != list(real.stride()):
        steps = real.stride()
        order = tuple(sorted(range(real.dim()), key=lambda axis: -steps[axis]))
        strides = ("order", *order)
        if not any(symbolic):
            strides = ("strides", *steps)
        elif dense_stride(real.shape, order) != steps:
            return None
    return small, strides, real.requires_grad


def _at(number: Any, values: dict[Any, int]) -> int | None:
    """A number of the capture for these values of its symbols; None where that is not known."""
    if not is_symbolic_number(number):
        return int(number)
    found = expression_of(number).xreplace(values)
    return int(found) if _is_constant(found) else None


def _is_constant(expression: Any) -> bool:
    return type(expression) is int or bool(expression.is_Integer)


def _remade(shown: Any, row: tuple[Any, ...], constants: dict[Any, int]) -> Any:
    """A fake like the shown one, in a form."""
    small, strides, _ = row
    sizes = [
        _with(size, constants) if number is None else number
        for size, number in zip(shown.shape, small, strict=True)
    ]
    steps: Sequence[Any]
    if strides is None:
        steps = [_with(step, constants) for step in shown.stride()]
    elif strides[0] == "order":
        steps = dense_stride(tuple(sizes), strides[1:])
    else:
        steps = strides[1:]
    with shown.fake_mode, torch.no_grad():
        return torch.empty_strided(sizes, steps, dtype=shown.dtype, device=shown.device)


def _with(number: Any, constants: dict[Any, int]) -> Any:
    """A number of the capture with constants for some symbols."""
    expression = expression_of(number)
    if not is_symbolic_number(number) or constants.keys().isdisjoint(expression.free_symbols):
        return number
    expression = expression.xreplace(constants)
    if _is_constant(expression):
        return int(expression)
    return number.node.shape_env.create_symintnode(expression, hint=None)
