"""A functional ATen graph cut into what an engine runs and what PyTorch runs.

In: the graph and an engine. Out: a callable like the graph. What the engine may not have (dtypes
that it would convert, random numbers, effects) is left out at once; an operator that its converter
refuses by name is left out in the next attempt. Both are counted and reported.

The first results of each part are compared with PyTorch's: a part that differs runs as captured.
"""

from __future__ import annotations

import functools
import operator
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.split_module import split_module

from dynamo.aot.graphs import is_once, must_run
from dynamo.backends.engines.cached_parts import converted
from dynamo.backends.engines.records import MAKES, VIEWS, Built, Engine
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.fallbacks import SUBGRAPH, Site, failed, line_of, refused
from dynamo.base.graph_copies import copy_graph
from dynamo.base.signals import is_of_signal
from dynamo.graph_operators.gradients import copy_strided
from inductor.driver.freezing import Identities
from inductor.runtime import _launch

MOST_ATTEMPTS = 8  # at a graph whose operators the converter refuses one by one
MOST_BAKED = 2  # engines made anew since the weights had changed
TOLERANCE = 1e-3  # of the largest result: engines add in other orders
NOISE = 1e-3  # of the largest input: a result far below it may be nothing but rounding


def name_of(node: fx.Node) -> str:
    """An operator's name without namespace and overload."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).split("::")[-1]


class Cutter:
    """Says of each node where it runs, and why not in the engine."""

    def __init__(
        self, engine: Engine, refused_names: Collection[str], refused_nodes: Collection[fx.Node]
    ) -> None:
        self.engine, self.refused_names = engine, refused_names
        self.refused_nodes = refused_nodes

    def why_not(self, node: fx.Node) -> str:
        """Why PyTorch runs the operator; "" where the engine may."""
        if node.target is operator.getitem:
            return self.why_not(node.args[0])  # type: ignore[arg-type]
        name = name_of(node)
        if name in self.refused_names or node in self.refused_nodes:
            return "its converter refuses it"
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            return "no operator of ATen"
        if must_run(node) or is_once(node):
            return "it may raise, has an effect, or draws random numbers"
        for value in (node, *node.all_input_nodes):
            for fake in tensors_of(value):
                if fake.device.type not in self.engine.devices:
                    return f"a tensor on {fake.device.type}"
                if fake.dtype not in self.engine.dtypes:
                    return f"a tensor of {str(fake.dtype).removeprefix('torch.')}"
                if not fake.numel():
                    return "a tensor without elements"
        return self.engine.refuses(node)

    def is_worth(self, nodes: Sequence[fx.Node]) -> bool:
        """False where there is nothing to compute."""
        rest = (node for node in nodes if node.target is not operator.getitem)
        return any(name_of(node) not in (*VIEWS, *MAKES) and tensors_of(node) for node in rest)


def tensors_of(node: fx.Node) -> list[Any]:
    """The fakes of what a node returns, as far as somebody reads it."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        read = {use.args[1] for use in node.users if use.target is operator.getitem}
        value = [one for index, one in enumerate(value) if index in read]
    values = value if isinstance(value, list) else (value,)
    return [one for one in values if isinstance(one, torch.Tensor)]


def cut(
    module: fx.GraphModule, cutter: Cutter
) -> tuple[fx.GraphModule, dict[str, bool], dict[fx.Node, str]]:
    """The graph as calls of parts, which of them (by name) are for the engine, and the part of each
    node."""
    runs: list[tuple[bool, list[fx.Node]]] = []
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        fits = not cutter.why_not(node)
        if not runs or runs[-1][0] != fits:
            runs.append((fits, []))
        runs[-1][1].append(node)
    number: dict[fx.Node, int] = {}
    kinds: list[bool] = []
    for fits, nodes in runs:
        fits = fits and cutter.is_worth(nodes)
        if not kinds or kinds[-1] != fits:
            kinds.append(fits)
        number.update((node, len(kinds) - 1) for node in nodes)
    split = split_module(module, module, lambda node: number[node], keep_original_order=True)
    names = {node: f"submod_{index}" for node, index in number.items()}
    return split, {f"submod_{index}": fits for index, fits in enumerate(kinds)}, names


