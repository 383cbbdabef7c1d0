"""`__torch_function__`: classes, objects and modes of the program that answer for torch.

Where one is among the arguments of a torch function (or a mode is entered), the program's own
`__torch_function__` is traced, as C code and `torch.overrides` would call it. What that calls with
the asking turned off becomes a node of the graph.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Sequence
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.base.ragged_sizes import Jagged
from dynamo.base.subclasses import OVERRIDE, PLAIN, TURNED_OFF
from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_in_mro, find_owner, is_derived, module_of, name_in_c
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.comparisons import COMPARE, SYMBOLS
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import BuiltinVar, MethodVar, inline_polyfill
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.operators import BINARY, function_of
from dynamo.symbolic.python.reflected import goes_first, unless_not_implemented
from dynamo.symbolic.python.sameness import same
from dynamo.symbolic.tensors.override_probes import OverrideCall, overrides, probe_call
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import GRAPH_FUNCTIONS, PYTHON_NAMESPACES

DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
TENSORS = (torch.Tensor, torch._C.TensorBase)
# Methods of tensors that ask nobody, and do something.
SILENT = frozenset("""__init__ __new__ __getattribute__ __setattr__ __delattr__ __reduce__
    as_subclass _make_subclass _make_wrapper_subclass""".split())
ASKING = frozenset("""has_torch_function has_torch_function_unary has_torch_function_variadic
    handle_torch_function""".split())
NUMBERS = (int, float, bool, complex)


# -- who is asked --------------------------------------------------------------------------------


def is_concerned(trace: Evaluation, args: Sequence[Var]) -> bool:
    """True where a torch function with these arguments would ask the program."""
    state = tensor_state(trace)
    if state.function_modes:
        return True
    if not state.functions_enabled:
        return False
    for var in args:  # mostly tensors and numbers
        if type(var) is TensorVar:
            if var.cls not in PLAIN and var.overrides:
                return True
        elif type(var) is not ConstVar and overrides(var):
            return True
    return False


@functools.lru_cache(4000)
def _asks(code: types.CodeType) -> bool:
    return not ASKING.isdisjoint(code.co_names)


def asks(function: Any) -> bool:
    """True for a function of torch that asks `__torch_function__`, or may call one that does."""
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        return id(function) in GRAPH_FUNCTIONS or function is torch._C._set_grad_enabled
    if kind in DESCRIPTORS:
        return function.__objclass__ in TENSORS and function.__name__ not in SILENT
    if kind is types.FunctionType:
        module = module_of(function)
        return module in PYTHON_NAMESPACES or module.partition(".")[0] == "torch" and (
            _asks(function.__code__) or vars(torch.Tensor).get(function.__name__) is function)
    return kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def intercept(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var | None:
    """The program's answer for a call of a torch function; None where it is not asked."""
    if not asks(function):
        return None
    if not is_concerned(tx.trace, [*args, *kwargs.values()] if kwargs else args):
        return None
    if isinstance(function, types.FunctionType):  # it asks by itself
        return inline_polyfill(tx, function, args, kwargs)
    return by_stand_ins(tx, function, args, kwargs)


