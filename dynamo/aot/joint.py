"""The joint graph: a program and its backward as one functional ATen graph.

In: a captured module and its example inputs, some of which require grad. Out: a `JointGraph`.

The program is recorded as for inference; then `torch.autograd.grad` runs inside the recording, with
a placeholder for the gradient of each output that requires grad. What autograd saves for backward
shows as values that both halves use: the partition decides later what is really kept.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import _engine_run_backward

from dynamo.aot.aliasing import OutputPlan
from dynamo.aot.capture import (
    Leaving,
    Session,
    leave,
    outside_inference_mode,
    record_program,
    refusals,
)
from dynamo.aot.fakes import facts_of, is_fake, is_static, storage_key
from dynamo.aot.function_backwards import Backwards
from dynamo.aot.graphs import acts_late, make_module, remove_dead_code
from dynamo.aot.histories import inputs_behind, noting_arrivals
from dynamo.aot.records import (
    LATE,
    TAKES_WRAPPERS,
    BackwardFails,
    Mutation,
    Unsupported,
    WrapperGradient,
)
from dynamo.aot.reference import Reference, ReferenceWorld
from dynamo.base.subclasses import classes_as_in_program, is_wrapper
from dynamo.shapes.facts import Facts, contiguous_stride

aten = torch.ops.aten
SAVED = "eager_saves"
TANGENT = "tangent_"
LOSS_PARALLEL = "loss_parallel"


@dataclass(frozen=True, slots=True)
class Tangent:
    """What the gradient of an output of the graph looks like when it comes in: dense.

    order: its dimensions from the longest stride to the shortest. form: size and stride where they
    are static.
    """

    output: int
    dtype: torch.dtype
    order: tuple[int, ...]
    form: tuple[tuple[int, ...], tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A program and its backward.

    module: placeholders are the program's inputs, then the tangents; the output is a tuple of the
        program's values (outputs, then mutated inputs; None for those that `plan.views` has), then
        the gradients (None: no gradient).
        Values that eager itself keeps for backward have `node.meta["eager_saves"]`.
    values: how many values there are. tangents: one for each output of the graph with a gradient.
    gradients: the inputs that the gradients belong to. arrival: places among these, in the order in
    which eager's backward is done with them. edges: the outputs whose gradients nothing is computed
    of, and the inputs that backward comes to from them, with no gradient. nonlinear: of the calls
    of autograd functions those whose backward may not run for two parts of a gradient, by their
    places in program order, with the outputs whose gradients come there.
    """

    module: fx.GraphModule
    reference: Reference
    plan: OutputPlan
    mutations: tuple[Mutation, ...]
    values: int
    tangents: tuple[Tangent, ...]
    gradients: tuple[int, ...]
    arrival: tuple[int, ...]
    edges: Mapping[int, frozenset[int]]
    nonlinear: Mapping[int, frozenset[int]]


def tangent_name(output: int) -> str:
    """The name of the placeholder for the gradient of an output of the graph."""
    return f"{TANGENT}{output}"


def capture_joint(
    gm: fx.GraphModule, example_inputs: list[Any], world: Any = None
) -> JointGraph | None:
    """The joint graph; None where no output needs a gradient. Errors: as `capture_forward`."""
    world = ReferenceWorld() if world is None else world
    with refusals(world.is_symbolic), outside_inference_mode(gm):
        session, plan, outputs, mutated = record_program(world, gm, example_inputs)
        _check_histories(list(example_inputs), session, [index for index, _ in mutated])
        with session.recording():
            leaving = leave(session, plan, outputs, mutated, False)
            sources = _sources(session, plan, outputs)
            for mutation in leaving.mutations:
                if session.gets_history(mutation.input) and mutation.output is not None:
                    sources[mutation.output] = session.inputs[mutation.input]
            if not sources:
                return None
            _check_shared(session, [index for index, _ in mutated])
            if any(real.requires_grad for _, real in session.reference.constants):
                raise Unsupported("a tensor attribute of the graph requires grad")
            joint = _differentiate(session, plan, leaving, sources, outputs)
        written = [(index, id(value)) for index, value in session.mutated()]
        if written != [(index, id(value)) for index, value in mutated]:
            raise Unsupported("backward writes into an input")  # checkpointed batch normalisation
        return joint


