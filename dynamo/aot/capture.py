"""Capture for inference: a program (torch-level graph) becomes a functional ATen graph.

In: the module that the frontend captured and its example inputs. Out: an `AtenGraph`.

    >>> graph = capture_forward(fx.symbolic_trace(lambda x: x.sin().add_(1)), [torch.randn(3)])
    >>> [str(node.target) for node in graph.module.graph.nodes if node.op == "call_function"]
    ['aten.sin.default', 'aten.add.Tensor']

The program runs twice over fake tensors: once as eager runs it (`reference`), once above torch's
C++ functionalization with a `Recorder` below it. Sizes and strides must agree at every node, since
a value whose strides differ from eager's could make a view of what eager copies.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from dynamo.aot.aliasing import OutputPlan, check_mutations, check_views, plan_outputs
from dynamo.aot.fakes import facts_of, is_fake, is_symbolic_number, storage_key
from dynamo.aot.functional_tensors import FunctionalMode, inner_of, value_of, wrap
from dynamo.aot.graphs import make_module, remove_dead_code
from dynamo.aot.inplace_checks import cheap_checks
from dynamo.aot.program import Observer, run_program
from dynamo.aot.recorder import Recorder
from dynamo.aot.records import AtenGraph, Mutation, Retrace, SymbolTable, Unsupported, Within
from dynamo.aot.reference import (
    Reference,
    ReferenceWorld,
    check_example,
    metadata_of,
    run_reference,
)
from dynamo.aot.shared_inputs import used_inputs, with_views_of_inputs
from dynamo.base.autograd_apply import AUTOGRAD_FUNCTION, note_materializing
from dynamo.base.errors import Signal
from dynamo.base.user_lines import with_ranges
from dynamo.graph_operators.kernel_launches import launches_recorded
from dynamo.graph_operators.written_operators import prepare_operators
from dynamo.shapes.facts import Facts, contiguous_stride
from dynamo.shapes.fake import Fake
from dynamo.shapes.iteration import is_dense

aten = torch.ops.aten
_BY_PLACES = {  # which argument names a place in a storage
    aten.as_strided.default: 3, aten.as_strided_copy.default: 3, aten.as_strided_scatter.default: 4,
}  # fmt: skip


def capture_forward(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    *,
    epilogue_in_graph: bool = False,
    world: Any = None,
) -> AtenGraph:
    """The functional ATen graph of a program, under the present grad mode and autocast state.

    world: see `capture_in_world`; by default one of static sizes.

    Errors: Unsupported; errors of the program are raised as eager raises them.
    """
    world = ReferenceWorld() if world is None else world
    with refusals(world.is_symbolic), outside_inference_mode(gm):
        session, plan, outputs, mutated = record_program(world, gm, example_inputs)
        if plan.views:
            raise Unsupported("an output is an input behind an autograd.Function")
        return _finish(session, plan, outputs, mutated, epilogue_in_graph)


def record_program(
    world: Any, gm: fx.GraphModule, example_inputs: list[Any]
) -> tuple[Session, OutputPlan, list[Any], list[tuple[int, Any]]]:
    """The recorded program: what its outputs are, their values, and the inputs that it writes."""
    prepare_operators(gm)
    for node in gm.graph.nodes:
        if hasattr(node.target, AUTOGRAD_FUNCTION):
            note_materializing(getattr(node.target, AUTOGRAD_FUNCTION))
    with launches_recorded():
        return _record_program(world, gm, example_inputs)


def _record_program(
    world: Any, gm: fx.GraphModule, example_inputs: list[Any], within: tuple[Within, ...] = ()
) -> tuple[Session, OutputPlan, list[Any], list[tuple[int, Any]]]:
    """within: what the program takes for granted of its inputs."""
    reference = replace(run_reference(world, gm, list(example_inputs)), within=within)
    if world.is_symbolic:
        check_example(reference, gm, list(example_inputs))
    plan = plan_outputs(reference)
    check_views(reference, plan)
    session = Session(world, gm, reference)
    with session.recording():
        outputs = session.run()
    mutated = session.mutated()
    written = [index for index, _ in mutated]
    changed = with_views_of_inputs(gm, reference, written)
    if changed is not None:
        return _record_program(world, changed[0], example_inputs, changed[1])
    check_mutations(reference, written, used_inputs(gm, reference))
    _check_places(session, written)
    return session, plan, outputs, mutated


def _check_places(session: Session, mutated: list[int]) -> None:
    """Raises Unsupported where a place in a storage is named of what an input has become by a write
    into it: that begins at 0, and the input did not."""
    inputs = session.reference.inputs
    if all(facts_of(inputs[index]).offset == 0 for index in mutated):
        return
    for node in session.recorder.graph.nodes:
        place = _BY_PLACES.get(node.target)
        if place is None or node.args[0].op == "placeholder" or not node.users:
            continue
        if len(node.args) > place and node.args[place] is not None:
            raise Unsupported(
                "as_strided of an input that does not begin its storage, after a write")


@contextlib.contextmanager
def outside_inference_mode(gm: fx.GraphModule) -> Iterator[None]:
    """Inference mode is no-grad mode here: its tensors can't be functionalized. And nobody looks
    for anomalies of fakes."""
    inside = torch.is_inference_mode_enabled()
    if inside and any(node.args == ("inference_mode", False) for node in gm.graph.nodes):
        raise Unsupported("the program leaves its caller's inference mode")
    grad = torch.is_grad_enabled() and not inside
    with (torch.inference_mode(False), torch.set_grad_enabled(grad),
          torch.autograd.set_detect_anomaly(False)):
        yield


@contextlib.contextmanager
def refusals(symbolic: bool = False) -> Iterator[None]:
    """Signals of the stages below become Unsupported; all errors where sizes are symbolic."""
    try:
        yield
    except (Unsupported, Retrace):
        raise
    except Signal as signal:
        raise Unsupported(f"{type(signal).__name__}: {signal}") from signal
    except Exception as error:
        if not symbolic:
            raise
        raise Unsupported(f"with symbolic sizes, {type(error).__name__}: {error}") from error


class _NonLeaf(torch.autograd.Function):
    """Gives the functional tensor of an input a history: only then may a program write into it."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, make: Callable[[], torch.Tensor]) -> Any:
        ctx.set_materialize_grads(False)  # none stays none
        return make()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class Session:
    """One recording of a program.

    inputs: the functional tensors (or numbers) that the program runs on. insides: the fakes in them
    at the start. leaves: for inputs that require grad, what to differentiate by. histories: the
    `grad_fn` of inputs that are no leaves.
    """

    def __init__(self, world: Any, gm: fx.GraphModule, reference: Reference) -> None:
        self.gm = gm
        self.reference = reference
        self.world = world
        self.recorder = Recorder(world, reference.bernoulli)
        self.inputs: list[Any] = []
        self.insides: dict[int, Fake] = {}
        self.leaves: dict[int, torch.Tensor] = {}
        self.histories: dict[int, Any] = {}
        self._leaves: dict[int, torch.Tensor] = {}
        self._above = world.meets_wrappers  # which need functional tensors of a class in Python

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """What runs inside is functionalized and recorded."""
        autocast_cached = torch.is_autocast_cache_enabled()
        functional = FunctionalMode() if self._above else _functionalized()
        with self.recorder, cheap_checks(), launches_recorded(), functional:
            try:
                yield
            finally:
                if autocast_cached:
                    torch.clear_autocast_cache()

    def wrap(self, inside: Fake) -> torch.Tensor:
        """A tensor of the recorded program whose value is a fake."""
        functional: torch.Tensor = torch._to_functional_tensor(inside)  # type: ignore[attr-defined]
        return wrap(functional) if self._above else functional

    def run(self) -> list[Any]:
        """Records the program; its flat outputs (functional tensors and plain values)."""
        names = [node.name for node in self.gm.graph.nodes if node.op == "placeholder"]
        for index, (name, value) in enumerate(zip(names, self.reference.inputs, strict=True)):
            self.inputs.append(self._wrap_input(index, name, value))
        checker = _Checker(self)
        self.recorder.in_program = True
        try:
            result = run_program(
                self.gm, self.inputs, self._wrap_leaf, checker, self.world.around
            )
        except RuntimeError as error:  # the reference run passed: functionalization can't do it
            raise Unsupported(f"no functional form: {error}") from error
        finally:
            self.recorder.in_program = False
        self.recorder.stack_trace = None
        if self.reference.form.kind is not None:
            return list(result)
        return torch.utils._pytree.tree_leaves(result)

    def _wrap_input(self, index: int, name: str, value: Any) -> Any:
        if not is_fake(value):
            self.recorder.placeholder(name, value)
            return value
        inside = self.world.make(facts_of(value))
        self.recorder.placeholder(name, inside)
        self.insides[index] = inside
        wrapper = self.wrap(inside)
        self.recorder.watch(inner_of(wrapper), inside)
        if self.reference.grads[index]:
            self.leaves[index] = wrapper.requires_grad_()
            if not value.is_leaf:
                with torch.enable_grad():
                    wrapper = _NonLeaf.apply(wrapper, lambda: self._non_leaf(inside))
                self.histories[index] = wrapper.grad_fn
        return wrapper

    def _non_leaf(self, inside: Fake) -> torch.Tensor:
        made = self.wrap(inside)
        self.recorder.watch(inner_of(made), inside)
        return made

    def _wrap_leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._leaves.get(id(tensor))
        if known is None:
            inside = self.world.make(self.world.cache.facts_of(tensor, tensor.device))
            self.recorder.alias(inside, self.recorder.constant(tensor))
            known = self.wrap(inside)
            if tensor.requires_grad:
                known.requires_grad_()
            self._leaves[id(tensor)] = known
        return known

    def value(self, wrapper: torch.Tensor) -> Fake:
        """The present value of a functional tensor."""
        return value_of(wrapper)  # type: ignore[no-any-return]

    def keep_strides(self, value: Any, expected: Any) -> None:
        """Gives what the program has written its own strides again: inputs, then the tensors in
        `value`, of which `expected` tells the metadata. An operation's result has no gaps, which an
        input may have (a slice), and no strides of 0; many (a scatter, a mask's fill) give rows
        where what is written in place keeps its columns."""
        for index, first in self.insides.items():
            wrapper = self.inputs[index]
            if type(wrapper) is not torch.Tensor or wrapper.shape != first.shape:
                continue
            if wrapper.stride() != first.stride():
                made = self.recorder.call(aten.copy.default, (first, self.value(wrapper)), {})
                self.recorder.replace_inside(wrapper, made)
        for wrapper, facts in _tensors_with(value, expected):
            if type(wrapper) is torch.Tensor and _may_reorder(wrapper, facts):
                self._reorder(wrapper, facts[1])

    def _reorder(self, wrapper: torch.Tensor, stride: tuple[int, ...]) -> None:
        """The same values in memory without gaps, in the order of these strides: of two that are
        equal one is of an extent of 1, which lies inside."""
        size = wrapper.shape
        order = sorted(range(len(stride)), key=lambda axis: (-stride[axis], -size[axis]))
        back = sorted(range(len(stride)), key=order.__getitem__)
        call = self.recorder.call
        rows = call(aten.permute.default, (self.value(wrapper), order), {})
        made = call(aten.clone.default, (rows,), {"memory_format": torch.contiguous_format})
        self.recorder.replace_inside(wrapper, call(aten.permute.default, (made, back), {}))

    def gets_history(self, index: int) -> bool:
        """True where the program wrote a value with a gradient into this input."""
        history = self.inputs[index].grad_fn
        return history is not None and history is not self.histories.get(index)

    def mutated(self) -> list[tuple[int, Fake]]:
        """(input, last value) of the inputs whose data the program changed."""
        found = []
        with self.recording():
            for index, inside in self.insides.items():
                value = self.value(self.inputs[index])
                if value is not inside:
                    if index in self.world.shared:
                        raise Unsupported("a mutated input shares a storage with another input")
                    found.append((index, value))
        return found


