"""Torch functions: which go into the graph as they are, and how one is put there.

In: a real callable and Vars. Out: the Var of the result, and a node in the graph when the result
holds tensors. The values of the node are found by running the function on the fake tensors; an
exception that eager would raise too is raised in the traced program.
"""

from __future__ import annotations

import importlib
import operator
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from dynamo.base.autograd_apply import RUNS_PROGRAM
from dynamo.base.decisions import is_in_graph
from dynamo.base.errors import Break, DynamoError, Signal
from dynamo.base.ragged_sizes import is_jagged, ragged_source
from dynamo.base.subclasses import PLAIN, asking, is_wrapper, shielded
from dynamo.graph_operators.cuts import ASSERTIONS
from dynamo.shapes.facts import contiguous_stride
from dynamo.shapes.fake import DataDependent, NoFakeKernel, NotSymbolic, Undecided
from dynamo.shapes.trials import Trial
from dynamo.symbolic.core.constant import TORCH_VALUE_TYPES, VALUE_TYPES, ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import module_of
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.classes import DTYPES, ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import ListVar, NamedTupleVar, SizeVar, TupleVar
from dynamo.symbolic.python.ranges import SliceVar
from dynamo.symbolic.shapes.unbacked_facts import flat
from dynamo.symbolic.tensors.constructed import Unknown, constructed
from dynamo.symbolic.tensors.failing import (
    TORCH_OPERATORS,
    break_where_caught,
    break_where_fakes_are_wrong,
    break_where_refused,
    break_where_returned,
    break_where_seen,
    break_where_stored,
    break_where_write_fails,
    note_failing,
    trial_of,
)
from dynamo.symbolic.tensors.held import HeldNumber, gives_number, held_numbers, with_dtypes
from dynamo.symbolic.tensors.memory import check_watched
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tables import restart_for_numbers, restart_for_values
from dynamo.symbolic.tensors.tensor import TensorVar

C_NAMESPACES: tuple[Any, ...] = (
    torch._C._VariableFunctions,
    torch._C._nn,
    # torch's stubs lack these.
    *(getattr(torch._C, name) for name in ("_linalg", "_fft", "_special", "_sparse", "_nested")),
)
# Python functions of these modules are plain computation on tensors.
PYTHON_NAMESPACES = frozenset({"torch.nn.functional", "torch.functional", "torch._jit_internal"})
# Functions of those namespaces that touch more than tensors, or hand on user callables.
COLLECTIVES = "_c10d_functional"  # the namespace of their operators
NOT_IN_GRAPH = frozenset(
    {
        "manual_seed",
        "seed",
        "get_rng_state",
        "set_rng_state",
        "from_numpy",
        "from_file",
        "frombuffer",
        "set_flush_denormal",
        "set_num_threads",
        "triplet_margin_with_distance_loss",
        "handle_torch_function",
        "has_torch_function",
        "boolean_dispatch",
        "_isinstance",
        "container_checker",
        "check_args_exist",
    }
)


def _collect() -> frozenset[int]:
    found = set()
    for namespace in C_NAMESPACES:
        for name in dir(namespace):
            value = getattr(namespace, name, None)
            if callable(value) and not name.startswith("__") and name not in NOT_IN_GRAPH:
                found.add(id(value))
    for name in dir(torch):
        value = getattr(torch, name)
        is_c = isinstance(value, types.BuiltinFunctionType)
        if is_c and getattr(value, "__module__", None) in (None, "torch._C._VariableFunctions"):
            if isinstance(getattr(torch._C._VariableFunctions, name, None), type(value)):
                found.add(id(value))
    for cls in (torch._C.TensorBase, torch.Tensor):
        for name, value in vars(cls).items():
            if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType):
                if name not in NOT_TENSOR_METHODS:
                    found.add(id(value))
    return frozenset(found)