def _check_shared(session: Session, mutated: list[int]) -> None:
    """Raises Unsupported for an input that is written and gets a history, in memory of others."""
    for index in mutated:
        if session.reference.histories[index] and shares_storage(session.reference, index):
            raise Unsupported("a mutated input shares a storage with another input")


def shares_storage(reference: Reference, index: int) -> bool:
    """True where another input lies in the storage of this one."""
    storages = [storage_key(fake) for fake in reference.inputs if is_fake(fake)]
    return storages.count(storage_key(reference.inputs[index])) > 1


def _check_histories(examples: list[Any], session: Session, mutated: list[int]) -> None:
    for index, changed in enumerate(session.reference.histories):
        if changed != (index in session.insides and session.gets_history(index)):
            raise Unsupported("an input has another history in functional form")
        if changed and index not in mutated:
            raise Unsupported("an input gets a history without new data")
        if changed and examples[index]._is_view():
            raise Unsupported("an input that is a view gets a value with a gradient")


def _sources(session: Session, plan: OutputPlan, outputs: list[Any]) -> dict[int, torch.Tensor]:
    """The outputs of the graph that require grad, by index."""
    sources = {}
    for index, (position, is_base) in enumerate(plan.values):
        wrapper, expected = outputs[position], session.reference.outputs[position]
        if is_base:
            wrapper, expected = wrapper._base, expected._base
        if wrapper.requires_grad != expected.requires_grad:
            raise Unsupported("an output requires grad only in functional form")
        if wrapper.requires_grad and position not in session.reference.spent:
            sources[index] = wrapper
    return sources


def _add_tangents(
    session: Session, leaving: Leaving, sources: dict[int, torch.Tensor]
) -> tuple[list[Tangent], list[torch.Tensor]]:
    """Placeholders for the gradients of these outputs, and their functional tensors."""
    tangents, grads = [], []
    for index, wrapper in sources.items():
        own = leaving.values[index]
        facts = facts_of(session.value(wrapper) if own is None else own.meta["val"])
        order, stride = _dense_form(facts)
        fake = session.world.make(
            session.world.cache.facts(facts.size, stride, 0, facts.dtype, wrapper.device)
        )
        form = (facts.size, stride) if is_static(facts) else None
        tangents.append(Tangent(index, facts.dtype, order, form))
        session.recorder.placeholder(tangent_name(index), fake)
        grads.append(session.wrap(fake))
    return tangents, grads


def _differentiate(
    session: Session, plan: OutputPlan, leaving: Leaving, sources: dict[int, torch.Tensor],
    outputs: list[Any],
) -> JointGraph:
    recorder = session.recorder
    forward = set(recorder.graph.nodes)
    tangents, grads = _add_tangents(session, leaving, sources)
    wanted = list(session.leaves)
    seen_outside = [session.inputs[index] for index in session.insides] + [*outputs, *grads]
    backwards = Backwards(session.gm, recorder, session.value, seen_outside, grads)
    backwards.attach(sources.values())
    try:
        # as torch.autograd.grad, whose checks of shapes import SymPy
        with (session.world.in_python(), classes_as_in_program(), around_backward(session.gm),
              _noting_arrival([*session.leaves.values()]) as arrived,
              noting_arrivals(recorder, sources.values())):
            results = _engine_run_backward(
                tuple(sources.values()),
                tuple(grads),
                False,  # retain_graph
                False,  # create_graph
                tuple(session.leaves.values()),
                allow_unreachable=True,
                accumulate_grad=False,
            )
    except BackwardFails as refusal:
        raise BackwardFails(refusal.reason, backwards.blamed) from refusal
    except RuntimeError as error:
        raise BackwardFails(f"its backward fails: {error}") from error
    seen: set[fx.Node] = set()
    nodes = [None if grad is None else _gradient(session, index, grad, seen)
             for index, grad in zip(wanted, results, strict=True)]
    recorder.graph.output((*leaving.values, *nodes))
    remove_dead_code(recorder.graph)
    read = {node.name for node in recorder.graph.nodes if node.op == "placeholder" and node.users}
    edges = {index: inputs_behind(wrapper, session.leaves) for index, wrapper in sources.items()
             if tangent_name(index) not in read}  # fmt: skip
    _mark_saved(recorder.graph, forward)
    for node in recorder.graph.nodes:
        if node.op == "call_function" and node not in forward and acts_late(node):
            node.meta[LATE] = True
    return JointGraph(
        module=make_module(recorder.graph, recorder.constants),
        reference=session.reference,
        plan=plan,
        mutations=leaving.mutations,
        values=len(leaving.values),
        tangents=tuple(tangents),
        gradients=tuple(wanted),
        arrival=tuple(dict.fromkeys([*arrived, *range(len(wanted))])),
        edges=edges,
        nonlinear={call: frozenset([tangents[at].output for at in places])
                   for call, places in backwards.nonlinear.items()},
    )


