"""`torch.autograd.Function`: a call of `apply` is one node of the graph.

`forward` and `backward` are traced beforehand on a context of our own, only to learn what they read
(guards) and that they change nothing outside; where they do, or can't be traced, the graph breaks
before the call. Where it reads more than its arguments, or writes by collectives, the node runs
what the trace has recorded (`own_functions.py`).
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch._C._functorch import TransformType
from torch._functorch.autograd_function import VmapInfo
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.nn.modules._functions import BackwardHookFunction

from dynamo.base.autograd_apply import APPLY, apply_in_graph
from dynamo.base.decisions import is_in_graph
from dynamo.base.errors import Break
from dynamo.graph_operators import collectives
from dynamo.graph_operators.cuts import runs_alone
from dynamo.graph_operators.kernel_launches import launches_recorded
from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.lists import NamedTupleVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.tensors import own_functions, torch_functions, transforms
from dynamo.symbolic.tensors.constant_objects import without_objects
from dynamo.symbolic.tensors.own_functions import Look
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar


class TracedContext:
    """What `forward` and `backward` are given as `ctx` while they are traced."""

    saved_tensors: tuple[Any, ...] = ()
    forward_tensors: tuple[Any, ...] = ()
    materialize_grads = True
    dirty: tuple[Any, ...] = ()
    fixed: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self.forward_tensors = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.fixed = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


@runs_alone
def hook_gradients(*tensors: Any) -> Any:
    """In a graph: what torch puts before and behind a module with backward hooks."""
    return BackwardHookFunction.apply(*tensors)  # type: ignore[no-untyped-call]


@rule(APPLY)
def apply_function(tx: Frame, cls: Var, /, *args: Var, **kwargs: Var) -> Var:
    """`SomeFunction.apply(*args)`."""
    trace = tx.trace
    if not isinstance(cls, ClassVar) or kwargs:
        raise Break("call_of_unknown_function", f"apply of {cls!r}")
    if cls.cls is BackwardHookFunction:  # its node of autograd gets the hooks
        return torch_functions.call_in_graph(tx, hook_gradients, list(args), {})
    refuse_other_classes(tx, cls, args)
    transformed = torch_functions.in_transform()
    if transformed and has_old_form(cls.cls):  # which torch refuses
        raise Break("call_of_unknown_function", f"apply of {cls!r}")
    if transformed and torch.is_grad_enabled() and any(map(wants_gradient_below, args)):
        # what runs below the levels is recorded without the node that autograd would get there
        raise Break("call_of_unknown_function", f"apply of {cls!r}, of which the program wants "
                    "gradients by autograd, inside of a transform")
    if is_in_graph(cls.cls):  # its code is not looked at
        return put_in_graph(tx, cls.cls, args, transformed)
    state = tensor_state(trace)
    mark, before, read = trace.graph.mark(), trace.effects.places(), state.new_gradients_read
    compiled = state.compiled
    with trace.objects.noting_known() as found:
        look = look_through(tx, cls.cls, list(args))
        if transformed:
            look_through_levels(tx, cls.cls, args)
    reads = trace.effects.reach([cls, *args, *found]) or state.new_gradients_read != read
    if reads:  # the graph runs before the changes are made
        raise Break("call_of_unknown_function", f"apply of {cls!r}, which reads what was changed")
    if trace.effects.changed_outside(before):
        raise Break("call_of_unknown_function", f"apply of {cls!r}, which changes objects")
    trace.effects.forget_since(before)
    traced = has_collectives((*look.body, *look.back)) or not are_arguments(args) or (
        reads_more(look, args))
    if traced and not transformed:
        return own_functions.call_own(tx, cls.cls, list(args), look, mark)
    trace.graph.rollback(mark)
    return put_in_graph(tx, cls.cls, args, transformed, state.compiled != compiled)


FUNCTION = "a __torch_function__"


def refuse_other_classes(tx: Frame, cls: Var, args: tuple[Var, ...]) -> None:
    """Break where code that runs in the graph would ask a mode of the program, or see another
    class: a wrapper is of its own class there, other subclasses are plain tensors."""
    if tensor_state(tx.trace).function_modes:
        raise Break("call_of_unknown_function", f"apply of {cls!r}, whose code {FUNCTION} sees")
    tensors: list[TensorVar] = []
    torch_functions.collect_tensors(TupleVar(list(args)), tensors)
    for var in tensors:
        if var.loses_class:
            raise Break("tensor_subclass", f"{var.cls.__qualname__} as an argument of {cls!r}, "
                        "whose code would see another class")


def put_in_graph(
    tx: Frame, cls: type, args: tuple[Var, ...], transformed: bool, compiles: bool = False
) -> Var:
    """The call as one node, which runs the code of the program."""
    target, rest, _ = without_objects(tx, apply_in_graph(cls, compiles), list(args), {})
    try:
        if transformed:
            return transforms.on_tensors(tx, target, tuple(rest), {})
        with launches_recorded():
            return torch_functions.call_in_graph(tx, target, rest, {})
    except ObservedException as error:
        raise Break("call_of_unknown_function", f"apply of {cls.__name__} raises") from error


def wants_gradient_below(var: Var) -> bool:
    """Whether a tensor requires a gradient below all levels of torch.func's transforms."""
    value = var.fake if isinstance(var, TensorVar) else None
    while value is not None and torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value is not None and value.requires_grad