def _tensors_with(value: Any, expected: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """The tensors in a value, each with its part of what `metadata_of` gives for it in eager."""
    if isinstance(value, torch.Tensor):
        yield value, expected
    elif isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        for item, part in zip(items, expected, strict=True):
            yield from _tensors_with(item, part)


def _may_reorder(wrapper: torch.Tensor, expected: Any) -> bool:
    """True where only the strides differ, and those of eager leave no gaps."""
    if not isinstance(expected, tuple) or metadata_of(wrapper) == expected:
        return False
    size, stride, dtype = expected
    return (wrapper.shape, wrapper.dtype) == (size, dtype) and is_dense(size, stride)


@contextlib.contextmanager
def _functionalized() -> Iterator[None]:
    """C++ functionalization, for factories too."""
    torch._enable_functionalization(reapply_views=True)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._disable_functionalization()  # type: ignore[attr-defined]


WRITES_STATISTICS = "batch_norm"  # in names of functions: their schema does not tell of the write


def _is_functional(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(
        torch._is_functional_tensor(inner_of(value)))  # type: ignore[attr-defined]


class _Checker(Observer):
    """Compares with the reference run, and tells the recorder the user's line."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.metadata = session.reference.metadata
        self.ranges: dict[fx.Node, str] = {}  # of the program's `record_function`s, that are open

    def before(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        trace = node.meta.get("stack_trace")
        self.note_range(node)
        self.recorder.stack_trace = (
            with_ranges(trace, list(self.ranges.values())) if self.ranges else trace)
        given = (*args, *kwargs.values()) if kwargs else args
        if metadata_of(given) != self.metadata[node][0]:
            self.session.keep_strides(given, self.metadata[node][0])
        if metadata_of(given) != self.metadata[node][0]:
            raise Unsupported(f"an argument of {node.name} has other strides after mutation")
        if WRITES_STATISTICS in str(getattr(node.target, "__name__", node.target)):
            for wrapper in filter(_is_functional, given):
                self.recorder.watch_argument(wrapper, value_of(wrapper))

    def note_range(self, node: fx.Node) -> None:
        """Capture writes them as two functions, `enter` and `leave`."""
        name = getattr(node.target, "__name__", "")
        if name == "enter" and node.args[0] == "record_function":
            self.ranges[node] = str(node.args[1])
        elif name == "leave" and node.args:
            self.ranges.pop(node.args[0], None)  # type: ignore[arg-type]

    def after(self, node: fx.Node, value: Any) -> None:
        with torch.no_grad():
            for wrapper, inside in self.recorder.take_replaced():
                wrapper.data.copy_(self.session.wrap(inside))
        if metadata_of(value) != self.metadata[node][1]:
            self.session.keep_strides(value, self.metadata[node][1])
        if metadata_of(value) != self.metadata[node][1]:
            raise Unsupported(f"{node.name} has other strides in functional form")
        self.recorder.note_history(value, node.meta.get("stack_trace"))


@dataclass(frozen=True, slots=True)
class Leaving:
    """The nodes that leave the graph: values of outputs (None for those that are not its), then of
    mutated inputs."""

    values: list[fx.Node | None]
    mutations: tuple[Mutation, ...]


def _finish(
    session: Session,
    plan: OutputPlan,
    outputs: list[Any],
    mutated: list[tuple[int, Fake]],
    epilogue_in_graph: bool,
) -> AtenGraph:
    recorder, reference = session.recorder, session.reference
    with session.recording():
        leaving = leave(session, plan, outputs, mutated, epilogue_in_graph)
    recorder.graph.output(tuple(leaving.values))
    remove_dead_code(recorder.graph)
    module = make_module(recorder.graph, recorder.constants)
    graph = describe(reference, plan, module, leaving.mutations, epilogue_in_graph)
    return with_symbols(graph, session.world)


def describe(
    reference: Reference,
    plan: OutputPlan,
    module: fx.GraphModule,
    mutations: tuple[Mutation, ...],
    epilogue_in_graph: bool,
) -> AtenGraph:
    """The record of a graph that was made of this program."""
    mutated = {mutation.input for mutation in mutations}
    in_inference = _inference_outputs(reference, plan)
    only = 0 < len(in_inference) == len(plan.values) and not any(reference.written)
    return AtenGraph(
        module=module,
        outputs=plan.outputs,
        form=reference.form,
        mutations=mutations,
        numbers=tuple(
            (index, value)
            for index, value in enumerate(reference.inputs)
            if not is_fake(value) and not is_symbolic_number(value)
        ),
        needs_grad=tuple(at for at, _ in plan.values if needs_grad(reference, at)),
        mutates_history=tuple(m.input for m in mutations if reference.histories[m.input]),
        epilogue_in_graph=epilogue_in_graph,
        inference=only,
        in_inference=() if only else in_inference,
        quiet=tuple(m.input for m in mutations if not reference.written[m.input]),
        touched=tuple(
            index for index, moves in enumerate(reference.written)
            if moves and index not in mutated
        ),
        within=reference.within,
        spent=tuple(at for at, (place, _) in enumerate(plan.values) if place in reference.spent),
        leaves=tuple(itertools.compress(itertools.count(), reference.grads)),
    )


def _inference_outputs(reference: Reference, plan: OutputPlan) -> tuple[int, ...]:
    """The graph's outputs that the program's own blocks make inference tensors."""
    keys = [storage_key(reference.outputs[position]) for position, _ in plan.values]
    return tuple([at for at, key in enumerate(keys) if key in reference.inference])


def with_symbols(graph: AtenGraph, world: Any) -> AtenGraph:
    """The graph with the symbols of its world, and what was assumed of them until now."""
    table: SymbolTable | None = world.table()
    if table is None:
        return graph
    graph.module.meta["symbols"] = table
    return replace(graph, symbols=table.symbols, assumptions=table.assumptions)


def needs_grad(reference: Reference, position: int) -> bool:
    """True where an output or what it is a view of requires grad."""
    if position in reference.spent:
        return False
    out = reference.outputs[position]
    base = out._base
    return bool(out.requires_grad or (base is not None and base.requires_grad))


def leave(
    session: Session,
    plan: OutputPlan,
    outputs: list[Any],
    mutated: list[tuple[int, Fake]],
    epilogue_in_graph: bool,
) -> Leaving:
    """Brings the outputs and the mutated inputs to nodes."""
    recorder = session.recorder
    values = [
        None if at in plan.views else
        _own_value(session, outputs[position], is_base, session.reference.outputs[position])
        for at, (position, is_base) in enumerate(plan.values)
    ]
    mutations = []
    placeholders = [node for node in recorder.graph.nodes if node.op == "placeholder"]
    for index, value in mutated:
        node = recorder.node_of(value)
        if epilogue_in_graph:
            copy = recorder.graph.call_function(aten.copy_.default, (placeholders[index], node))
            copy.meta["val"] = placeholders[index].meta["val"]
            mutations.append(Mutation(index, None))
        else:
            mutations.append(Mutation(index, len(values)))
            values.append(node)
    return Leaving(values, tuple(mutations))


def _own_value(session: Session, wrapper: torch.Tensor, is_base: bool, expected: Fake) -> fx.Node:
    """The node of an output; a copy where the node is an input or a constant."""
    recorder = session.recorder
    value = session.value(wrapper)
    node = recorder.node_of(value)
    facts = facts_of(expected)
    if is_base:
        facts = facts_of(expected._base)
        node = _in_size(recorder, recorder.base_of(value), facts)
    found = facts_of(node.meta["val"])
    if (found.size, found.stride, found.dtype) != (
        facts.size,
        facts.stride,
        facts.dtype,
    ):
        raise Unsupported("an output has other strides in functional form")
    if node.op == "call_function":
        return node
    inside = recorder.call_on_node(aten.clone.default, node)
    return recorder.node_of(inside)


def _in_size(recorder: Recorder, node: fx.Node, facts: Facts) -> fx.Node:
    """The node, or one with the same elements in that size: what a linear layer gives is no view,
    but is made of the result of a GEMM."""
    found = facts_of(node.meta["val"])
    if found.size == facts.size or math.prod(found.size) != math.prod(facts.size):
        return node
    if any(each.stride != contiguous_stride(each.size) for each in (found, facts)):
        return node
    return recorder.node_of(recorder.call_on_node(aten.view.default, node, facts.size))