def compile_parts(
    engine: Engine, module: fx.GraphModule, frozen: Collection[int], site: Site
) -> Callable[..., Any]:
    """See the top of the file. frozen: inputs that are weights of inference."""
    names: set[str] = set()
    nodes: set[fx.Node] = set()
    while True:
        cutter = Cutter(engine, names, nodes)
        split, kinds, numbers = cut(module, cutter)
        weights = {
            node for index, node in enumerate(split.graph.find_nodes(op="placeholder"))
            if index in frozen and engine.bakes}
        try:
            made = {
                node.target: Part(engine, split, node, weights, site)
                for node in split.graph.find_nodes(op="call_module", sort=False)
                if kinds[str(node.target)]}
        except Refused as refusal:
            left = refusal.names - names if len(names) < MOST_ATTEMPTS else set()
            names |= left
            if not left:
                nodes |= {node for node in numbers if numbers[node] == refusal.part}
                refused(SUBGRAPH, f"{engine.name} can't take it: {refusal}",
                        line_of(refusal.nodes), strict=site.strict)
            continue
        break
    _tell(engine, module, cutter, site)
    if not made:
        return module.forward
    logs.log("inductor").emit(f"{engine.name} runs {len(made)} of {len(kinds)} parts of a graph")
    for target, part in made.items():
        setattr(split, str(target), part)
    split.recompile()
    return split.forward


def _tell(engine: Engine, module: fx.GraphModule, cutter: Cutter, site: Site) -> None:
    """Each operator that PyTorch runs, once for each reason."""
    reported: set[tuple[str, str]] = set()
    for node in module.graph.nodes:
        name = name_of(node)
        if not name or name in VIEWS or name in MAKES:
            continue
        why = cutter.why_not(node)
        if why and (name, why) not in reported:
            reported.add((name, why))
            refused(SUBGRAPH, f"{engine.name} does not get {name}: {why}", line_of([node]),
                    strict=site.strict)


class Refused(Exception):
    """A converter refuses a part. names: the operators that its message names, or those with
    several results where it names none."""

    def __init__(self, error: Exception, part: str, nodes: list[fx.Node]) -> None:
        message = f"{error} {error.__cause__ or ''}"
        words = set(re.findall(r"\w+", message.partition("Summary:")[2] or message))
        lines = message.strip().splitlines() or [type(error).__name__]
        super().__init__(lines[-1][:200])
        self.part, self.nodes = part, nodes
        names = {name_of(node) for node in nodes} - {""}
        several = {name_of(node) for node in nodes if isinstance(node.meta.get("val"), tuple)}
        self.names = names & words or several - {""}