NOT_TENSOR_METHODS = frozenset(
    {
        "__init__",
        "__new__",
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "numpy",
        "data_ptr",
        "register_hook",
        "_make_subclass",
        "__reduce__",
        "__repr__",
        "backward",
        "storage",
        "untyped_storage",
        "requires_grad_",
        "tolist",
        "retain_grad",
    }
)
GRAPH_FUNCTIONS = _collect()
# Python-implemented tensor methods that are plain computation.
TENSOR_PYTHON_METHODS = frozenset(
    {
        "norm", "split", "stft", "istft", "unique", "unique_consecutive", "unflatten", "__rsub__",
        "__rdiv__", "__rtruediv__", "__itruediv__", "__pow__", "__rpow__", "__floordiv__",
        "__rfloordiv__", "__rmod__", "__rlshift__", "__rrshift__", "__rmatmul__", "__pos__",
        "__neg__", "__abs__", "lu", "align_to", "index_put", "__ipow__",
    }
)  # fmt: skip
TENSOR_PYTHON_FUNCTIONS = frozenset(
    id(vars(torch.Tensor)[name]) for name in TENSOR_PYTHON_METHODS if name in vars(torch.Tensor)
)


# Operators without a fake kernel that only write into their arguments.
NO_RESULT: tuple[Any, ...] = (
    torch._fused_sgd_, torch.ops.aten._fused_sgd_.default,
    torch._fused_adagrad_, torch.ops.aten._fused_adagrad_.default,
)


