"""`Trace`: the state of one attempt to trace a frame, shared by all symbolic frames of it.

Comes in: the compile context. It collects the graph, the guards and the effects, keeps one Var per
real object (so that aliasing is kept), and answers what trackers and opcode handlers ask of it:
wrapping, constants, globals, calls by the rule table, exceptions.
"""

from __future__ import annotations

import collections
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from dynamo import _C
from dynamo.base.errors import Break, DynamoError, Signal
from dynamo.base.instances import is_class
from dynamo.base.ragged_sizes import is_nested_int
from dynamo.guards.records import GuardSet
from dynamo.guards.sources import (
    AttrSource,
    BuiltinSource,
    GlobalSource,
    ItemSource,
    ModuleSource,
    ObjectSource,
    Source,
)
from dynamo.shapes.constants import forget_values
from dynamo.shapes.worlds import make_world
from dynamo.symbolic.core import table
from dynamo.symbolic.core.constant import TORCH_VALUE_TYPES, VALUE_TYPES, ConstVar
from dynamo.symbolic.core.effects import Effects
from dynamo.symbolic.core.frame import Evaluation, Frame, TraceState
from dynamo.symbolic.core.graph import GraphBuilder
from dynamo.symbolic.core.identities import Identities
from dynamo.symbolic.core.known_objects import KnownObjects
from dynamo.symbolic.core.lookup import (
    full_name,
    is_own_method,
)
from dynamo.symbolic.core.places import user_line, user_stack
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.finalizers import ObservedLocals
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.numpy.array import ArrayVar
from dynamo.symbolic.python import decided
from dynamo.symbolic.python.attributes import Attributes
from dynamo.symbolic.python.binders import is_settled
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.construction import Construction
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.exceptions import ExceptionVar
from dynamo.symbolic.python.generators import GeneratorVar
from dynamo.symbolic.python.lists import ListVar, SizeVar, TupleVar
from dynamo.symbolic.python.makers import Makers
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.reflected import has_own_operator
from dynamo.symbolic.shapes.symbols import Symbols
from dynamo.symbolic.shapes.unbacked import UnbackedNumber
from dynamo.symbolic.tensors import torch_functions, transforms
from dynamo.symbolic.tensors.nested import nested_size
from dynamo.symbolic.tensors.overriding import intercept
from dynamo.symbolic.tensors.state import TensorState
from dynamo.symbolic.tensors.tables import restart_for_values
from dynamo.symbolic.tensors.tensor import TensorVar

State = TypeVar("State", bound=TraceState)