class Part(torch.nn.Module):
    """One part in the engine, called like its module."""

    def __init__(
        self, engine: Engine, split: fx.GraphModule, node: fx.Node, weights: set[fx.Node],
        site: Site,
    ) -> None:
        super().__init__()
        self.engine, self.site, self.name = engine, site, str(node.target)
        self.module: fx.GraphModule = getattr(split, str(node.target))
        nodes = list(self.module.graph.nodes)
        self.inputs = [one for one in nodes if one.op == "placeholder"]
        self.outputs = fx.node.map_arg(nodes[-1].args[0], lambda one: one.meta["val"])
        self.single = not isinstance(self.outputs, (tuple, list))
        if self.single:
            self.outputs = (self.outputs,)
        self.baked = [n for n, one in enumerate(node.args) if one in weights]
        self.checked = False
        self.known: tuple[Identities, int, list[Tensor], Built] | None = None
        self.made = 0
        self.lock = threading.Lock()
        self.plain: Built | None = None
        self.examples = [example_of(one.meta["val"]) for one in self.inputs]
        # Weights are known at a call; what the converter refuses is reported without them.
        self.make = self._guarded(self._prepare)
        if not self.baked:
            self.plain = self._guarded(lambda: self.make({}))

    def _prepare(self) -> Callable[[Mapping[int, Tensor]], Built]:
        """What makes engines of the part, some of whose inputs are constants. Errors: what the
        converter raises."""
        engine = self.engine
        if engine.convert is not None and engine.load is not None:
            return functools.partial(engine.load, converted(engine, self.module, self.examples))
        build = engine.build
        assert build is not None
        first = build(self.module, self.examples)

        def make(weights: Mapping[int, Tensor]) -> Built:
            if not weights:
                return first
            module = bake(self.module, list(weights), list(weights.values()))
            rest = [x for n, x in enumerate(self.examples) if n not in weights]
            return build(module, rest)

        return make

    def _guarded(self, step: Callable[[], Any]) -> Any:
        try:
            with timed(self.engine.name), torch.no_grad():
                return step()
        except Exception as error:
            if is_of_signal(error):
                raise
            raise Refused(error, self.name, list(self.module.graph.nodes)) from error

    def forward(self, *inputs: Tensor) -> Any:
        try:
            return self._run(inputs)
        except Refused as refusal:
            text = f"{self.engine.name} failed on a part of a graph, which runs as captured"
            failed(SUBGRAPH, refusal, text, self._place(), strict=self.site.strict, at_call=True)
            return self._give_up()(*inputs)

    def _run(self, inputs: tuple[Tensor, ...]) -> Any:
        built, given = self.plain, list(inputs)
        if built is None:
            values = [inputs[n] for n in self.baked]
            known = self.known
            if known is None or not self._fits(known, values):
                return self._run_rebuilt(values, inputs)
            built, given = known[3], [x for n, x in enumerate(inputs) if n not in self.baked]
        results = [
            value if value.stride() == fake.stride() else copy_strided(value, fake)
            for value, fake in zip(built(given), self.outputs, strict=True)]
        if not self.checked:
            self.checked = True
            why = self._differs(results, inputs)
            if why:
                reason = f"{self.engine.name} computes something else: {why}"
                refused(SUBGRAPH, reason, self._place(), strict=self.site.strict)
                return self._give_up()(*inputs)
        return results[0] if self.single else tuple(results)

    def _fits(self, known: Any, values: list[Tensor]) -> bool:
        """Whether the engine's weights are those of this call."""
        return (known[0].fit(values) and _launch.sample(values) == known[1]
                and all(map(torch.equal, statistics(values), known[2])))

    def _run_rebuilt(self, values: list[Tensor], inputs: tuple[Tensor, ...]) -> Any:
        """A call with other weights than the engine's: another engine, or one that takes them."""
        with self.lock:
            self.made += 1
            if self.made > MOST_BAKED or any(value.is_inference() for value in values):
                self.plain = self._guarded(lambda: self.make({}))
                self.known = None
            else:
                identities, sample = Identities.of(values), _launch.sample(values)
                copies = [value.clone() for value in statistics(values)]
                weights = dict(zip(self.baked, values, strict=True))
                built = self._guarded(lambda: self.make(weights))
                self.known = identities, sample, copies, built
        return self._run(inputs)

    def _differs(self, results: list[Tensor], inputs: tuple[Tensor, ...]) -> str:
        wanted = self.module(*inputs)
        wanted = (wanted,) if self.single else wanted
        least = NOISE * max(map(largest, inputs), default=0.0)
        for value, other in zip(results, wanted, strict=True):
            if value.shape != other.shape or value.dtype != other.dtype:
                return f"{list(value.shape)} {value.dtype}"
            if not other.dtype.is_floating_point:
                if not torch.equal(value, other):
                    return "other integers"
                continue
            size = TOLERANCE * max(largest(other), least)
            if not torch.allclose(value, other, TOLERANCE, size, equal_nan=True):
                return f"by up to {float((value - other).abs().max()):.2g}"
        return ""

    def _give_up(self) -> Callable[..., Any]:
        self.forward = self.module.forward  # type: ignore[method-assign]
        return self.module.forward

    def _place(self) -> str:
        return line_of(self.module.graph.nodes) or self.site.place


def largest(value: Tensor) -> float:
    """The largest finite element of a tensor of floats."""
    finite = value[value.isfinite()] if value.dtype.is_floating_point else value.new_empty(0)
    return float(finite.abs().max()) if finite.numel() else 0.0


def statistics(values: Sequence[Tensor]) -> list[Tensor]:
    """Of the weights those that batch norms write without counting a version."""
    return [value for value in values
            if not isinstance(value, torch.nn.Parameter) and value.dim() <= 1]


def example_of(fake: Any) -> Tensor:
    """A tensor with the sizes of another, for a converter that looks at no values."""
    return torch.zeros(tuple(fake.shape), dtype=fake.dtype, device=fake.device)


def bake(module: fx.GraphModule, places: Sequence[int], values: Sequence[Tensor]) -> fx.GraphModule:
    """The module with some of its inputs as constants."""
    graph = copy_graph(module.graph)
    made = fx.GraphModule(module, graph)
    nodes = graph.find_nodes(op="placeholder")
    for place, value in zip(places, values, strict=True):
        made.register_buffer(f"weight_{place}", value.detach())
        with graph.inserting_before(nodes[place]):
            constant = graph.get_attr(f"weight_{place}")
        nodes[place].replace_all_uses_with(constant)
        graph.erase_node(nodes[place])
    made.recompile()
    return made
