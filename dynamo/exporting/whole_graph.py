"""`export(f, *args, **kwargs)`: one whole graph of a function or module, and what it assumes.

The function is compiled for capture with `fullgraph=True` and called once with the arguments, so
that nothing of the program changes (see `dynamo.exporting.isolation`); its tensors are then found
again among the arguments, parameters, and the graph's results.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from dynamo import hook
from dynamo.api import compile_by
from dynamo.backends.services import service
from dynamo.base.config import config
from dynamo.base.errors import Unsupported
from dynamo.base.graph_copies import copy_graph
from dynamo.base.words import described
from dynamo.exporting.isolation import Settled, copy_into_buffers, run_on_copies
from dynamo.graph_operators.cuts import expect
from dynamo.guards.records import Guard
from dynamo.options import check_options
from dynamo.symbolic.core.lookup import find_in_mro


class Recording:
    """A backend that keeps the graphs that it is given, and the tensors of their last call."""

    def __init__(self) -> None:
        self.modules: list[fx.GraphModule] = []
        self.inputs: list[Any] = []
        self.examples: list[Any] = []
        self.outputs: tuple[Any, ...] = ()
        self.copies: dict[int, torch.Tensor] = {}

    def __call__(self, module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.modules.append(module)
        self.examples = example_inputs

        def run(*inputs: Any) -> Any:
            self.inputs = list(inputs)
            results, self.copies = run_on_copies(module, inputs)
            self.outputs = tuple(map(as_object, results))
            return self.outputs

        return run


class GraphInt(int):
    """An int that the graph has computed: an object of its own, to be found again."""


class GraphFloat(float):
    """The same for a float."""


NUMBERS = {int: GraphInt, float: GraphFloat}


def as_object(value: Any) -> Any:
    """A result of a graph as an object that is found again by its identity."""
    if type(value) is bool:
        raise Unsupported(f"a graph can't return a bool ({value}) that it has computed")
    return NUMBERS[type(value)](value) if type(value) in NUMBERS else value


def export(
    f: Any, *args: Any, aten_graph: bool = False, **kwargs: Any
) -> tuple[fx.GraphModule, tuple[Guard, ...]]:
    """The graph of `f(*args, **kwargs)` as a module with the same arguments, and its guards.

    aten_graph: True gives ATen operations in place of torch's functions.
    Errors: Unsupported where the function is not one graph, changes Python objects, or returns
    tensors that the graph does not know; the message names the user's line.

        >>> module, guards = export(lambda x: {"y": x + 1}, torch.ones(2))
        >>> module(torch.zeros(2))["y"].tolist()
        [1.0, 1.0]
    """
    if isinstance(f, type):
        raise TypeError(f"export takes a function, a method or an nn.Module, not {described(f)}")
    whole = trace_whole(f, args, kwargs, rebinds=True)
    graph = fx.Graph()
    names = _flat_names(args, kwargs)
    flat, in_spec = pytree.tree_flatten((args, kwargs))
    places = _Nodes(graph, f)
    for name, value in zip(names, flat, strict=True):
        places.add(value, graph.placeholder(name))
    if whole.modules:
        if aten_graph and any(node.target is expect for node in whole.modules[-1].graph.nodes):
            raise Unsupported("a branch depends on the values in a tensor, to raise an error")
        source = assert_expected(whole.modules[-1])
        order = list(range(len(whole.outputs)))
        if aten_graph:
            source, order = _aten(source, whole.inputs)
        results = _copy(graph, source, places, whole.inputs)
        for value, index in zip(whole.outputs, order, strict=True):
            places.add(value, results[index])
    leaves, out_spec = pytree.tree_flatten(whole.result)
    nodes = [places.of_leaf(leaf) for leaf in leaves]
    if whole.rebound:
        copy_into_buffers(graph, name_of(f), whole.rebound, leaves, nodes, whole.copies,
                          places.of_leaf)
    graph.output(nodes)
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(_argument_names(args, kwargs), in_spec, out_spec)))
    exported = fx.GraphModule(places.attributes, graph, class_name="ExportedGraph")
    return exported, tuple(whole.guards)


def assert_expected(module: fx.GraphModule) -> fx.GraphModule:
    """A branch that would raise an error becomes an assertion that it is not taken."""
    if all(node.target is not expect for node in module.graph.nodes):
        return module
    graph = copy_graph(module.graph)
    for node in list(graph.nodes):
        if node.target is expect:
            outcomes, *tests = node.args
            with graph.inserting_before(node):
                texts = node.meta["raises"]
                for outcome, test, text in zip(outcomes, tests, texts, strict=True):
                    holds = test if outcome else graph.call_function(torch.logical_not, (test,))
                    holds.meta.update(test.meta)
                    given = (holds, text or RAISES_HERE)
                    graph.call_function(torch.ops.aten._assert_async.msg, given)
            graph.erase_node(node)
    return fx.GraphModule(module, graph, class_name="CapturedGraph")


RAISES_HERE = "the program that was exported raises an error for such values"


@dataclass(frozen=True, slots=True)
class Whole:
    """A function as one graph. modules: it, or nothing. inputs, outputs: those of its first call;
    examples: the inputs as they were compiled for; result: what the function returned; rebound:
    buffers that get new values, and these; copies: what the call has worked on, by the ids of
    tensors."""

    modules: list[fx.GraphModule]
    inputs: list[Any]
    examples: list[Any]
    outputs: tuple[Any, ...]
    result: Any
    guards: tuple[Guard, ...]
    rebound: list[tuple[torch.Tensor, Any]]
    copies: dict[int, torch.Tensor]


def trace_whole(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rebinds: bool = False
) -> Whole:
    """Calls `f(*args, **kwargs)` once, on copies. rebinds: True where it may give buffers new
    values. Errors: Unsupported where it is not one graph, or changes Python objects."""
    recording, settled = Recording(), Settled(name_of(f), own_codes(f), rebinds)
    with config.patch(background=False):
        settings = check_options(recording, None, None, True, None, None, None)
        compiled = compile_by(f, replace(settings, settle=settled))
    result, rebound = settled.split(compiled(*args, **kwargs))
    record = _the_entry(f, compiled)
    return Whole(recording.modules, recording.inputs, recording.examples, recording.outputs,
                 result, tuple(record.guards), rebound, recording.copies)


def _copy(
    graph: fx.Graph, source: fx.GraphModule, places: _Nodes, inputs: list[Any]
) -> tuple[Any, ...]:
    """Copies the captured graph; the nodes of its results."""
    placeholders = [node for node in source.graph.nodes if node.op == "placeholder"]
    known: dict[fx.Node, Any] = {}
    for node, value in zip(placeholders, inputs, strict=True):
        known[node] = places.of_input(value)
    for node in source.graph.nodes:
        if node.op == "get_attr":
            part = functools.reduce(getattr, node.target.split("."), source)
            places.attributes[node.target] = part
    return tuple(graph.graph_copy(source.graph, known))  # type: ignore[arg-type]


GRAPH_VALUES = (torch.Tensor, GraphInt, GraphFloat)
PLAIN = frozenset({bool, int, float, complex, str, torch.dtype, torch.device, torch.Size})


class Places:
    """Where inputs of a graph and leaves of a result come from, by identity. A place is what `add`
    is given, or what `outside` and `plain` make. title: of errors; owned: parameters and buffers.
    """

    def __init__(self, title: str, owned: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.title = title
        self._owned = {id(tensor): name for name, tensor in owned}
        self._known: dict[int, tuple[Any, Any]] = {}

    def add(self, value: Any, place: Any) -> None:
        if isinstance(value, GRAPH_VALUES):
            self._known.setdefault(id(value), (value, place))

    def of_input(self, value: Any) -> Any:
        if id(value) in self._known:
            return self._known[id(value)][1]
        place = self.outside(value, self._owned.get(id(value), ""))
        self.add(value, place)
        return place

    def outside(self, value: Any, name: str) -> Any:
        """The place of what is no argument. name: of a parameter or buffer."""
        raise NotImplementedError

    def of_leaf(self, value: Any) -> Any:
        if not isinstance(value, GRAPH_VALUES):
            return self.plain(value)
        if id(value) not in self._known and id(value) not in self._owned:
            kind = "tensor" if isinstance(value, torch.Tensor) else "number"
            raise Unsupported(f"{self.title}it returns a {kind} that its graph does not know")
        return self.of_input(value)

    def plain(self, value: Any) -> Any:
        if value is None or type(value) in PLAIN:
            return value
        raise Unsupported(f"{self.title}it returns {value!r}")


class _Nodes(Places):
    """Places are nodes of the exported graph. attributes: tensors that its module holds."""

    def __init__(self, graph: fx.Graph, f: Any) -> None:
        super().__init__(f"{name_of(f)}: ", tensors_of(f))
        self.graph = graph
        self.attributes: dict[str, Any] = {}

    def outside(self, value: Any, name: str) -> Any:
        name = name or f"constant_{len(self.attributes)}"
        self.attributes[name] = value
        return self.graph.get_attr(name)


def _the_entry(f: Any, compiled: Any) -> Any:
    """The record of the one entry that was made; Unsupported where the function has none."""
    policy = compiled._policy
    entries = [(code, entry) for code in policy.records
               for entry in hook.entries(code, policy.region)]
    if len(entries) != 1 or entries[0][0] not in own_codes(f):
        raise Unsupported(f"{name_of(f)}: it is not one graph, because its own code runs as it is")
    return entries[0][1].keepalive


def own_codes(f: Any) -> set[Any]:
    """The code objects that may be the one graph of a function or module."""
    parts = [f, torch.nn.Module._call_impl, find_in_mro(type(f), "__call__")]
    parts += [getattr(f, name, None) for name in ("__func__", "__wrapped__", "forward")]
    return {getattr(part, "__code__", None) for part in parts}


def _aten(module: fx.GraphModule, inputs: list[Any]) -> tuple[fx.GraphModule, list[int]]:
    """The graph over ATen operations; inputs that are written are copied into at its end. And which
    of its results each output of the captured one is."""
    capture = service("captured_aten")
    graph = capture.capture_forward(module, inputs, epilogue_in_graph=True)
    if any(type(output).__name__ != "FreshOutput" for output in graph.outputs):
        raise Unsupported("an output is a view of an input: it has no functional ATen graph")
    return graph.module, [output.index for output in graph.outputs]


def name_of(f: Any) -> str:
    code = getattr(f.forward if isinstance(f, torch.nn.Module) else f, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno} {code.co_name}" if code else repr(f)


def tensors_of(f: Any) -> list[tuple[str, torch.Tensor]]:
    owner = f if isinstance(f, torch.nn.Module) else getattr(f, "__self__", None)
    if not isinstance(owner, torch.nn.Module):
        return []
    return [*owner.named_parameters(), *owner.named_buffers()]


def _flat_names(args: Any, kwargs: Any) -> list[str]:
    """A name for each leaf of the arguments."""
    paths, _ = pytree.tree_flatten_with_path((args, kwargs))
    return ["arg_" + re.sub(r"\W+", "_", pytree.keystr(path[1:])).strip("_") for path, _ in paths]


def _argument_names(args: Any, kwargs: Any) -> list[str]:
    return [f"arg_{index}" for index in range(len(args))] + list(kwargs)