def by_stand_ins(
    tx: Frame, call: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var | None:
    """The answer for a call of C code; None where it asks nobody."""
    state = tensor_state(tx.trace)
    now = tx.current
    by_mapping = now.op == "CALL_FUNCTION_EX" and bool(now.arg & 1)
    probed = probe_call(
        call, args, kwargs, enabled=state.functions_enabled, has_modes=bool(state.function_modes),
        by_mapping=by_mapping)
    if probed is None or not (probed.order or state.function_modes):
        return None
    function = function_var(tx, probed.function)
    rest = [var_of(tx, probed, value) for value in probed.rest]
    order = [probed.var_of(value) for value in probed.order]
    try:
        result = dispatch(tx, function, probed.kinds, order, rest)
    except ObservedException as error:
        if probed.outcome is NotImplemented and issubclass(error.value.python_type(), TypeError):
            return ConstVar(NotImplemented)  # so does C code for operators
        raise
    if result is not None:
        return result
    if isinstance(probed.outcome, TypeError) and not torch._C._len_torch_function_stack() and (
            not state.function_modes):
        tx.trace.raise_exception(TypeError, *probed.outcome.args)
    if probed.outcome is NotImplemented:
        return ConstVar(NotImplemented)
    raise Break("call_of_unknown_function", f"{probed.function!r}, which nobody implements")


def dispatch(
    tx: Frame, function: Var, classes: Sequence[type], order: list[Var], rest: list[Var]
) -> Var | None:
    """Asks the innermost mode, then the arguments; None where all say NotImplemented."""
    kinds = TupleVar([tx.trace.wrap(cls, None) for cls in classes])
    state = tensor_state(tx.trace)
    if state.function_modes:
        if state.default_devices:
            raise Break("call_of_unknown_function", "a default device beside a function mode")
        mode, step = state.function_modes.pop()
        try:
            method = mode.get_attr(tx, OVERRIDE)
            answer = unless_not_implemented(tx.call(method, [function, kinds, *rest], {}))
        finally:
            state.function_modes.append((mode, step))
        if answer is not None:
            return answer
    for var in order:
        bind = tx.trace.attributes.bind
        method = bind(tx, var, var.cls, OVERRIDE) if isinstance(var, TensorVar) else (
            var.get_attr(tx, OVERRIDE))
        answer = unless_not_implemented(tx.call(method, [function, kinds, *rest], {}))
        if answer is not None:
            return answer
    return None


def function_var(tx: Frame, function: Any) -> Var:
    """A function of torch; of an attribute it is `torch.Tensor.shape.__get__`."""
    if isinstance(function, types.MethodWrapperType):
        owner = function.__self__
        raw = find_in_mro(type(owner), function.__name__)
        return MethodVar(tx.trace.wrap(raw, None), tx.trace.wrap(owner, None))
    name = getattr(function, "__qualname__", repr(function))
    return tx.trace.wrap(function, ObjectSource(function, name))


def var_of(tx: Frame, probed: OverrideCall, value: Any) -> Var:
    """What C code gives for an argument."""
    known = probed.known.get(id(value))
    if known is not None:
        return known[1]
    if type(value) is tuple:
        return TupleVar([var_of(tx, probed, item) for item in value])
    if type(value) is list:
        return ListVar([var_of(tx, probed, item) for item in value])
    if type(value) is dict:
        return DictVar.from_names({key: var_of(tx, probed, item) for key, item in value.items()})
    return tx.trace.constant(value)


# -- attributes, special methods, operators ------------------------------------------------------


def asks_for_attributes(trace: Evaluation, var: TensorVar) -> bool:
    """Whether somebody answers for its attributes. The class of nested tensors has the others'."""
    if var.cls is Jagged:
        return bool(tensor_state(trace).function_modes)
    return is_concerned(trace, [var])


def read_attribute(tx: Frame, var: TensorVar, name: str) -> Var | None:
    """The program's answer for `tensor.name`, an attribute of torch's; None where it is not
    asked."""
    if not isinstance(find_in_mro(torch.Tensor, name), types.GetSetDescriptorType):
        return None
    if not asks_for_attributes(tx.trace, var):
        return None
    return by_stand_ins(tx, lambda tensor: getattr(tensor, name), [var], {})


def write_attribute(tx: Frame, var: TensorVar, name: str, value: Var) -> bool:
    """Whether the program has answered for `tensor.name = value`."""
    if not isinstance(find_in_mro(torch.Tensor, name), types.GetSetDescriptorType):
        return False
    if not asks_for_attributes(tx.trace, var):
        return False

    def write(tensor: Any, given: Any) -> None:
        setattr(tensor, name, given)

    return by_stand_ins(tx, write, [var, value], {}) is not None


def special(tx: Frame, var: TensorVar, name: str, args: list[Var]) -> Var | None:
    """A special method that is the program's own, or asks it; None for those of torch."""
    if var.cls in PLAIN and not tensor_state(tx.trace).function_modes:
        return None
    found = find_owner(var.cls, name)
    if found is None or not (
        not issubclass(torch.Tensor, found[0]) or is_concerned(tx.trace, [var, *args])
    ):
        return None
    return tx.call(tx.trace.attributes.bind(tx, var, var.cls, name), args, {})


def has_own(var: Var, *names: str) -> bool:
    """True for a tensor whose class has one of these methods of its own."""
    if not isinstance(var, TensorVar) or var.cls in PLAIN:
        return False
    owners = [find_owner(var.cls, name) for name in names if name]
    return any(found is not None and not issubclass(torch.Tensor, found[0]) for found in owners)


def slot(tx: Frame, var: Var, name: str, args: list[Var]) -> Var | None:
    """What a special method answers; None for NotImplemented, or where there is none."""
    kind = var.python_type()
    if not isinstance(var, TensorVar | ObjectVar):
        if kind in NUMBERS:
            return None
        raise Break("operator_unknown", f"{name} of {var!r}")
    if find_owner(kind, name) is None:
        return None
    if isinstance(var, ObjectVar):
        tx.trace.attributes.find_special(kind, name)
        if find_in_mro(kind, name) is getattr(object, name, None):
            return None
    method = tx.trace.attributes.bind(tx, var, kind, name)
    return unless_not_implemented(tx.call(method, args, {}))


def operate(tx: Frame, a: Var, b: Var, forward: str, backward: str) -> Var | None:
    """`a.__op__(b)`, then `b.__rop__(a)`; a subclass on the right goes first."""
    calls = [(a, forward, b), (b, backward, a)]
    first, second = a.python_type(), b.python_type()
    if first is second and backward.startswith("__r"):
        calls = calls[:1]
    elif first is not second and is_derived(second, first) and goes_first(first, second, backward):
        calls.reverse()
    for var, name, other in calls:
        answer = slot(tx, var, name, [other])
        if answer is not None:
            return answer
    return None


def refused(tx: Frame, a: Var, b: Var, shown: str, name: str) -> Var:
    """Where neither side has answered: Python's error, or which object it is."""
    if name in ("__eq__", "__ne__"):
        return ConstVar(same(tx, a, b) is (name == "__eq__"))
    kinds = [f"'{name_in_c(var.python_type())}'" for var in (a, b)]
    if name.strip("_") in COMPARE:
        message = f"'{shown}' not supported between instances of {' and '.join(kinds)}"
    else:
        message = f"unsupported operand type(s) for {shown}: {' and '.join(kinds)}"
    tx.trace.raise_exception(TypeError, message)


def register_binary(
    function: Any, shown: str, forward: str, backward: str, inplace: str = ""
) -> None:
    """Rows for a tensor on either side, behind those of plain tensors. shown: the operator."""

    def handle(tx: Frame, a: Var, b: Var) -> Var | None:
        own = has_own(a, forward, inplace) or has_own(b, backward)
        if not own and not is_concerned(tx.trace, [a, b]):
            return None
        answer = slot(tx, a, inplace, [b]) if inplace else None
        if answer is None:
            answer = operate(tx, a, b, forward, backward)
        return refused(tx, a, b, shown, forward) if answer is None else answer

    first_rule(function, Var, TensorVar)(handle)
    first_rule(function, TensorVar)(handle)


def register_unary(function: Any, name: str) -> None:
    @first_rule(function, TensorVar)
    def handle(tx: Frame, var: TensorVar) -> Var | None:
        return special(tx, var, name, [])


for _name, _symbol in BINARY.items():
    _forward, _backward = f"__{_name}__", f"__r{_name}__"
    _shown = "** or pow()" if _name == "pow" else _symbol
    register_binary(function_of(_name), _shown, _forward, _backward)
    register_binary(
        getattr(operator, "i" + _name), f"{_symbol}=", _forward, _backward, f"__i{_name}__")
for _name, _reflected in COMPARE.items():
    register_binary(
        getattr(operator, _name), SYMBOLS[_name], f"__{_name}__", f"__{_reflected}__")
for _name, _function in (("neg", operator.neg), ("pos", operator.pos),
                         ("invert", operator.invert), ("abs", abs)):  # fmt: skip
    register_unary(_function, f"__{_name}__")


# -- torch.overrides -----------------------------------------------------------------------------


def overriding_class(tx: Frame, var: Var) -> type | None:
    """The class of a value with a `__torch_function__`."""
    if isinstance(var, TensorVar):
        return var.python_type() if var.overrides else None
    if isinstance(var, ClassVar):
        cls = var.cls
        return cls if find_in_mro(cls, OVERRIDE) not in (None, TURNED_OFF) else None
    if not isinstance(var, ObjectVar) or find_in_mro(var.python_type(), OVERRIDE) is TURNED_OFF:
        return None
    is_one = var.has_attr(tx, OVERRIDE)
    return var.python_type() if is_one else None


def any_overrides(tx: Frame, args: list[Var]) -> Var:
    """The switch that turns all off is guarded with the thread's state."""
    state = tensor_state(tx.trace)
    found = state.functions_enabled and any([overriding_class(tx, var) for var in args])
    return ConstVar(bool(state.function_modes) or found)


@first_rule(operator.eq, (BuiltinVar, MethodVar), (BuiltinVar, MethodVar))
def equal_functions(tx: Frame, a: Var, b: Var) -> Var | None:
    """`func == torch.Tensor.shape.__get__`: each read makes another object."""
    if real_function(a) is None and real_function(b) is None:
        return None
    return ConstVar(a.hash_key(tx) == b.hash_key(tx))


@rule(torch.overrides.has_torch_function)
def has_torch_function(tx: Frame, args: Var) -> Var:
    return any_overrides(tx, args.unpack(tx))


@rule(torch.overrides.has_torch_function_unary)
def has_torch_function_unary(tx: Frame, arg: Var) -> Var:
    return any_overrides(tx, [arg])


@rule(torch.overrides.has_torch_function_variadic)
def has_torch_function_variadic(tx: Frame, *args: Var) -> Var:
    return any_overrides(tx, list(args))


@rule(torch.overrides.handle_torch_function)
def handle_torch_function(
    tx: Frame, public_api: Var, relevant_args: Var, /, *args: Var, **kwargs: Var
) -> Var:
    """What Python functions of torch ask by."""
    order: list[Var] = []
    if tensor_state(tx.trace).functions_enabled:
        order = in_order(tx, relevant_args.unpack(tx))
    rest: list[Var] = [TupleVar(list(args)), DictVar.from_names(dict(kwargs))]
    kinds = [var.python_type() for var in order]
    answer = dispatch(tx, public_api, kinds, order, rest)
    if answer is not None:
        return answer
    name = [public_api.get_attr(tx, part).as_constant() for part in ("__module__", "__name__")]
    if tensor_state(tx.trace).function_modes:
        raise Break("call_of_unknown_function", f"{public_api!r}, which nobody implements")
    tx.trace.raise_exception(TypeError, (
        f"no implementation found for '{'.'.join(name)}' on types that implement "
        f"__torch_function__: {kinds}"))


def in_order(tx: Frame, args: list[Var]) -> list[Var]:
    """One of each class, subclasses before their bases, else from left to right. Python functions
    count torch.Tensor, too."""
    order: list[Var] = []
    kinds: list[type] = []
    for var in args:
        is_plain = isinstance(var, TensorVar) and var.cls is torch.Tensor
        cls = torch.Tensor if is_plain else overriding_class(tx, var)
        if cls is None or cls in kinds:
            continue
        at = next((at for at, old in enumerate(kinds) if is_derived(cls, old)), len(kinds))
        order.insert(at, var)
        kinds.insert(at, cls)
    return order


# -- the default -----------------------------------------------------------------------------------


NOWRAP = torch.overrides.get_default_nowrap_functions()


def real_function(var: Var) -> Any:
    """The function that a Var stands for, None where it is none of torch's."""
    if isinstance(var, MethodVar) and isinstance(var.receiver, BuiltinVar):
        if isinstance(var.function, BuiltinVar):
            return getattr(var.receiver.value, var.function.value.__name__, None)
    return None


class Off:
    """The traced program's `__torch_function__` of classes, turned off for a while."""

    def __init__(self, trace: Evaluation, enabled: bool = False) -> None:
        self.state, self.enabled = tensor_state(trace), enabled

    def __enter__(self) -> None:
        self.before = self.state.functions_enabled
        self.state.functions_enabled = self.enabled

    def __exit__(self, *error: object) -> None:
        self.state.functions_enabled = self.before