def are_arguments(args: tuple[Var, ...]) -> bool:
    """False where one can't be an argument of a node: a module, say."""
    try:
        own_functions.nodes_of(args)
    except Break as reason:
        if reason.code != "not_a_graph_argument":
            raise
        return False
    return True


def has_collectives(nodes: Iterable[fx.Node]) -> bool:
    """True where the function's own code would write by operators of torch that have no functional
    form: the operations of the trace have one."""
    for node in nodes:
        if getattr(node.target, "__module__", None) == collectives.__name__:
            return True
        if isinstance(node.target, own_functions.OwnFunction) and any(
                has_collectives(half.module.graph.nodes) for half in node.target.halves()):
            return True
    return False


def reads_more(look: Look, args: tuple[Var, ...]) -> bool:
    """True where the function reads tensors, or numbers that change, beside its arguments. Sizes of
    these it finds itself."""
    given = own_functions.nodes_of(args)
    sizes = {symbol for node in given for symbol in symbols_of(node)}
    return any(not symbols_of(node) or not symbols_of(node) <= sizes
               for node in own_functions.read_beside(look, given))  # fmt: skip


def symbols_of(node: fx.Node) -> set[Any]:
    """The symbols in a number, or in the sizes of a tensor."""
    value = node.meta["example_value"]
    numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
    return {symbol for number in numbers if isinstance(number, torch.SymInt)
            for symbol in number.node.expr.free_symbols}  # fmt: skip


def look_through(tx: Frame, cls: type, args: list[Var]) -> Look:
    """Traces `forward` and `backward`; what becomes of the operations is the caller's affair."""
    trace = tx.trace
    tensors: list[TensorVar] = []
    torch_functions.collect_tensors(TupleVar(args), tensors)
    versions = [var.fake._version for var in tensors]
    context = ObjectVar(TracedContext)
    mark = trace.graph.mark()
    needs = [isinstance(arg, TensorVar) and bool(arg.fake.requires_grad) for arg in args]
    context.write_own(tx, "needs_input_grad", trace.constant(tuple(needs)))
    enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        look = Look(forward(tx, cls, context, args))
        look.body = trace.graph.operations_after(mark)
        dirty = context.get_attr(tx, "dirty").unpack(tx)
        written = [
            var for var, old in zip(tensors, versions, strict=True) if var.fake._version != old
        ]
        look.writes = not set(written).issubset(dirty) and not has_collectives(look.body)
        if look.writes and (torch_functions.in_transform() or reach_outside(tx, written)):
            raise Break("call_of_unknown_function", f"{cls.__qualname__} writes into its arguments")
        own_functions.note_context(tx, look, context)
        if enabled and any(needs):
            backward(tx, cls, context, look, mark)
        if transforms.has_level(TransformType.Jvp):
            context.write_own(tx, "saved_tensors", context.get_attr(tx, "forward_tensors"))
            tangents = [like(tx, arg) for arg in args]
            tx.call(part_of(tx, cls, "jvp"), [context, *tangents], {})
    finally:
        torch._C._set_grad_enabled(enabled)
    return look