class Trace:
    """One attempt.

    context: the compile context (config, lessons of earlier attempts).
    frames: the symbolic frames, root first; kept by the machine.
    steps: instructions executed so far, over all frames; kept by the machine, as is the number of
        calls that instructions make of themselves.
    forced_breaks: steps before which this attempt must break.
    handles: True once a frame has `try`, `with` or the like.
    passed_iterator: that of the loop whose body the trace begins with, when it begins there.
    suspended: frames of generators that wait inside of a `try` or `with`, and their Vars, which die
        when the program lets go of them.
    """

    def __init__(self, context: Any = None) -> None:
        self.context = context
        self._states: dict[type, Any] = {}
        self.attributes = Attributes(self)
        self.handled = sys.exception() is not None  # by a caller, or an outer block
        self.make = Makers()
        self.objects = self.state(KnownObjects)
        self.wrap = self.objects.wrap
        self.construct = self.state(Construction).construct
        self.frames: list[RunningFrame] = []
        self.steps = 0
        self.calls = 0
        self.handles = False
        self.forced_breaks: frozenset[int] = frozenset()
        self.observed_locals: ObservedLocals | None = None
        self.passed_iterator: Source | None = None
        self.suspended: dict[RunningFrame, weakref.ref[GeneratorVar]] = {}
        self.guards = GuardSet()
        self.effects = Effects()
        self.graph = GraphBuilder(lambda: user_stack(self.frames), self.step_now)
        self.world = make_world(bool(getattr(context, "symbolic", False)))
        self.symbols = Symbols(self, context)
        self._said: dict[tuple[str, int, int], tuple[Source | None, Any]] = {}
        self.state(TensorState)  # before the compiler leaves the inference mode of the program
        self.guard("GLOBAL_STATE", None, _C.global_state())

    def release(self) -> None:
        """Lets go of the program's values: the trace is part of cycles, and dies late."""
        self._said.clear()
        self.suspended.clear()
        self.observed_locals = None
        self.objects.clear()
        self.symbols.tensors.clear()
        self._states.clear()
        self.effects = Effects()
        self.guards = GuardSet()  # the result has those of this trace
        self.world.forget_reals()
        forget_values([node.meta.get("example_value") for node in self.graph.graph.nodes])

    def state(self, kind: type[State]) -> State:
        """The record of this trace that a package keeps of its own things, made when first used."""
        found = self._states.get(kind)
        if found is None:
            found = self._states[kind] = kind(self)
        return found  # type: ignore[no-any-return]

    # -- places -----------------------------------------------------------------------------

    def step_now(self) -> int:
        """The number of the innermost frame's instruction."""
        return self.frames[-1].step_at_start if self.frames else self.steps

    def was_observed_local(self, value: Any) -> bool:
        return self.observed_locals is not None and self.observed_locals.had(value)

    # -- guards -----------------------------------------------------------------------------

    def guard(self, kind: str, source: Source | None, payload: Any = None) -> None:
        """Assumes something about the real value at `source`."""
        said = kind, id(source), id(payload)
        if said in self._said:
            return
        if isinstance(source, ObjectSource) and kind in ("TYPE", "ID", "CODE"):
            return
        if source is not None and is_in_constant_tuple(source):
            return
        self._said[said] = source, payload  # they live as long as their ids count
        self.guards.add_at(lambda: user_line(self.frames), kind, source, payload)
        if kind in ("TYPE", "ID") and is_class(payload):
            guard_bases(self, payload)

    # -- values -----------------------------------------------------------------------------

    def constant(self, value: Any) -> Var:
        """A Var for a value computed while tracing; containers become new containers."""
        if type(value) is slice:
            return self.wrap(value, None)
        if type(value) is torch.Size:
            return SizeVar([self.constant(item) for item in value])
        if type(value) is tuple:
            return TupleVar([self.constant(item) for item in value])
        if type(value) is list:
            return ListVar([self.constant(item) for item in value])
        if type(value) is dict:
            pairs = [(self.constant(key), self.constant(item)) for key, item in value.items()]
            return DictVar.from_pairs(self.frames[-1], pairs)
        if type(value) in PLAIN_CONSTANTS:
            return ConstVar(value)
        if is_nested_int(value):
            return nested_size(self, value)
        if type(value) in SYMBOLIC_TYPES:
            return self.symbols.wrap_symbolic(value)
        return self.wrap(value, None)

    # -- calls ------------------------------------------------------------------------------

    def call(self, tx: Frame, function: Any, /, *args: Var, **kwargs: Var) -> Var:
        """Calls a real built-in with Vars."""
        return self.call_real(tx, function, list(args), kwargs)

    def call_real(
        self, tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """Calls a real callable by the rule table or as a graph operation."""
        result = decided.call_decided(tx, function, args, kwargs)
        if result is not None:
            return result
        result = intercept(tx, function, args, kwargs)
        if result is not None:
            return result
        if function is dict.__getitem__ and len(args) == 2 and not kwargs:
            found = call_missing(tx, args[0], args[1])
            if found is not None:
                return found
        owner = getattr(function, "__objclass__", None)
        if kwargs and owner in NO_KEYWORDS and function.__name__ not in KEYWORDS:
            raise Break("argument_mismatch", f"{function.__qualname__}() takes no keywords")
        if owner is not None and args and args[0].methods_by_name:
            return args[0].call_method(tx, function.__name__, args[1:], kwargs)
        receiver = args[0] if args else None
        if owner is tuple and isinstance(receiver, ConstVar) and type(receiver.value) is tuple:
            args = [self.constant(receiver.value), *args[1:]]  # a key of a dict from outside
        if owner is not None and args and owner is not object:
            content = getattr(args[0], "content", None)
            if content is not None and issubclass(content.python_type(), owner) and (
                function not in MADE_BY_CLASS and not calls_own_methods(self, function, args[0])
            ):
                args = [content, *args[1:]]
        if owner is dict and function.__name__ in vars(collections.OrderedDict):
            if args and args[0].python_type() is collections.OrderedDict:  # it has two orders
                raise Break("call_of_unknown_function", f"{full_name(function)}({args[0]!r})")
        try:
            result = table.apply(tx, function, args, kwargs)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            result = None
        if result is not None:
            return result if receiver is None or result is not args[0] else receiver
        if torch_functions.is_graph_function(function):
            return torch_functions.call_in_graph(tx, function, args, kwargs)
        shown = ", ".join([*map(repr, args), *(f"{key}={arg!r}" for key, arg in kwargs.items())])
        raise Break("call_of_unknown_function", f"{full_name(function)}({shown})")

    def call_in_graph(
        self, tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        return torch_functions.call_in_graph(tx, function, args, kwargs)

    def raise_exception(self, cls: type[BaseException], *args: Any) -> NoReturn:
        """Raises an exception of the traced program; args are Vars or constants."""
        if cls is TypeError and (self.symbols.unbacked.origins or self.state(Identities).takes_ids):
            raise Break("unknown_number", str(args[0]))  # a row that does not know such numbers
        values = [arg if isinstance(arg, Var) else self.constant(arg) for arg in args]
        raise ObservedException(ExceptionVar(cls, values))

    # -- objects ----------------------------------------------------------------------------

    def is_modelled(self, function: Any) -> bool:
        """True where a call of the function is a row of the rule table or one graph node."""
        return (
            table.has_rule(function)
            or torch_functions.is_graph_function(function)
            or decided.is_decided(function)
        )

    def is_fixed_place(self, source: Source) -> bool:
        """True where nothing rebinds what is found at the source."""
        root = source.root()
        if isinstance(root, ObjectSource) and root is not source and is_class(root.value):
            return is_settled(root.value)
        if isinstance(root, BuiltinSource | ObjectSource):
            return True
        if isinstance(root, ModuleSource):
            return root is not source and root.name.partition(".")[0] in FIXED_ROOTS
        if isinstance(root, GlobalSource) and root is not source:
            value = self.frames[0].globals.get(root.name)
            name = getattr(value, "__name__", "") if isinstance(value, types.ModuleType) else ""
            return name.partition(".")[0] in FIXED_ROOTS
        return False

    def as_index(self, tx: Frame, key: Var) -> int | None:
        """`operator.index(key)`, None where it has none."""
        if key.is_constant():
            number = key.as_constant()
            if isinstance(number, int):
                return int(number)
            try:
                return operator.index(number)  # numpy's integers are none of Python's
            except TypeError:
                return None
        if isinstance(key, ObjectVar) and self.attributes.find_special(
            key.python_type(), "__index__"
        ) is not None:
            return int(key.call_special(tx, "__index__").as_constant())
        if isinstance(key, TensorVar):
            known = self.world.constant_of(key.fake)
            if known is None:
                restart_for_values(self, [key])
                raise Break("item", repr(key))
            return int(self.run_real(lambda: operator.index(known)))
        if isinstance(key, OpaqueVar | ArrayVar) or has_own_operator(tx, key, "__index__"):
            raise Break("index_unknown", repr(key))
        if isinstance(key, UnbackedNumber):
            raise Break("unknown_number", repr(key))
        return None

    def generic_alias(self, tx: Frame, cls: Var, key: Var) -> Var:
        """`list[int]` and the like."""
        parts = key.unpack(tx) if isinstance(key, TupleVar) else [key]
        kind = alias_part(tx, cls)
        values = tuple(alias_part(tx, part) for part in parts)
        index = values if isinstance(key, TupleVar) else values[0]
        return tx.trace.wrap(self.run_real(lambda: kind[index]), None)

    def run_real(self, function: Callable[[], Any]) -> Any:
        """The result of a real call; its exception is the traced program's."""
        try:
            return function()
        except (Signal, DynamoError):  # an argument was looked at
            raise
        except Exception as error:
            table.raise_as(self, error)

    def leave(self) -> None:
        """Leaves what the trace has entered and not left."""
        self.state(transforms.KnownFakes).leave()
        contexts = self.state(TensorState).contexts
        while contexts:
            contexts.pop().__exit__(None, None, None)

    def call_in_transform(
        self, function: Any, args: list[Any], kwargs: dict[str, Any], tensors: list[TensorVar]
    ) -> Var | None:
        """An operation under torch.func's levels; None where they do not matter to it."""
        return transforms.call_below(self.frames[-1], function, args, kwargs, tensors)


# Modules whose attributes are taken as fixed: nothing rebinds `torch.add` between two calls.
FIXED_ROOTS = frozenset({"torch", "math", "operator", "builtins", "itertools", "functools",
                         "collections", "contextlib", "types", "typing", "enum", "copy", "abc"})
# Built-in types whose methods take no keywords, but for these.
NO_KEYWORDS = frozenset(
    {list, tuple, dict, set, frozenset, collections.deque, collections.defaultdict})
KEYWORDS = frozenset({"sort", "update", "__init__"})
# Methods of containers that call the class of a subclass's instance.
MADE_BY_CLASS = (collections.OrderedDict.copy, collections.defaultdict.copy,
                 collections.defaultdict.__copy__)  # type: ignore[attr-defined]
# Those of OrderedDict that store, read and delete through the class of a subclass's instance.
ASKING_CLASS = tuple(
    getattr(collections.OrderedDict, name)
    for name in ("__init__", "update", "setdefault", "pop", "popitem"))
CLASS_METHODS = ("__setitem__", "__getitem__", "__delitem__", "__contains__")
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
PLAIN_CONSTANTS = frozenset((*VALUE_TYPES, *TORCH_VALUE_TYPES))


def is_in_constant_tuple(source: Source) -> bool:
    """True for a tuple of the program's constants and what is in it: it can't change."""
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, ObjectSource) and source.name == "constant"


def call_missing(tx: Frame, var: Var, key: Var) -> Var | None:
    """`__missing__(key)` of an instance of a subclass of dict that lacks the key."""
    content = getattr(var, "content", None)
    if not isinstance(var, ObjectVar) or not isinstance(content, DictVar):
        return None
    if tx.trace.attributes.find_special(var.python_type(), "__missing__") is None:
        return None
    if content.lookup(tx, key) is not None:
        return None
    return var.call_special(tx, "__missing__", key)


def calls_own_methods(trace: Evaluation, function: Any, var: Var) -> bool:
    """True where a method of OrderedDict calls methods of the program's own subclass."""
    return function in ASKING_CLASS and any(
        is_own_method(trace.attributes.find_special(var.python_type(), name))
        for name in CLASS_METHODS)


def guard_bases(trace: Trace, cls: type) -> None:
    """Assumes that a class keeps its bases (and they theirs), where it has any but `object`."""
    order = type.__dict__["__mro__"].__get__(cls)
    if len(order) > 2 and not is_settled(cls):
        place = AttrSource(ObjectSource(cls, cls.__qualname__), "__mro__")
        line = lambda: user_line(trace.frames)  # noqa: E731
        trace.guards.add_at(line, "LENGTH", place, len(order))
        for at, base in enumerate(order[1:-1], 1):
            trace.guards.add_at(line, "ID", ItemSource(place, at), base)


def alias_part(tx: Frame, var: Var) -> Any:
    """A parameter of a generic alias."""
    if isinstance(var, ClassVar):
        return var.cls
    if type(var) is ListVar:
        return [alias_part(tx, item) for item in var.items]
    real = getattr(var, "real", None)
    if real is None:
        real = getattr(var, "value", None)
    if var.is_constant() or real is None:
        return var.as_constant()
    tx.trace.guard("ID", var.source, real)
    return real
