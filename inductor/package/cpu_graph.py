"""A captured graph as the code of a package: texts of kernels, tables for its runtime, weights.

In: a captured graph of inference, where each input and each result of the program comes from. Out:
a `Code`. GEMMs, attention and convolutions are our own wherever these can compute them; what is
left is a call of an operator of libtorch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.api import functional_graph
from dynamo.aot.records import (
    AtenGraph,
    ConstantOutput,
    FreshOutput,
    InputOutput,
    PlainOutput,
    Unsupported,
    ViewOutput,
)
from dynamo.base.graph_copies import copy_module
from dynamo.graph_operators.cuts import has_cuts
from dynamo.graph_operators.gradients import has_gradients
from inductor.config import OWN, config
from inductor.driver.inference import Generated, generate_inference
from inductor.driver.known_results import is_lazy, with_known_calls
from inductor.dynamic_shapes.specialise import is_symbolic
from inductor.dynamic_shapes.subgraphs import has_unbacked
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.graph import InputBuffer
from inductor.package.decompositions import own_decompositions

ARGUMENT, WEIGHT, GRAPH, PLAIN = "argument", "weight", "graph", "plain"
NONE = "none"
ENTRY, READ = "int run(Runtime* rt)", re.compile(r"\bd\[(\d+)\]")
Place = tuple[str, Any]
"""("argument", number), ("weight", tensor), or of a result ("graph", number), ("plain", value)."""
SETTINGS = {"library_kernels": OWN, "freezing": 1 << 20}


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor as a view of a slot: see `views` in `runtime/csrc/spec.cpp`."""

    slot: int
    offset: Any
    dtype: torch.dtype
    size: tuple[Any, ...]
    stride: tuple[Any, ...]


class Weights:
    """The weights of a package, each once. `tensors` is the list."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._known: dict[Any, int] = {}

    def number(self, value: torch.Tensor) -> int:
        """Its place in the list. Errors: Unsupported."""
        plain = value.layout is torch.strided and not value.is_conj() and not value.is_neg()
        if not plain or value.device.type not in ("cpu", "cuda"):
            raise Unsupported(f"it has a weight of another kind ({value.layout}, {value.device})")
        if value.device.type != "cpu":
            flat = value.detach().as_strided((span_of(value),), (1,), value.storage_offset()).cpu()
            value = flat.as_strided(value.shape, value.stride())
        digest = hashlib.sha256(bytes_of(value)).digest()
        key = (value.dtype, value.shape, value.stride(), digest)
        if key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append(value)
        return self._known[key]


def span_of(tensor: torch.Tensor) -> int:
    """Elements from the first to the last."""
    if tensor.numel() == 0:
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory from the first element to the last."""
    count = span_of(tensor)
    if not count:
        return memoryview(b"")
    flat = tensor.detach().as_strided((count,), (1,), tensor.storage_offset())
    return flat.view(torch.uint8).numpy().data  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Code:
    """units: texts of C++. spec: of the launcher (`runtime/csrc/spec.cpp`), with slots of kind
    "argument", "weight" (position: in the list of `Weights`) or "none" for inputs and constants.
    results: of the program, a `Seen` or a plain value. written: arguments that it writes. libtorch:
    operators that it calls, each with the user's line."""

    units: list[str]
    spec: dict[str, Any]
    results: list[Any]
    written: frozenset[int]
    libtorch: tuple[tuple[str, str], ...]


def generate(
    gm: fx.GraphModule, examples: list[Any], arguments: Sequence[torch.Tensor],
    inputs: Sequence[Place], results: Sequence[Place], settings: Mapping[str, Any],
    weights: Weights,
) -> Code:
    """The code of a graph, whose weights are put into the list. arguments: tensors of the call;
    inputs: of the graph, examples: their values; results: of the program. Errors: Unsupported;
    those of the program and defects."""
    settings = {**SETTINGS, **settings}
    with config.patch(**settings), torch.no_grad():
        gm = with_known_calls(copy_module(gm), examples, settings)
        check_graph(gm, examples)
        if any(isinstance(x, torch.Tensor) and x.device.type != "cpu" for x in examples):
            raise Unsupported("its tensors are on a GPU and target=\"cpu\"; move them to the CPU")
        table = {**decompositions(), **own_decompositions()}
        graph = functional_graph(gm, examples, decompositions=table, epilogue_in_graph=True)
        written = written_places(graph, inputs)
        weights_at = frozenset(n for n, (kind, _) in enumerate(inputs) if kind == WEIGHT)
        made = generate_inference(graph.module, graph.fakes, weights_at, weights_at)
        values = [value if kind == WEIGHT else None for kind, value in inputs]
        slots = Slots(
            made.spec, made.lowered.graph.inputs, arguments, inputs, _prepared(made, values))
        found = [slots.of_result(place, graph) for place in results]
        text = "\n".join(unit for unit in made.units if ENTRY in unit)
        slots.number_weights(found, weights, {int(number) for number in READ.findall(text)})
    left = _left_to_libtorch(made)
    return Code(made.units, slots.spec, found, written, left)