def reach_outside(tx: Frame, written: list[TensorVar]) -> bool:
    """Whether one of these tensors, or what it is a view of, was not made in the graph."""
    outside = {storage_of(var.fake) for var in tensor_state(tx.trace).tensor_inputs}
    return any(var.source is not None or storage_of(var.fake) in outside for var in written)


def forward(tx: Frame, cls: Any, context: Var, args: list[Var]) -> Var:
    """Both forms: with `ctx` first, or followed by `setup_context`."""
    function = part_of(tx, cls, "forward")
    if has_old_form(cls):
        return tx.call(function, [context, *args], {})
    result = tx.call(function, args, {})
    tx.call(part_of(tx, cls, "setup_context"), [context, TupleVar(args), result], {})
    return result


def has_old_form(cls: Any) -> bool:
    """True where `forward` gets the context, and there is no `setup_context`."""
    return cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context  # type: ignore[no-any-return]


def like(tx: Frame, value: Var, make: Any = torch.zeros_like) -> Var:
    """A gradient or a tangent of a value: None where it is no tensor."""
    if isinstance(value, TensorVar):
        return tx.trace.call(tx, make, value)
    return ConstVar(None)


def look_through_levels(tx: Frame, cls: Any, args: tuple[Var, ...]) -> None:
    """Traces `vmap` as each vmap around the call will call it: below its level, on batches."""
    with contextlib.ExitStack() as stack:
        while torch_functions.in_transform():
            level: Any = retrieve_current_functorch_interpreter()
            dims, args = transforms.below(tx, level, args)
            stack.enter_context(level.lower())
            if level.key() == TransformType.Vmap and not cls.generate_vmap_rule:
                batch = tx.trace.symbols.wrap_symbolic(level.batch_size())
                facts = [batch, ConstVar(level.randomness())]
                info = NamedTupleVar(VmapInfo, facts)
                in_dims = TupleVar([ConstVar(dim) for dim in dims])
                tx.call(part_of(tx, cls, "vmap"), [info, in_dims, *args], {})


def backward(tx: Frame, cls: Any, context: Var, look: Look, mark: fx.Node) -> None:
    """With gradients like the outputs; the look gets what is found."""
    graph = tx.trace.graph
    outputs = own_functions.parts_of(look.result)
    look.seeds = [like(tx, output) for output in outputs]
    before = graph.operations_after(mark)
    name = "vjp" if cls.vjp is not torch.autograd.Function.vjp else "backward"
    function = part_of(tx, cls, name)
    look.once = own_functions.has_no_second_order(inspect.getattr_static(cls, name))
    known = tx.trace.world.constants
    reads = known.times_read
    look.grads = tx.call(function, [context, *look.seeds], {})
    look.decides = known.times_read != reads
    if look.decides:  # what the other branch of most such questions reads, `if grad != 1`
        ones = [like(tx, output, torch.ones_like) for output in outputs]
        tx.call(function, [context, *ones], {})
    look.back = {node: None for node in graph.operations_after(mark) if node not in before}


METHODS = (staticmethod, classmethod, types.FunctionType)


def part_of(tx: Frame, cls: type, name: str) -> Var:
    """A method of the function's class, as torch finds it there."""
    raw = inspect.getattr_static(cls, name)
    if type(raw) not in METHODS:
        raise Break("call_of_unknown_function", f"{cls.__qualname__}.{name}")
    var = ClassVar(cls, ObjectSource(cls, cls.__name__), None)
    return tx.trace.attributes.get_from_class(tx, var, name)