def is_graph_function(function: Any) -> bool:
    """True for a torch function that becomes one node of the graph.

    >>> is_graph_function(torch.add), is_graph_function(torch.load), is_graph_function(len)
    (True, False, False)
    """
    if id(function) in GRAPH_FUNCTIONS or id(function) in TENSOR_PYTHON_FUNCTIONS:
        return True
    if is_in_graph(function):
        return True
    if isinstance(function, types.FunctionType):
        return (
            module_of(function) in PYTHON_NAMESPACES
            and function.__name__ not in NOT_IN_GRAPH
            and not function.__name__.startswith("__")
        )
    return isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def _hidden() -> dict[int, Any]:
    """By identity, C functions that a Python function of torch's hides: fx would print the name of
    both. Each has a function of another name in a graph."""

    def named(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        call.__name__ = call.__qualname__ = f"c_{function.__name__}"
        return call

    functions = torch._C._VariableFunctions
    names = [name for name in dir(functions) if id(getattr(functions, name)) in GRAPH_FUNCTIONS]
    return {id(getattr(functions, name)): named(getattr(functions, name)) for name in names
            if getattr(torch, name, None) is not getattr(functions, name)}


HIDDEN = _hidden()
DRAWN_SIZES = (torch.rand, torch.randn, torch.randint, torch.randperm)


def in_transform() -> bool:
    """True while a transform of torch.func is traced."""
    return bool(torch._C._functorch.get_dynamic_layer_stack_depth())


def call_in_graph(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var:
    """Runs a torch function on the fakes and puts it into the graph."""
    if tensor_state(tx.trace).default_devices:
        kwargs = on_default_device(tx, function, kwargs)
    if "generator" in kwargs and function in DRAWN_SIZES:
        kwargs = without_default_generator(kwargs)
    if held_numbers(args, kwargs):
        if gives_number(function, args):
            number = put_in_graph(tx, function, args, kwargs)
            return HeldNumber.of(number) if isinstance(number, TensorVar) else number
        args = with_dtypes(tx, args)
    return put_in_graph(tx, function, args, kwargs)


def on_default_device(
    tx: Frame, function: Any, kwargs: dict[str, Var]
) -> dict[str, Var]:
    """The arguments of a call inside of `with torch.device(...)`."""
    if isinstance(function, types.FunctionType) and module_of(function) not in PYTHON_NAMESPACES:
        raise Break("call_of_unknown_function", f"{function.__qualname__} with a default device")
    given = kwargs.get("device", ConstVar(None))
    if function in _device_constructors() and given.is_constant() and given.as_constant() is None:
        return {**kwargs, "device": ConstVar(tensor_state(tx.trace).default_devices[-1])}
    return kwargs


def without_default_generator(kwargs: dict[str, Var]) -> dict[str, Var]:
    """The arguments less `generator=None`: it draws the same numbers, by an overload that takes no
    symbolic sizes."""
    given = kwargs["generator"]
    if given.is_constant() and given.as_constant() is None:
        return {name: var for name, var in kwargs.items() if name != "generator"}
    return kwargs


@dataclass(slots=True)
class Operation:
    """A call of a torch function that is to become a node.

    kind, target: the node's. tensors: those among the arguments; versions: how often each was
    written into before. may_raise: whether it may fail by a number that only the run knows.
    """

    function: Any
    kind: str
    target: Any
    args: list[Var]
    kwargs: dict[str, Var]
    fake_args: list[Any]
    fake_kwargs: dict[str, Any]
    tensors: list[TensorVar]
    versions: list[int]
    may_raise: Any
    trial: Trial | None


def put_in_graph(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var:
    """The same, of arguments as they are: checked, run on fakes, recorded."""
    op = check(tx, function, args, kwargs)
    result = run(tx, op)
    note_wrappers(tx, op, result)
    if isinstance(result, Var):  # recorded below the levels of a transform
        return result
    return record(tx, op, result)


def note_wrappers(tx: Frame, op: Operation, result: Any) -> None:
    """What another process has to know of code of wrapper classes that has run on fakes."""
    unguarded = tx.trace.state(Unguarded)
    wrappers = [var.fake for var in op.tensors if is_wrapper(var.fake)]
    if not wrappers and is_wrapper(result) and op.function is type(result) and (
        not in_transform()
    ):
        try:
            unguarded.construct(constructed(
                op.function, op.fake_args, op.fake_kwargs, result, tx.trace.world))
        except Unknown as why:
            unguarded.refuse(f"it makes a {type(result).__qualname__} {why.reason}")
        return
    for value in (*wrappers, result):
        if is_wrapper(value):  # its dispatch
            unguarded.refuse(f"code of {type(value).__qualname__} has run that is not traced")


def break_where_moved(tx: Frame, tensors: list[TensorVar]) -> None:
    """Breaks the graph where it would record gradients of a parameter that has got other memory: in
    the graph that is no leaf, outside of it is one from the store on."""
    moved = tensor_state(tx.trace).moved_leaves
    if moved and torch.is_grad_enabled():
        for var in tensors:
            if var in moved:
                raise Break("attribute_store_unknown", f"data of {var!r} that has a gradient")


def check(tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]) -> Operation:
    """The operation. Errors: Break where the graph can't have it."""
    function, kind, target = _node_target(function)
    break_where_caught(tx, function)
    break_where_returned(function)
    symbols = tx.trace.symbols
    given = [*args, *kwargs.values()]
    symbols.prepare(function, given, tensor_state(tx.trace).tensor_inputs)
    fake_args = [arg.as_fake() for arg in args]
    fake_kwargs = {name: arg.as_fake() for name, arg in kwargs.items()}
    break_where_fakes_are_wrong(tx, function, [*fake_args, *fake_kwargs.values()])
    tensors: list[TensorVar] = []
    for arg in given:
        collect_tensors(arg, tensors)
    break_where_stored(tx, function, tensors)
    break_where_moved(tx, tensors)
    if is_in_graph(function) and any(var.loses_class for var in tensors):
        classes = {var.cls.__qualname__ for var in tensors if var.loses_class}
        raise Break("tensor_subclass", f"{', '.join(sorted(classes))} as an argument of "
                    f"{function.__name__}, whose code would see another class")
    versions = [var.fake._version for var in tensors]
    may_raise = symbols.unbacked.may_raise([*fake_args, *fake_kwargs.values()], True)
    fake_args = symbols.unbacked.settle_indices(function, fake_args)
    symbols.unbacked.refuse_negative(function, [*fake_args, *fake_kwargs.values()])
    tx.trace.world.observed.clear()
    trial = trial_of(tx, function, fake_args, fake_kwargs)
    return Operation(function, kind, target, args, kwargs, fake_args, fake_kwargs, tensors,
                     versions, may_raise, trial)


def run(tx: Frame, op: Operation) -> Any:
    """The result on fakes; a Var where a transform has recorded it."""
    function = op.function
    try:
        if in_transform():
            if function in ASSERTIONS:  # gives nothing that a level could follow
                raise Break("call_of_unknown_function", "an assertion inside of a transform")
            made = tx.trace.call_in_transform(function, op.fake_args, op.fake_kwargs, op.tensors)
            if made is not None:
                return made
        if any(var.cls not in PLAIN and var.acts_in_graph for var in op.tensors):
            function = as_called_in_graph(tx, function)
        if not is_in_graph(op.function):
            return run_on_fakes(tx, function, op.fake_args, op.fake_kwargs)
        with GradientReads() as reads:
            result = run_on_fakes(tx, function, op.fake_args, op.fake_kwargs)
        if reads.seen:
            raise Break("call_of_unknown_function", f"{op.function!r}, which reads a gradient")
        return result
    except Break as reason:
        if reason.code in OF_VALUES:
            restart_for_values(tx.trace, op.tensors)
            restart_for_numbers(tx.trace, op.tensors)
        raise
    except ObservedException as error:
        if is_in_graph(function):  # may be the fakes' fault
            raise Break("operation_without_fake_kernel", str(function)) from error
        break_where_seen(tx, function, error.value)
        for var in op.tensors:  # writing into a leaf is an error, into its copy not
            tensor_state(tx.trace).guard_history(var)
        raise


READ_GRADIENT = torch.Tensor.grad.__get__  # type: ignore[union-attr]


class GradientReads(TorchFunctionMode):
    """Notes whether code that is not traced asks a tensor for its gradient: fakes have none, and no
    guard says that a tensor has none later."""

    seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.seen |= func == READ_GRADIENT
        return func(*args, **(kwargs or {}))


def record(tx: Frame, op: Operation, result: Any) -> Var:
    """The node, with what it writes; the Var of its result."""
    trace, function = tx.trace, op.function
    if trace.world.constants.settled:
        return written_down(tx, function, result)
    changed = [
        var for var, old in zip(op.tensors, op.versions, strict=True) if var.fake._version != old
    ]
    given = written_by_schema(schemas_of(function, result), op.args, op.kwargs)
    changed = [*changed, *(var for var in given or () if var not in changed)]
    given_fakes = [*op.fake_args, *op.fake_kwargs.values()]
    break_where_refused(tx, function, op.trial, given_fakes, result)
    break_where_write_fails(tx, function, [var.fake for var in changed])
    if given is None and not changed and is_plain_result(result) and not tells(tx, function):
        return trace.constant(result)
    proxies = tuple(as_given(tx, op, arg) for arg in op.args)
    keywords = {name: as_given(tx, op, arg) for name, arg in op.kwargs.items()}
    kind, target = op.kind, op.target
    if any(var.cls not in PLAIN and var.acts_in_graph for var in op.tensors):
        kind, target = "call_function", as_called_in_graph(tx, function)
    node = trace.graph.operation(kind, target, proxies, keywords, result)
    node.meta["checks"] = op.may_raise
    note_failing(tx, node, function, trace.world.observed)
    node.meta["changed"] = tuple(var.fake for var in changed)
    if not is_in_graph(function) and given is None:
        node.meta["written"] = node.meta["changed"]
    trace.symbols.unbacked.keep_checks(function)
    state = tensor_state(trace)
    for var in changed:
        state.note_mutation(var)
    if state.watched:
        check_watched(trace, changed)
    return wrap_result(tx, node, result, op.tensors)


def as_called_in_graph(tx: Frame, function: Any) -> Any:
    """A function as a graph calls it on wrapper subclasses: code of the program asks their
    `__torch_function__`, torch's own functions have asked it in the trace."""
    asks = tensor_state(tx.trace).functions_enabled and runs_program(function)
    return asking(function) if asks else shielded(function)


def runs_program(function: Any) -> bool:
    """True for a function of the graph that is the program's own code, run as it is."""
    return is_in_graph(function) or getattr(function, RUNS_PROGRAM, False)


OF_VALUES = frozenset(("item", "dynamic_output_shape", "text_of_tensor"))


def tells(tx: Frame, function: Any) -> bool:
    """True for a call that is made for what it does, though it gives no tensor."""
    acts = "acts" in tx.trace.world.observed or is_in_graph(function)
    return acts or function in ASSERTIONS


def written_down(tx: Frame, function: Any, result: Any) -> Var:
    """The result of an operation whose size follows from values, all known, as a constant."""
    known = tx.trace.world.constant_of(result)
    if known is None or result.requires_grad:
        raise Break("dynamic_output_shape", text_of(function))
    if known.stride() != contiguous_stride(tuple(known.shape)):
        raise Break("dynamic_output_shape", text_of(function))
    kind = {"dtype": known.dtype, "device": known.device}
    node = tx.trace.graph.operation("call_function", torch.tensor, (known.tolist(),), kind, result)
    return wrap_result(tx, node, result, [])


def as_given(tx: Frame, op: Operation, arg: Var) -> Any:
    """The argument of a node, with numbers for tensors of which the operation has taken them, as
    `arange(x.sum())` does, and `pad(x, (before, behind))`: in a graph each would be an `item()`,
    which later parts can't follow. A tensor in two arguments stays: one may be meant as a
    tensor."""
    read = tx.trace.world.constants.read
    if read and type(arg) in (TupleVar, ListVar):
        assert isinstance(arg, TupleVar | ListVar)
        return arg.rebuild([as_given(tx, op, item) for item in arg.items])
    if read and isinstance(arg, SliceVar):
        return slice(*(as_given(tx, op, part) for part in arg.children()))
    if not (read and isinstance(arg, TensorVar) and any(arg.fake is fake for fake in read)):
        return as_argument(op.function, arg)
    if sum(_has(given, arg) for given in (*op.args, *op.kwargs.values())) > 1:
        return as_argument(op.function, arg)
    known = tx.trace.world.constant_of(arg.fake)
    return arg.as_proxy() if known is None else known.item()


def _has(given: Var, tensor: TensorVar) -> bool:
    if isinstance(given, TensorVar):
        return bool(given.fake is tensor.fake)
    if isinstance(given, TupleVar | ListVar):
        return any(_has(item, tensor) for item in given.items)
    return isinstance(given, SliceVar) and any(_has(part, tensor) for part in given.children())


def text_of(function: Any) -> str:
    """An operation in a message, where one of Python's would show its address."""
    return function.__qualname__ if isinstance(function, types.FunctionType) else str(function)


def as_argument(function: Any, arg: Var) -> Any:
    """The argument of a node: fx can't print the classes that torch takes for dtypes."""
    if isinstance(arg, ClassVar) and arg.cls in DTYPES and not is_in_graph(function):
        if is_graph_function(function):
            return DTYPES[arg.cls]
    return arg.as_proxy()


def schemas_of(function: Any, result: Any) -> list[Any]:
    """The schemas to ask for what a function writes: those of operators of libraries (their fake
    kernels need not count writes) and of torch's own that return nothing (`_fused_adam_` does not
    count them either). None at all for what only computes a result."""
    if isinstance(function, torch._ops.OpOverload) and function.namespace not in TORCH_OPERATORS:
        schemas = [function._schema]
        return [schema for schema in schemas if not schema.returns or schema.is_mutable]
    if result is not None or isinstance(function, types.FunctionType):
        return []
    packet = getattr(torch.ops.aten, getattr(function, "__name__", "").partition(".")[0], None)
    schemas = [getattr(packet, name)._schema for name in packet.overloads()] if packet else []
    return [schema for schema in schemas if schema.is_mutable and not schema.returns]


def written_by_schema(
    schemas: list[Any], args: list[Var], kwargs: dict[str, Var]
) -> list[TensorVar] | None:
    """What an operator of these schemas writes into; None where there is no schema."""
    if not schemas:
        return None
    found: list[TensorVar] = []
    for index, declared in ((i, d) for schema in schemas for i, d in enumerate(schema.arguments)):
        value = args[index] if index < len(args) else kwargs.get(declared.name)
        if value is not None and declared.alias_info is not None and declared.alias_info.is_write:
            collect_tensors(value, found)
    return list(dict.fromkeys(found))


def _node_target(function: Any) -> tuple[Any, str, Any]:
    """The callable to run, the kind of node and its target."""
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        owner = function.__objclass__
        if owner is torch._C.TensorBase or owner is torch.Tensor:
            return function, "call_method", function.__name__
    if id(function) in TENSOR_PYTHON_FUNCTIONS:
        return function, "call_method", function.__name__
    if id(function) in HIDDEN:
        return function, "call_function", HIDDEN[id(function)]
    if isinstance(function, torch._ops.OpOverloadPacket) and len(function.overloads()) == 1:
        function = getattr(function, function.overloads()[0])
    if isinstance(function, torch._ops.OpOverload) and function.namespace == COLLECTIVES:
        importlib.import_module("torch.distributed._functional_collectives")  # how results look
    return function, "call_function", function


def gives_no_tensor(operator: Any) -> bool:
    """True for an operator whose results are numbers or bools, as of `torch.equal`."""
    schema = getattr(operator, "_schema", None)
    return schema is not None and not any("Tensor" in str(each.type) for each in schema.returns)


def run_on_fakes(
    tx: Frame, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The fake result; raises Break or the traced program's exception."""
    if any(function is known for known in NO_RESULT):
        return None
    try:
        return tensor_state(tx.trace).run_fake(function, *args, **kwargs)
    except DataDependent as error:
        code = "item" if gives_no_tensor(error.op) else "dynamic_output_shape"
        if code == "dynamic_output_shape":
            tx.trace.symbols.unbacked.restart_for_shapes()
        raise Break(code, text_of(error.op)) from error
    except Undecided as error:
        tx.trace.symbols.unbacked.undecided(error)
    except NotSymbolic as error:
        if any(tx.trace.world.unbacked_in(value) for value in flat([*args, *kwargs.values()])):
            raise Break("unknown_number", str(error)) from error
        error.place = tx.trace.symbols.place()
        raise
    except NoFakeKernel as error:
        raise Break("operation_without_fake_kernel", str(error)) from error
    except (Signal, DynamoError):
        raise
    except NotImplementedError as error:
        raise Break("operation_without_fake_kernel", str(error)) from error
    except Exception as error:
        tx.trace.raise_exception(type(error), *error.args)


def collect_tensors(var: Var, tensors: list[TensorVar]) -> None:
    """Appends the tensors in an argument, nested containers included."""
    if isinstance(var, TensorVar):
        tensors.append(var)
    elif isinstance(var, TupleVar | ListVar):
        for item in var.items:
            collect_tensors(item, tensors)
    elif isinstance(var, SliceVar):
        for part in var.children():
            collect_tensors(part, tensors)


PLAIN_RESULTS = frozenset({
    *VALUE_TYPES, *TORCH_VALUE_TYPES, torch.Size, torch.SymInt, torch.SymFloat, torch.SymBool,
})


def is_plain_result(value: Any) -> bool:
    """True where no tensor is in the value."""
    if type(value) in (tuple, list):
        return all(is_plain_result(item) for item in value)
    return type(value) in PLAIN_RESULTS


def _part_of(
    tx: Frame, node: fx.Node, key: Any, value: Any, tensors: list[TensorVar]
) -> Var:
    if not isinstance(value, torch.Tensor | tuple | list | dict):
        return tx.trace.constant(value)
    part = tx.trace.graph.operation("call_function", operator.getitem, (node, key), {}, value)
    return wrap_result(tx, part, value, tensors)


def wrap_result(
    tx: Frame, node: fx.Node, value: Any, tensors: list[TensorVar]
) -> Var:
    """The Var of what a node gives: a tensor, or a nest of tuples and lists of tensors."""
    if isinstance(value, torch.Tensor):
        for var in tensors:
            if var.fake is value:
                return var
        tx.trace.symbols.unbacked.bind_sizes(node, value)
        made = TensorVar(node, value, cls=class_of(value))
        made.parts = parts_given(value, tensors)
        if is_jagged(value):
            source = ragged_source(value)
            given = [part for part in made.parts.values() if part.fake is source]
            tensor_state(tx.trace).note_nested(made, given[0] if given else None)
        return made
    if value is None or type(value) in PLAIN_RESULTS:
        return tx.trace.constant(value)
    if type(value) is dict and all(type(key) is str for key in value):
        parts = {key: _part_of(tx, node, key, item, tensors) for key, item in value.items()}
        return DictVar.from_names(parts)
    if isinstance(value, tuple | list):
        items = []
        for index, item in enumerate(value):
            items.append(_part_of(tx, node, index, item, tensors))
        return sequence_of(value, items)
    raise Break("graph_result_unknown", type(value).__qualname__)


def parts_given(value: Any, tensors: list[TensorVar]) -> dict[str, TensorVar]:
    """Inner tensors of a wrapper that are tensors it was made of: the same objects."""
    if not tensors or not is_wrapper(value):
        return {}
    given = {id(var.fake): var for var in tensors}
    inner = {name: getattr(value, name) for name in value.__tensor_flatten__()[0]}
    return {name: given[id(part)] for name, part in inner.items() if id(part) in given}


def class_of(fake: torch.Tensor) -> type[torch.Tensor]:
    """The class that the program sees of a tensor of the graph."""
    if is_wrapper(fake):
        return type(fake)
    return torch.nn.Parameter if getattr(fake, "_is_param", False) else torch.Tensor


def sequence_of(value: Any, items: list[Var]) -> Var:
    """A sequence like `value` with other items."""
    if type(value) is list:
        return ListVar(items)
    if type(value) is tuple:
        return TupleVar(items)
    if type(value) is torch.Size:
        return SizeVar(items)
    return NamedTupleVar(type(value), items)