def check_graph(gm: fx.GraphModule, examples: list[Any]) -> None:
    """Errors: Unsupported for what is no single graph of known sizes."""
    if has_gradients(gm):
        raise Unsupported("it computes gradients")
    if has_unbacked(gm) or has_cuts(gm):
        raise Unsupported("a part of its graph runs as it was captured: values of tensors decide")
    if is_symbolic(gm, examples):
        raise Unsupported("its graph takes a number that may change")
    if any(map(is_lazy, examples)):
        raise Unsupported("a tensor is a conjugate or a negative that is not computed yet")


def written_places(graph: AtenGraph, inputs: Sequence[Place]) -> frozenset[int]:
    """The arguments that are written. Errors: Unsupported where that is a weight."""
    found = set()
    for mutation in graph.mutations:
        kind, number = inputs[mutation.input]
        if kind != ARGUMENT:
            raise Unsupported("it writes into a tensor of the module (a cache, a counter, running "
                              "statistics), and a package keeps no state between calls")
        found.add(number)
    return frozenset(found)


def _prepared(made: Generated, values: list[Any]) -> list[Any]:
    """The values of all inputs, with those that are computed once; None for arguments."""
    values = [None if value is None else value.detach() for value in values]
    for item in made.prepared:
        values.append(item.make(*(values[position] for position in item.positions)))
    return values


class Slots:
    """The description with arguments and weights for inputs, and results as views of slots."""

    def __init__(
        self, spec: dict[str, Any], given: Sequence[InputBuffer | None],
        arguments: Sequence[torch.Tensor], inputs: Sequence[Place], values: list[Any],
    ) -> None:
        """spec: see `Code`. given: the inputs of the loop graph."""
        self._arguments, self._inputs = arguments, inputs
        buffers = [buffer for buffer in given if buffer is not None]
        rows = [self._row(row, buffers, values, spec["constants"]) for row in spec["slots"]]
        self.spec = {**spec, "slots": rows}

    def _row(
        self, row: tuple[Any, ...], buffers: list[InputBuffer], values: list[Any],
        constants: list[torch.Tensor],
    ) -> tuple[Any, ...]:
        kind, position, *meta = row
        if kind == "packed":
            raise AssertionError("a weight in an order of oneDNN's")
        if kind == "constant":
            return (WEIGHT, constants[position], *meta)
        if kind != "input":
            return row
        at = buffers[position].position
        if at < len(self._inputs) and self._inputs[at][0] == ARGUMENT:
            return (ARGUMENT, self._inputs[at][1], *meta)
        return (WEIGHT, values[at], *meta)

    def number_weights(
        self, results: Sequence[Any], weights: Weights, used: set[int]
    ) -> None:
        """Puts weights into the list, but those that kernels read as prepared copies alone. used:
        slots that kernels read."""
        used = used | {result.slot for result in results if isinstance(result, Seen)}
        rows = self.spec["slots"]
        for at, (kind, value, *meta) in enumerate(rows):
            if kind == WEIGHT:
                known = at in used
                rows[at] = (WEIGHT, weights.number(value), *meta) if known else (NONE, 0, *meta)

    def of_result(self, place: Place, graph: AtenGraph) -> Any:
        """A `Seen`, or a plain value. Errors: Unsupported."""
        kind, value = place
        if kind == GRAPH:
            return self._output(graph.outputs[value], graph)
        return value if kind == PLAIN else self._whole(kind, value)

    def _output(self, output: Any, graph: AtenGraph) -> Any:
        if isinstance(output, FreshOutput):
            kind, value = self.spec["outputs"][output.index]
            return Seen(*self.spec["views"][value]) if kind == "view" else value
        if isinstance(output, InputOutput):
            return self._whole(*self._inputs[output.index])
        if isinstance(output, ConstantOutput):
            return self._whole(WEIGHT, output.value)
        if isinstance(output, PlainOutput):
            return output.value
        if isinstance(output, ViewOutput):
            if output.dtype is not None or output.conjugated or output.negated:
                raise Unsupported("it returns a view with other elements than its base has")
            base = self._output(output.base, graph)
            offset = base.offset + output.offset
            return Seen(base.slot, offset, base.dtype, output.size, output.stride)
        raise Unsupported("it returns a number that is computed from sizes")

    def _whole(self, kind: str, value: Any) -> Seen:
        """An argument or weight that is returned, in a slot of its own."""
        like = value if kind == WEIGHT else self._arguments[value]
        meta = (like.dtype, tuple(like.shape), tuple(like.stride()))
        self.spec["slots"].append((kind, value, *meta))
        return Seen(len(self.spec["slots"]) - 1, 0, *meta)


def _left_to_libtorch(made: Generated) -> tuple[tuple[str, str], ...]:
    """Operators of libtorch that are called, each with the user's line that first needs it."""
    names = {made.spec["externs"][number][0] for number in made.spec["called"]}
    lines: dict[str, str] = {}
    for node in made.lowered.graph.nodes:
        target = getattr(node, "target", None)
        if isinstance(target, torch._ops.OpOverload):
            lines.setdefault(target._schema.name, next(iter(node.origins.lines), ""))
    return tuple([(name, lines.get(name, "")) for name in sorted(names)])