@contextlib.contextmanager
def _noting_arrival(leaves: list[torch.Tensor]) -> Iterator[list[int]]:
    """Gives a list to which autograd adds the place of each leaf whose gradient is complete."""
    arrived: list[int] = []

    def note(place: int, _: torch.Tensor) -> None:
        arrived.append(place)

    hooks = [leaf.register_hook(functools.partial(note, place))
             for place, leaf in enumerate(leaves)]  # fmt: skip
    try:
        yield arrived
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def around_backward(gm: fx.GraphModule) -> Iterator[None]:
    """Inside of `loss_parallel` where the program enters it: torch asks a program to run backward
    there as well, and when it does, the compiled one has been recorded."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.args == (LOSS_PARALLEL,):
            (leave,) = node.users
            context = node.target(LOSS_PARALLEL)
            try:
                yield
            finally:
                leave.target(context)
            return
    yield


def _dense_form(facts: Facts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Order and strides of a gradient: the output's where these are dense, else contiguous."""
    axes = tuple(range(len(facts.stride)))
    order = tuple(sorted(axes, key=lambda axis: -facts.stride[axis]))
    if dense_stride(facts.size, order) == facts.stride:
        return order, facts.stride
    return axes, contiguous_stride(facts.size)


def dense_stride(size: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps, longest first in this order of the dimensions."""
    dense = contiguous_stride(tuple([size[axis] for axis in order]))
    return tuple([dense[order.index(axis)] for axis in range(len(size))])


def _gradient(
    session: Session, index: int, grad: torch.Tensor, seen: set[fx.Node]
) -> fx.Node:
    """A gradient's node; a copy where its storage is an input's or another gradient's."""
    if is_wrapper(grad):
        if session.gm.meta.get(TAKES_WRAPPERS):
            raise WrapperGradient(index, grad)
        raise Unsupported(f"a plain input gets a gradient of class {type(grad).__qualname__}")
    recorder = session.recorder
    node = recorder.node_of(session.value(grad))
    root = node
    while (source := viewed(root)) is not None:
        root = source
    if root.op == "call_function" and root not in seen:
        seen.add(root)
        return node
    return recorder.node_of(recorder.call_on_node(aten.clone.default, node))


def _mark_saved(graph: fx.Graph, forward: set[fx.Node]) -> None:
    """Marks what autograd saved: the forward values that backward reads, seen through views."""
    for node in graph.nodes:
        if node not in forward or node.op == "output":
            continue
        if any(user not in forward and user.op != "output" for user in node.users):
            source: fx.Node | None = node
            while source is not None:
                source.meta[SAVED] = True
                source = viewed(source)


def viewed(node: fx.Node) -> fx.Node | None:
    """The tensor that this node is a view of, or views of which it gives; None where it is none."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    if node.op != "call_function" or not is_fake(value):
        return None
    key = storage_key(value)
    if node.target is operator.getitem:
        source = viewed(node.all_input_nodes[0])
        return None if source is None or storage_key(source.meta["val"]) != key else source
    for given in node.all_input_nodes:
        other = given.meta["val"]
        if is_fake(other) and storage_key(other) == key:
            return given
    return None
